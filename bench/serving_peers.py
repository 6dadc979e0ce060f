"""How much faster is the agent than other servers of the same model, on the same cores?

Each peer runs in an environment of its own (`.work/peers`, made at the first run: 2.5 GB). Peer and agent are loaded
in turn, block by block, by the same client with the same texts; while the agent is measured, the peer's processes are
stopped. Ratios are of neighbouring blocks. Before anything is measured, every server's embeddings are compared with
those of the bundle's fp32 graph. A peer that does not run is named, with its reason, and not measured.

The peers: a plain FastAPI server around sentence-transformers; infinity with torch; infinity, MLServer and LitServe
with the same ONNX int8 graph as the agent. `bench/peers/catalog.py` has their settings.

Run it with `PYTHONPATH=. python bench/serving_peers.py BUNDLE [--only NAME ...] [--rounds N] [--quick]`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.peers.catalog import PEERS, Api, Peer, Vectors, environment, openai_api
from bench.peers.environments import PeerFailsError, last_line
from bench.serving_load import Load, Message, Outcome, percentile_ms, pooled, post, run
from bench.serving_texts import mixed, sample, singles
from edgeonnx.evaluate.speed import machine
from tests.support.agent import Agent
from tests.support.packaged import open_packaged

START_SECONDS = 120.0
CHECKED = 48  # texts of which the embeddings are compared
LEAST_COSINE = 0.95
MUST_REACH = {"plain": 8.0, "infinity-torch": 4.0}
MUST_REACH_ONNX = 1.5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of load.

    Attributes:
        name: In the table.
        connections: Requests in flight.
        many: Requests of 1 to 32 texts; otherwise of one.
    """

    name: str
    connections: int
    many: bool


SHAPES = (
    Shape(name="1", connections=1, many=False),
    Shape(name="32", connections=32, many=False),
    Shape(name="mixed", connections=8, many=True),
)


@dataclass(kw_only=True)
class Measured:
    """What was found about one server.

    Attributes:
        cosine: Smallest cosine of its embeddings to fp32.
        memory: Of all its processes after the load, in MB; pages that several share count once.
        blocks: The blocks by shape.
    """

    cosine: float
    memory: float = 0.0
    blocks: dict[str, list[Outcome]] = field(default_factory=lambda: {shape.name: [] for shape in SHAPES})

    def texts_per_second(self, shape: str) -> float:
        """Median over the blocks."""
        return statistics.median(outcome.texts_per_second for outcome in self.blocks[shape])

    def latency_ms(self, shape: str, percent: float) -> float:
        """Percentile over all blocks."""
        return percentile_ms(pooled(self.blocks[shape]).latencies, percent)


