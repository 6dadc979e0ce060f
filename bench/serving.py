"""What does serving cost beyond the model itself?

The client is a process of its own on loopback, on the same cores. Each figure stands beside its peer in the same run:

- `added`: one text a request at concurrency 1, against the same bundle tokenized and run in this process, in turn with
  blocks of requests. The server's own figures are from its `Server-Timing` header; the client's latency also holds
  what no header can: parsing HTTP, sending, two wake-ups, and the client.
- `saturated`: texts a second of `/v1/embeddings` in closed loop, with requests of one text and of 1 to 32, against the
  same bundle run offline on the same cores (sorted by length, batches of 512 tokens, two threads), in turn.
- `overload`: open loop at three times the capacity that a closed loop found before and after, with a deadline of 1 s;
  latency from the scheduled time. Goodput is what was answered within the deadline.
- `process`: memory after loading and after traffic; then `bench/cold_start.py`: start to ready, import.

Run it with `PYTHONPATH=. python bench/serving.py BUNDLE [--only SECTION ...] [--quick]`.
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.serving_load import Load, Message, Outcome, percentile_ms, pooled, post, run
from bench.serving_offline import Offline
from bench.serving_texts import mixed, sample, singles
from edgeonnx.evaluate.speed import machine
from tests.support.agent import ROOT, Agent, environment

# Served and in-process texts come in turn, in blocks: one after the other, each would find the caches full of the
# other process's weights, which no server meets.
BLOCK = 50
WARM_UP = 5
TEXTS = 2000
TIMING = re.compile(rb"(\w+);dur=([\d.]+)")
CONTENT_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
OVERLOAD = 3.0
DEADLINE = 1.0
MOST_CONNECTIONS = 1000
ADDED_MS, SERVED_SHARE, GOODPUT_SHARE, REFUSAL_MS = 0.4, 0.9, 0.9, 20.0
MEMORY_MB = 180.0
Item = TypeVar("Item")
Figures = TypeVar("Figures")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of requests, and the connections that saturate the server with them.

    With a deadline fewer do: as many as wait no longer than it, or the server refuses what a closed loop sends anew.
    """

    name: str
    connections: int
    with_deadline: int
    messages: tuple[Message, ...]

    @property
    def texts(self) -> float:
        """Mean texts of a request."""
        return statistics.fmean(message.texts for message in self.messages)


def embeddings(model: str, group: Sequence[str], encoding: str) -> bytes:
    """A request to `/v1/embeddings`."""
    body = {"model": model, "input": group[0] if len(group) == 1 else list(group), "encoding_format": encoding}
    return post("/v1/embeddings", body)


def shapes(model: str, encoding: str) -> tuple[Shape, ...]:
    """Requests of one text, and of 1 to 32."""
    texts = sample(TEXTS)

    def messages(groups: Sequence[Sequence[str]]) -> tuple[Message, ...]:
        return tuple(Message(data=embeddings(model, group, encoding), texts=len(group)) for group in groups)

    return (
        Shape(name="one text", connections=256, with_deadline=64, messages=messages(singles(texts))),
        Shape(name="1 to 32 texts", connections=16, with_deadline=16, messages=messages(mixed(texts))),
    )


class Connection:
    """One connection that asks and waits."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, message: bytes) -> dict[str, float]:
        """One request: its latency and the server's parts, in milliseconds."""
        begin = time.perf_counter()
        self._socket.sendall(message)
        answer = self._socket.recv(1 << 16)
        head, _, body = answer.partition(b"\r\n\r\n")
        length = CONTENT_LENGTH.search(head)
        while length is not None and len(body) < int(length[1]):
            body += self._socket.recv(1 << 16)
        latency = (time.perf_counter() - begin) * 1e3
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the agent answered {head[:60]!r}")
        parts = {name.decode(): float(value) for name, value in TIMING.findall(head)}
        return {"latency": latency, **parts, "added": parts["total"] - parts["tokenize"] - parts["infer"]}


def after_warm_up(measured: Callable[[Item], Figures], block: Sequence[Item]) -> list[Figures]:
    """The figures of a block, after some items of which the figures are thrown away."""
    for item in block[:WARM_UP]:
        measured(item)
    return [measured(item) for item in block]


