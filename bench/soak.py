"""Does the agent leak, and does a swap cost a request?

Closed loop from a process of its own, one text a request, while the model is swapped for another version of itself
over the repository API, again and again. The two versions have the same graph, so every text has one
embedding, whichever version gives it: an answer that went to the wrong client is seen. Memory is the agent's
resident memory: after warm-up, after each swap, and in the end.

Run it with `PYTHONPATH=. python bench/soak.py BUNDLE [--requests N] [--swaps N]`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.serving import embeddings, memory_mb, verdict
from bench.serving_load import Load, Message, Outcome, run
from bench.serving_texts import sample
from edgeonnx.bundle import open_bundle
from edgeonnx.evaluate.speed import machine
from edgeonnx.spec.contents import UNSEALED_FILES
from tests.support.agent import Agent
from tests.support.tamper import edit_json, relist

GROWTH = 0.05
TEXTS = 500
CONNECTIONS = 8
WARM_UP_REQUESTS = 10_000  # until the runtime's arena has met all shapes
LONGEST = 3600.0  # seconds that the whole of it may take
VERSIONS = ("1.0.0", "2.0.0")


def repository(bundle: Path, folder: Path) -> None:
    """Two versions of one model, which differ in their version only."""
    for version in VERSIONS:
        copy = folder / version
        shutil.copytree(bundle, copy, ignore=shutil.ignore_patterns(*UNSEALED_FILES))
        edit_json(copy, "manifest.json", partial(dict.update, package_version=version))
        relist(copy)


def swap(agent: Agent, name: str, version: str) -> float:
    """Load a version while the other one serves; seconds until it serves."""
    body = json.dumps({"parameters": {"version": version}}).encode()
    request = urllib.request.Request(f"{agent.url}/v2/repository/models/{name}/load", body, method="POST")
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
    return time.perf_counter() - begin


def serving(agent: Agent, name: str) -> list[str]:
    """The versions of a model that are not unloaded."""
    request = urllib.request.Request(f"{agent.url}/v2/repository/index", b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        entries = json.load(response)
    return [entry["version"] for entry in entries if entry["name"] == name and entry["state"] != "UNAVAILABLE"]


def settled(agent: Agent, name: str) -> float:
    """Resident memory in MB, once only one version is left."""
    limit = time.monotonic() + 30
    while len(serving(agent, name)) > 1 and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.5)
    return memory_mb(agent.process.pid)["VmRSS"]


@dataclass(kw_only=True)
class Swapping:
    """Swaps spread over the time that the load will take.

    Attributes:
        seconds: Of each swap.
        memory: Resident memory after each, in MB.
        problem: What went wrong.
        ended: When the last one was done, by `time.monotonic`.
    """

    agent: Agent
    name: str
    count: int
    interval: float
    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    problem: str = ""
    ended: float = 0.0

    def run(self) -> None:
        """Swap `count` times."""
        begin = time.monotonic()
        try:
            for index in range(self.count):
                time.sleep(max(0.0, begin + index * self.interval + self.interval / 2 - time.monotonic()))
                self.seconds.append(swap(self.agent, self.name, VERSIONS[(index + 1) % 2]))
                self.memory.append(settled(self.agent, self.name))
        except Exception as error:  # noqa: BLE001 - it is reported by the bench, in the thread that prints
            self.problem = f"swap {len(self.seconds) + 1}: {error}"
        self.ended = time.monotonic()


def load(agent: Agent, name: str, requests: int, seconds: float = LONGEST) -> Outcome:
    """A closed loop of so many requests."""
    messages = tuple(Message(data=embeddings(name, [text], "base64"), texts=1) for text in sample(TEXTS))
    return run(
        Load(
            address=agent.address,
            messages=messages,
            connections=CONNECTIONS,
            requests=requests,
            seconds=seconds,
            warm_up=0.0,
            compare=True,
        )
    )


def report(outcome: Outcome, swapping: Swapping, before: float, after: float, duration: float) -> None:
    """Print everything."""
    print(f"{outcome.ok} requests answered in {duration:.0f} s, {outcome.texts_per_second:.0f} texts/s")
    latencies = f"p50 {outcome.latency_ms(50):.1f}, p99 {outcome.latency_ms(99):.1f}, max {outcome.latency_ms(100):.0f}"
    print(f"latency, ms: {latencies}")
    longest = max(swapping.seconds, default=0.0)
    print(f"swaps: {len(swapping.seconds)}, the longest took {longest:.1f} s {swapping.problem}")
    print(f"resident memory after each, MB: {', '.join(f'{value:.0f}' for value in swapping.memory)}")
    print(f"resident memory, MB: after warm-up {before:.0f}, in the end {after:.0f}")
    failed = outcome.failed + outcome.refused + outcome.late
    print(f"failures: {dict(outcome.errors)}, refused {outcome.refused}, late {outcome.late}")
    verdict("failed requests", failed, "at most", 0)
    verdict("answers that differ", outcome.different, "at most", 0)
    verdict("swaps that failed, or came after the load", swapping.count - len(swapping.seconds), "at most", 0)
    verdict("memory growth since warm-up", after / before - 1, "at most", GROWTH)
    if len(swapping.memory) > 2:
        verdict("memory growth since the second swap", after / swapping.memory[1] - 1, "at most", GROWTH)


def main() -> None:
    """Load, swap, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--requests", type=int, default=100_000, help="requests (default: 100,000)")
    parser.add_argument("--swaps", type=int, default=20, help="swaps (default: 20)")
    options = parser.parse_args()
    name = open_bundle(options.bundle).manifest.name
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    with tempfile.TemporaryDirectory() as folder:
        repository(options.bundle.resolve(), Path(folder))
        arguments = ("--repository", folder, "--log-level", "warning")
        with Agent(bundle=Path(folder) / VERSIONS[0], arguments=arguments) as agent:
            warm = load(agent, name, min(WARM_UP_REQUESTS, options.requests // 10))
            before = settled(agent, name)
            expected = options.requests / (warm.ok / warm.seconds)
            # Somewhat faster than the load, so that no swap comes after it.
            swapping = Swapping(agent=agent, name=name, count=options.swaps, interval=0.9 * expected / options.swaps)
            thread = threading.Thread(target=swapping.run)
            begin = time.monotonic()
            thread.start()
            outcome = load(agent, name, options.requests)
            end = time.monotonic()
            thread.join()
            after = settled(agent, name)
        if swapping.ended > end:
            swapping.problem += f"; the last was done {swapping.ended - end:.1f} s after the load: too few requests"
        report(outcome, swapping, before, after, end - begin)


if __name__ == "__main__":
    main()
