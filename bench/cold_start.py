"""How long from starting the agent's process until it can answer, and what it weighs then?

Before it is ready, the agent has hashed every byte that it uses and replayed the golden set. The peer is what people
write first, a FastAPI server around sentence-transformers, from its process's start until it listens; it checks
nothing. Where sentence-transformers is not installed, the peer is the least that any server on ONNX Runtime does:
import it, open the session, run once. Both start in turn, in the same run, with their bytecode compiled before, as
installed packages have it.

Printed are the seconds to ready, the resident memory at that moment, and what the agent's imports cost: the import of
`device_agent.server` and `device_agent.models.loading` in a fresh interpreter, less one that imports nothing.
On a machine that does other things too, the processor's seconds are the ones to compare.

Run it with `PYTHONPATH=. python bench/cold_start.py BUNDLE [--runs N]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edgeonnx.bundle import open_bundle
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION
from tests.support.agent import ROOT, Agent, environment
from tests.support.models import minilm_directory

LIMIT_SECONDS = 1.2
LIMIT_RESIDENT_MB = 180
LIMIT_IMPORT_SECONDS = 0.4
IMPORTS = "import device_agent.server, device_agent.models.loading"

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


def resident_megabytes(pid: int) -> float:
    """Resident memory of a process, in units of 1,000,000 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")


def start_peer(command: list[str]) -> tuple[float, float]:
    """Seconds from the start of the peer's process to its first line, and its resident megabytes then."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        elapsed = time.perf_counter() - begin
        resident = resident_megabytes(process.pid) if line else 0.0
        process.kill()
    if not line:
        raise SystemExit("the peer did not start")
    return elapsed, resident


def start_agent(bundle: Path) -> tuple[float, float, float]:
    """Seconds from the start of the agent to its ready line, its resident megabytes, its processor's seconds."""
    with Agent(bundle=bundle) as agent:
        pid = agent.process.pid
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return agent.seconds_to_ready, resident_megabytes(pid), processor


def import_seconds() -> tuple[float, float]:
    """What the agent's imports add to the start of an interpreter: seconds, and seconds of the processor."""

    def seconds(program: str) -> tuple[float, float]:
        begin, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, "-c", program], env=environment(), cwd=ROOT, check=True)
        elapsed, after = time.perf_counter() - begin, os.times()
        processor = after.children_user + after.children_system - before.children_user - before.children_system
        return elapsed, processor

    bare, full = seconds("pass"), seconds(IMPORTS)
    return full[0] - bare[0], full[1] - bare[1]


def compile_once() -> tempfile.TemporaryDirectory[str]:
    """Let all processes of this bench keep their bytecode, in a folder of its own."""
    folder = tempfile.TemporaryDirectory(prefix="cold-start-")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder.name
    return folder


def show(label: str, values: list[float], unit: str, limit: float | None = None) -> None:
    """One line: median, least, and the limit."""
    digits = 0 if unit == "MB" else 2
    line = f"{label:<48} median {statistics.median(values):.{digits}f} {unit}, least {min(values):.{digits}f}"
    print(line if limit is None else f"{line}; must reach: at most {limit:g} {unit}")


def main() -> None:
    """Start both in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=5, help="starts of each (default: 5)")
    options = parser.parse_args()
    name, command = peer_command(options.bundle)
    with compile_once():
        # Both read their files once, so that what is measured is not the disk, and compile their bytecode.
        start_agent(options.bundle)
        start_peer(command)
        agents, peers, imports = [], [], []
        for _ in range(options.runs):
            agents.append(start_agent(options.bundle))
            peers.append(start_peer(command))
            imports.append(import_seconds())
    show("edgeonnx-agent to ready", [each[0] for each in agents], "s", LIMIT_SECONDS)
    show("edgeonnx-agent, processor", [each[2] for each in agents], "s")
    show(name, [seconds for seconds, _ in peers], "s")
    ratios = [agent[0] / peer[0] for agent, peer in zip(agents, peers, strict=True)]
    print(f"{'ratio':<48} {statistics.median(ratios):.2f}")
    show("edgeonnx-agent resident at ready", [each[1] for each in agents], "MB", LIMIT_RESIDENT_MB)
    show(f"{name}, resident", [resident for _, resident in peers], "MB")
    show("import of the agent", [seconds for seconds, _ in imports], "s", LIMIT_IMPORT_SECONDS)
    show("import of the agent, processor", [processor for _, processor in imports], "s")


if __name__ == "__main__":
    main()