def free_port() -> int:
    """A port that is free, as are the two behind it."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for further in (1, 2):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + further))
            except (OSError, OverflowError):
                continue
            return port


@contextmanager
def running(peer: Peer, bundle: Path) -> Iterator[tuple[str, int]]:
    """Start a peer; its address and its process group, which is ended in the end.

    Raises:
        PeerFailsError: It could not be installed, or does not answer.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        port = free_port()
        start = peer.start(bundle, port, Path(folder))
        process = subprocess.Popen(
            start.command,
            cwd=start.folder,
            env=environment(start),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            if not _answers(peer.api, port, process):
                log.seek(0)
                raise PeerFailsError(f"it does not answer: {last_line(log.read())}")
            yield f"127.0.0.1:{port}", process.pid
        finally:
            _end(process)


def _answers(api: Api, port: int, process: subprocess.Popen[bytes]) -> bool:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        try:
            ask(api, f"127.0.0.1:{port}", ["ready?"])
        except OSError:
            time.sleep(0.2)
        else:
            return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group that `start_new_session` made: the server and its workers."""
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        if number == signal.SIGTERM:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue
    process.wait(timeout=10)


def ask(api: Api, address: str, texts: Sequence[str]) -> Vectors:
    """One request: the embeddings."""
    request = urllib.request.Request(
        f"http://{address}{api.path}",
        json.dumps(api.body(texts)).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return api.vectors(json.load(response))


def cosine_to(reference: Vectors, api: Api, address: str, texts: Sequence[str]) -> float:
    """Smallest cosine between the server's embeddings and the reference."""
    found = np.concatenate([ask(api, address, texts[start : start + 8]) for start in range(0, len(texts), 8)])
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(reference, axis=1)
    return float(((found * reference).sum(axis=1) / norms).min())


def messages(api: Api, shape: Shape, texts: Sequence[str]) -> tuple[Message, ...]:
    """The requests of a load."""
    groups = mixed(texts) if shape.many else singles(texts)
    return tuple(Message(data=post(api.path, api.body(group)), texts=len(group)) for group in groups)


def measure(api: Api, address: str, shape: Shape, texts: Sequence[str], seconds: float) -> Outcome:
    """One block.

    Raises:
        PeerFailsError: Requests fail.
    """
    load = Load(
        address=address,
        messages=messages(api, shape, texts),
        connections=shape.connections,
        seconds=seconds,
        warm_up=min(2.0, seconds / 2),
    )
    outcome = run(load)
    if outcome.ok < outcome.sent or not outcome.ok:
        counts = f"{outcome.ok} ok, {outcome.refused} refused, {outcome.late} late, {dict(outcome.errors)}"
        raise PeerFailsError(f"of {outcome.sent} requests in {seconds:g} s ({shape.name}): {counts}")
    return outcome


def our_block(api: Api, address: str, shape: Shape, texts: Sequence[str], seconds: float) -> Outcome:
    """One block of the agent; that requests fail ends the bench."""
    try:
        return measure(api, address, shape, texts, seconds)
    except PeerFailsError as error:
        raise SystemExit(f"edgeonnx-agent: {error}") from None


def compare(
    peer: Peer, bundle: Path, agent: tuple[Api, str], reference: Vectors, options: argparse.Namespace
) -> tuple[Measured, Measured]:
    """Blocks of the peer and of the agent in turn.

    Raises:
        PeerFailsError: The peer does not run, or its embeddings are wrong.
    """
    texts = sample(options.texts)
    ours = Measured(cosine=cosine_to(reference, *agent, texts[:CHECKED]))
    with running(peer, bundle) as (address, group):
        theirs = Measured(cosine=cosine_to(reference, peer.api, address, texts[:CHECKED]))
        if theirs.cosine < LEAST_COSINE:
            raise PeerFailsError(f"its embeddings are wrong: cosine {theirs.cosine:.3f} to fp32")
        for _ in range(options.rounds):
            for shape in SHAPES:
                theirs.blocks[shape.name].append(measure(peer.api, address, shape, texts, options.seconds))
                os.killpg(group, signal.SIGSTOP)
                ours.blocks[shape.name].append(our_block(*agent, shape, texts, options.seconds))
                os.killpg(group, signal.SIGCONT)
        theirs.memory = memory_mb(processes_of(group))
    return ours, theirs


def processes_of(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
    return found


def memory_mb(processes: Sequence[int]) -> float:
    """Memory of processes in MB (10^6 bytes), by proportional share: pages that several share count once."""
    total = 0
    for process in processes:
        with suppress(OSError):  # it ended meanwhile
            text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
            total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024 / 1e6


def reference_vectors(bundle: Path, texts: Sequence[str]) -> Vectors:
    """Embeddings by the bundle's fp32 graph."""
    rows = open_packaged(bundle, "cpu-fp32").answer(texts)["sentence_embedding"]
    return np.stack(rows).astype(np.float32)


def ratios(ours: Measured, theirs: Measured, shape: str) -> float:
    """How many times as many texts a second the agent serves: median over neighbouring blocks."""
    pairs = zip(ours.blocks[shape], theirs.blocks[shape], strict=True)
    return statistics.median(our.texts_per_second / their.texts_per_second for our, their in pairs)


COLUMNS = ("texts/s, one-text", "texts/s, mixed", "concurrency 1, ms", "concurrency 32, ms")
HEAD = (
    f"{'':<40}{''.join(f'{column:>20}' for column in COLUMNS)}{'cosine':>8}{'MB':>7}\n"
    f"{'':<40}{'':>10}{'ratio':>10}{'':>10}{'ratio':>10}" + f"{'p50':>10}{'p99':>10}" * 2 + f"{'min':>8}"
)


def row(label: str, found: Measured, ratio: dict[str, float] | None) -> str:
    """A line of the table; `ratio` is the agent's speed over this server's, by shape."""
    cells = [f"{label:<40}"]
    for shape in ("32", "mixed"):
        cells.append(f"{found.texts_per_second(shape):>10.0f}")
        cells.append(f"{ratio[shape]:>9.1f}x" if ratio else f"{'':>10}")
    for shape in ("1", "32"):
        cells += [f"{found.latency_ms(shape, percent):>10.1f}" for percent in (50, 99)]
    return "".join(cells) + f"{found.cosine:>8.4f}{found.memory:>7.0f}"


def main() -> None:
    """Measure every peer that runs, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="these peers")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each load and server (default: 3)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a block (default: 8)")
    parser.add_argument("--texts", type=int, default=2000, help="different texts (default: 2000)")
    parser.add_argument("--quick", action="store_true", help="one round of 2 s: shows that everything works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2.0
    bundle = options.bundle.resolve()
    reference = reference_vectors(bundle, sample(options.texts)[:CHECKED])
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"ratio: edgeonnx in the blocks beside, over this server; median of {options.rounds}\n\n{HEAD}")
    every: list[tuple[Peer, Measured, dict[str, float]]] = []
    agents: list[Measured] = []
    with Agent(bundle=bundle) as agent:
        for peer in PEERS:
            if options.only and peer.name not in options.only:
                continue
            try:
                asked = (openai_api("/v1/embeddings", bundle_name(agent)), agent.address)
                ours, theirs = compare(peer, bundle, asked, reference, options)
            except PeerFailsError as error:
                print(f"{peer.label:<40}not measured: {error}")
                continue
            found = {shape.name: ratios(ours, theirs, shape.name) for shape in SHAPES}
            print(row(peer.label, theirs, found), flush=True)
            every.append((peer, theirs, found))
            agents.append(ours)
        memory = memory_mb([agent.process.pid])
    if agents:
        blocks = {shape.name: [block for ours in agents for block in ours.blocks[shape.name]] for shape in SHAPES}
        whole = Measured(cosine=agents[0].cosine, memory=memory, blocks=blocks)
        print(row("edgeonnx-agent, ONNX int8", whole, None))
    judge(every)


def bundle_name(agent: Agent) -> str:
    """The name of the model that the agent serves, from its ready line."""
    return agent.ready_line.split(" serves ")[1].split()[0]


def judge(every: Sequence[tuple[Peer, Measured, dict[str, float]]]) -> None:
    """Print what must be reached."""
    print()
    for name, least in MUST_REACH.items():
        for peer, _, found in every:
            if peer.name == name:
                print(f"must reach: {least:g} times {peer.label}: {found['32']:.1f} (one-text), {found['mixed']:.1f}")
    onnx = [(peer, found) for peer, _, found in every if peer.name not in MUST_REACH]
    for shape, kind in (("32", "one-text"), ("mixed", "mixed")):
        if onnx:
            peer, found = min(onnx, key=lambda pair: pair[1][shape])
            best = f"{found[shape]:.2f} ({peer.label})"
            print(f"must reach: {MUST_REACH_ONNX:g} times the best with ONNX int8, {kind}: {best}")


if __name__ == "__main__":
    main()