ROWS = (
    ("latency", "client latency"),
    ("total", "  in the server, in all"),
    ("tokenize", "    tokenizing"),
    ("infer", "    InferenceSession.run"),
    ("added", "    added by the server"),
    ("bare", "tokenize and run, in process"),
    ("beyond", "client latency beyond that"),
)


def added(bundle: Path, agent: Agent, options: argparse.Namespace) -> None:
    """Section `added`."""
    texts = sample(options.requests)
    found: dict[str, list[float]] = {}
    with Offline(bundle) as offline:
        connection = Connection(agent.address)
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            messages = [embeddings(offline.name, [text], options.encoding) for text in block]
            for figures in after_warm_up(connection.ask, messages):
                for name, value in figures.items():
                    found.setdefault(name, []).append(value)
            found.setdefault("bare", []).extend(value * 1e3 for value in after_warm_up(offline.alone, block))
    found["beyond"] = [served - alone for served, alone in zip(found["latency"], found["bare"], strict=True)]
    print(f"\n{len(texts)} requests of one text, concurrency 1, {options.encoding}")
    print(f"{'milliseconds':<40}{'median':>9}{'p90':>9}{'p99':>9}")
    for name, label in ROWS:
        percentiles = [float(np.percentile(found[name], q)) for q in (50, 90, 99)]
        print(f"{label:<40}" + "".join(f"{value:>9.3f}" for value in percentiles))
    ratios = [served / alone for served, alone in zip(found["latency"], found["bare"], strict=True)]
    print(f"client latency / tokenize and run in process: median {statistics.median(ratios):.2f}")
    verdict("added by the server at the median, ms", statistics.median(found["added"]), "at most", ADDED_MS)


def closed(agent: Agent, shape: Shape, seconds: float, *, refusals: bool = False) -> Outcome:
    """One block in closed loop; it ends the bench if requests fail (or are refused, unless `refusals` allows it)."""
    outcome = run(
        Load(
            address=agent.address,
            messages=shape.messages,
            connections=shape.with_deadline if refusals else shape.connections,
            seconds=seconds,
            warm_up=min(1.5, seconds / 2),
        )
    )
    allowed = outcome.refused + outcome.late if refusals else 0
    if outcome.ok + allowed < outcome.sent or not outcome.ok:
        found = f"{outcome.refused} refused, {outcome.late} late, {dict(outcome.errors)}"
        raise SystemExit(f"closed loop, {shape.name}: of {outcome.sent} requests {outcome.ok} ok; {found}")
    return outcome


def saturated(bundle: Path, agent: Agent, options: argparse.Namespace) -> None:
    """Section `saturated`."""
    texts = sample(TEXTS)
    with Offline(bundle, threads=1) as offline:
        for shape in shapes(offline.name, options.encoding):
            served: list[Outcome] = []
            alone: list[float] = []
            for _ in range(options.rounds):
                served.append(closed(agent, shape, options.seconds))
                alone.append(offline.texts_per_second(texts, options.seconds))
            ratios = [outcome.texts_per_second / other for outcome, other in zip(served, alone, strict=True)]
            whole = pooled(served)
            print(f"\nsaturated, {shape.name} a request, {shape.connections} connections, closed loop")
            print(f"  served    texts/s {listed([outcome.texts_per_second for outcome in served])}")
            print(f"  offline   texts/s {listed(alone)}")
            print(f"  latency, ms: p50 {whole.latency_ms(50):.1f}, p99 {whole.latency_ms(99):.1f}")
            print(f"  client: {whole.client_microseconds:.0f} us of processor time a request")
            verdict("served / offline, median of rounds", statistics.median(ratios), "at least", SERVED_SHARE)


def listed(values: Sequence[float]) -> str:
    """The median, and every value."""
    return f"{statistics.median(values):.0f} ({', '.join(f'{value:.0f}' for value in values)})"


