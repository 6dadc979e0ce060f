"""The demo of updates: a repository on a plain web server, one device, and three releases.

1.0.0 is installed; 1.1.0 (one layer of the model moved a little, as a light fine-tune does) is taken while requests
run; 1.2.0 is broken on purpose and is refused by the device. Every step is a command that you could type; it is printed
before it runs. Run it with `make demo-ota`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import onnx
from demo import command, source_directory
from safetensors.numpy import load_file, save_file

from edgeonnx.spec.contents import Contents, FileEntry

WORK = Path(".work/demo-ota")
FIRST = Path(".work/bench/minilm-1.0.0")
REPOSITORY, KEYS, STATE = WORK / "repository", WORK / "keys", WORK / "device"
PORT = re.compile(r"port (\d+)")
URL = re.compile(r"http://[\d.]+:\d+")
SENTENCE = "The pump in hall 3 is leaking again."
LAYER = "encoder.layer.5.output.dense.weight"
AGENT = """\
[update]
# Nothing but this demo's own commands asks the repository.
interval_seconds = 0
probation_seconds = 5
"""


def run(program: str, *arguments: object, fails: bool = False) -> None:
    """Print a command and run it; it must end well, or must not where `fails` is set."""
    done = subprocess.run(command(program, *arguments, shown=" ".join(map(str, arguments))), check=False)
    if (done.returncode != 0) is not fails:
        sys.exit(f"exit code {done.returncode}")


@contextmanager
def web_server() -> Iterator[str]:
    """Python's own static web server over the repository."""
    log = (WORK / "web.log").open("w", encoding="utf-8")
    serving = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(REPOSITORY)]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, stderr=log, text=True) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            yield f"http://127.0.0.1:{PORT.findall(line)[0]}"
        finally:
            server.terminate()


@contextmanager
def device() -> Iterator[str]:
    """A serving agent, and the URL under which it answers."""
    serving = command(
        "edgeonnx-agent",
        *("serve", "--config", WORK / "agent.toml", "--state-dir", STATE, "--port", 0),
        shown=f"serve --config {WORK}/agent.toml --state-dir {STATE} --port 0",
    )
    agent = subprocess.Popen(serving, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        line = agent.stdout.readline() if agent.stdout else ""
        print(line, end="", flush=True)
        found = URL.search(line)
        if found is None:
            sys.exit(f"the agent stopped with exit code {agent.wait()}")
        yield found.group()
    finally:
        agent.send_signal(signal.SIGTERM)
        print(f"\nthe agent stopped with exit code {agent.wait(timeout=30)}")


class Requests:
    """Requests without a pause, as a client would send them, until the block ends."""

    def __init__(self, url: str) -> None:
        self._request = urllib.request.Request(
            f"{url}/v1/embeddings",
            json.dumps({"model": "minilm", "input": SENTENCE}).encode(),
            {"Content-Type": "application/json"},
        )
        self._stop = threading.Event()
        self.seconds: list[float] = []
        self.failed = 0
        self.answers: set[float] = set()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        print(
            f"\nmeanwhile {len(self.seconds)} requests: {self.failed} failed, {len(self.answers)} different answers, "
            f"median {statistics.median(self.seconds) * 1e3:.1f} ms, longest {max(self.seconds) * 1e3:.0f} ms"
        )

    def _work(self) -> None:
        while not self._stop.is_set():
            started = time.perf_counter()
            try:
                with urllib.request.urlopen(self._request, timeout=30) as answer:
                    self.answers.add(round(json.load(answer)["data"][0]["embedding"][0], 6))
            except OSError:
                self.failed += 1
            self.seconds.append(time.perf_counter() - started)


def fine_tuned() -> Path:
    """A copy of the source model in which one layer moved by a thousandth of its weights' spread."""
    copy = WORK / "fine-tuned"
    shutil.copytree(source_directory(), copy)
    tensors = load_file(copy / "model.safetensors")
    name = next(name for name in tensors if name.endswith(LAYER))
    step = np.random.default_rng(6).standard_normal(tensors[name].shape, dtype=np.float32)
    tensors[name] = tensors[name] + np.float32(1e-3) * tensors[name].std() * step
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def broken(bundle: Path) -> Path:
    """A bundle one of whose scales was changed by a tool that knows nothing of golden sets."""
    copy = WORK / "minilm-1.2.0"
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["package_version"] = "1.2.0"
    (copy / "manifest.json").write_bytes(json.dumps(manifest).encode())
    graph = copy / "encoder" / "cpu-int8" / "model.onnx"
    model = onnx.load(graph, load_external_data=False)
    scale = next(each for each in model.graph.initializer if each.name.startswith("1/2"))
    scale.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale) * np.float32(8), scale.name))
    graph.write_bytes(model.SerializeToString())
    entries = []
    for path in sorted(each for each in copy.rglob("*") if each.is_file()):
        name = path.relative_to(copy).as_posix()
        if name not in ("contents.json", "report.html", "timings.json"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            entries.append(FileEntry(path=name, size=path.stat().st_size, sha256=digest))
    (copy / "contents.json").write_bytes(Contents.of(entries).to_bytes())
    return copy


def main() -> None:
    """Run the demo."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    (WORK / "agent.toml").write_text(AGENT, encoding="utf-8")
    signing = ("--repo", REPOSITORY, "--keys", KEYS)
    print("A repository is a folder of signed files. Its keys lie elsewhere (encrypted, unless one asks otherwise).")
    run("edgeonnx", "repo", "init", REPOSITORY, "--keys", KEYS, "--unencrypted")
    run("edgeonnx", "publish", FIRST, *signing, "--channel", "stable", "--rollout", "100%")
    with web_server() as url:
        print(f"\nPython's static web server serves it at {url}. A device learns the root of trust once:")
        root = REPOSITORY / "metadata" / "1.root.json"
        run("edgeonnx-agent", "enroll", "--repo", url, "--root", root, "--state-dir", STATE)
        run("edgeonnx-agent", "update", "--state-dir", STATE)
        with device() as address:
            print("\nA light fine-tune, packaged on the base of 1.0.0 so that few bytes change, for the whole fleet:")
            second = WORK / "minilm-1.1.0"
            naming = ("--name", "minilm", "--version", "1.1.0", "--out", WORK)
            run("edgeonnx", "package", fine_tuned(), *naming, "--base", FIRST, "--quiet")
            run("edgeonnx", "publish", second, *signing, "--channel", "stable", "--rollout", "100%")
            with Requests(address):
                run("edgeonnx-agent", "update", "--state-dir", STATE)
            print("\n1.2.0 is broken on purpose. The build host does not publish it, unless it is told to look away:")
            third = (broken(second), *signing, "--channel", "stable", "--rollout", "100%")
            run("edgeonnx", "publish", *third, fails=True)
            run("edgeonnx", "publish", *third, "--skip-golden")
            with Requests(address):
                run("edgeonnx-agent", "update", "--state-dir", STATE, fails=True)
            run("edgeonnx-agent", "status", "--state-dir", STATE)


if __name__ == "__main__":
    main()
