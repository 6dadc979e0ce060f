"""How long from starting the agent's process until it can answer, with every byte hashed and the golden set replayed?

The peer is what people write first, a FastAPI server around sentence-transformers, from its process's start until it
listens; it checks nothing. Where sentence-transformers is not installed, the peer is the least that any server on ONNX
Runtime does: import it, open the session, run once. Both start in turn, in the same run.

Run it with `PYTHONPATH=. python bench/cold_start.py BUNDLE [--runs N]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from edgeonnx.bundle import open_bundle
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION
from tests.support.agent import Agent
from tests.support.models import minilm_directory

LIMIT = 2.0

SERVER = """
import sys, uvicorn
from fastapi import FastAPI
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()
@app.post("/embed")
def embed(texts: list[str]) -> list[list[float]]:
    return model.encode(texts).tolist()
model.encode(["one text"])
config = uvicorn.Config(app, port=0, log_level="error")
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("ready", flush=True)
Server(config).run()
"""

BARE = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
if sys.argv[3]:
    options.add_session_config_entry(sys.argv[2], sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
ones = numpy.ones((1, 8), dtype=numpy.int64)
session.run(None, {node.name: ones for node in session.get_inputs()})
print("ready", flush=True)
"""


def peer_command(bundle: Path) -> tuple[str, list[str]]:
    """Name and command line of the peer; it prints one line when it is ready."""
    source = minilm_directory()
    if importlib.util.find_spec("sentence_transformers") is not None and source is not None:
        return "FastAPI + sentence-transformers", [sys.executable, "-c", SERVER, str(source)]
    opened = open_bundle(bundle)
    component = opened.manifest.entry_component
    variant = component.variants[0]
    tensors = opened.tensors_path(variant)
    arguments = [str(opened.model_path(component.name, variant)), EXTERNAL_FOLDER_OPTION, str(tensors or "")]
    return "bare onnxruntime: import, open, run once", [sys.executable, "-c", BARE, *arguments]


def peer_seconds(command: list[str]) -> float:
    """Seconds from the start of the peer's process to its first line."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        elapsed = time.perf_counter() - begin
        process.kill()
    if not line:
        raise SystemExit("the peer did not start")
    return elapsed


def agent_seconds(bundle: Path) -> float:
    """Seconds from the start of the agent's process to its ready line."""
    with Agent(bundle=bundle) as agent:
        return agent.seconds_to_ready


def main() -> None:
    """Start both in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=5, help="starts of each (default: 5)")
    options = parser.parse_args()
    name, command = peer_command(options.bundle)
    # Both read their files once, so that what is measured is not the disk.
    agent_seconds(options.bundle)
    peer_seconds(command)
    agents, peers = [], []
    for _ in range(options.runs):
        agents.append(agent_seconds(options.bundle))
        peers.append(peer_seconds(command))
    for label, times in (("edgeonnx-agent to ready", agents), (name, peers)):
        print(f"{label:<42} median {statistics.median(times):.2f} s ({', '.join(f'{value:.2f}' for value in times)})")
    ratios = [agent / peer for agent, peer in zip(agents, peers, strict=True)]
    print(f"{'ratio':<42} {statistics.median(ratios):.2f}")
    print(f"must reach: at most {LIMIT:g} s")


if __name__ == "__main__":
    main()