def overload(_bundle: Path, agent: Agent, options: argparse.Namespace) -> None:
    """Section `overload`; the agent has a deadline of `DEADLINE`."""
    for shape in shapes(model_of(agent), options.encoding):
        seconds = max(options.seconds, 4 * DEADLINE)
        before = closed(agent, shape, options.seconds, refusals=True).texts_per_second
        loads = [loaded(agent, shape, before, seconds, seed) for seed in range(options.rounds)]
        after = closed(agent, shape, options.seconds, refusals=True).texts_per_second
        capacity = (before + after) / 2
        found = pooled(loads)
        sent = f"{found.sent / found.seconds:.0f} requests/s, {found.sent / found.seconds * shape.texts:.0f} texts/s"
        print(f"\noverload, {shape.name} a request, open loop, deadline {DEADLINE:g} s")
        print(f"  capacity  texts/s {capacity:.0f} (before {before:.0f}, after {after:.0f}); sent: {sent}")
        print(f"  goodput   texts/s {listed([each.goodput for each in loads])}")
        counts = f"{found.ok} ok, {found.refused} refused, {found.late} late (504), failed: {dict(found.errors) or 0}"
        print(f"  of {found.sent} requests: {counts}")
        print(f"  accepted, ms: {percentiles(found.latencies)}; refused, ms: {percentiles(found.refusals)}")
        lag = percentile_ms(found.lags, 99)
        print(f"  client: {found.client_microseconds:.0f} us a request; sent late by {lag:.1f} ms at p99")
        verdict("goodput / capacity", found.goodput / capacity, "at least", GOODPUT_SHARE)
        verdict("p99 of accepted, ms", found.latency_ms(99), "at most", DEADLINE * 1e3)
        verdict("failed requests", found.failed, "at most", 0)
        verdict("refusals at the median, ms", found.refusal_ms(50), "at most", REFUSAL_MS)


def loaded(agent: Agent, shape: Shape, capacity: float, seconds: float, seed: int) -> Outcome:
    """One block at three times the capacity."""
    return run(
        Load(
            address=agent.address,
            messages=shape.messages,
            connections=MOST_CONNECTIONS,
            rate=OVERLOAD * capacity / shape.texts,
            seconds=seconds,
            warm_up=2 * DEADLINE,
            deadline=DEADLINE,
            seed=7 + seed,
        )
    )


def percentiles(seconds: np.ndarray) -> str:
    """Three percentiles, in milliseconds."""
    return ", ".join(f"p{percent} {percentile_ms(seconds, percent):.1f}" for percent in (50, 90, 99))


def model_of(agent: Agent) -> str:
    """The name of the model that the agent serves, from its ready line."""
    return agent.ready_line.split(" serves ")[1].split()[0]


def memory_mb(process: int) -> dict[str, float]:
    """Memory of a process in MB (10^6 bytes): resident, its peak, and the part that is no file."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return {name: int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM", "RssAnon")}


def process(bundle: Path, agent: Agent, options: argparse.Namespace) -> None:
    """Section `process`."""
    print("\nmemory of the agent, MB")
    idle = memory_mb(agent.process.pid)
    for shape in shapes(model_of(agent), options.encoding):
        closed(agent, shape, options.seconds)
    for label, found in (("after loading", idle), ("after traffic", memory_mb(agent.process.pid))):
        print(f"  {label:<16}" + ", ".join(f"{name} {value:.0f}" for name, value in found.items()))
        verdict(f"resident {label}, MB", found["VmRSS"], "at most", MEMORY_MB)
    # Bytecode, imports and starts need processes with settings of their own.
    print(flush=True)
    command = [sys.executable, str(ROOT / "bench" / "cold_start.py"), str(bundle), "--runs", str(options.rounds)]
    subprocess.run(command, env=environment(), cwd=ROOT, check=True)


def verdict(what: str, value: float, bound: str, limit: float) -> None:
    """Print a figure beside what it must reach."""
    reached = value <= limit if bound == "at most" else value >= limit
    print(f"  {'ok    ' if reached else 'MISSED'} {what}: {value:.3g} (must be {bound} {limit:g})")


SECTIONS = {"process": process, "added": added, "saturated": saturated, "overload": overload}
# `process` first, in an agent of its own: its memory is that of an agent that has not served yet.
ARGUMENTS = {"overload": ("--deadline-seconds", str(DEADLINE))}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="these sections")
    parser.add_argument("--requests", type=int, default=1000, help="requests at concurrency 1 (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each kind (default: 3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a block (default: 6)")
    parser.add_argument("--encoding", choices=("float", "base64"), default="base64", help="of the embeddings")
    parser.add_argument("--quick", action="store_true", help="one round of 2 s: shows that everything works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.requests = 1, 2.0, 200
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for name, section in SECTIONS.items():
        if name in options.only:
            with Agent(bundle=options.bundle.resolve(), arguments=ARGUMENTS.get(name, ())) as agent:
                section(options.bundle.resolve(), agent, options)


if __name__ == "__main__":
    main()
