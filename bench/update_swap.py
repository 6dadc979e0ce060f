"""What do requests feel of an update that is swapped in while they run?

A serving agent holds one version of a model in its state directory; another one is left there proven, as the update
process leaves it, and the agent swaps it in, again and again. A client in a process of its own sends one text a request
at times that were drawn beforehand (open loop), so a stall is paid by every request that had to wait. Printed are the
latencies of the seconds that begin with a swap, beside those of the same run without one: the peer is the agent that
is left alone.

Run it with `PYTHONPATH=. python bench/update_swap.py OLD [NEW] [--rate N] [--swaps N]`; without NEW, the same bundle
under two version numbers is swapped. Both must be of one model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from bench.serving_load import arrivals, percentile_ms, post
from bench.serving_texts import sample
from bench.swap import versions_of
from device_agent.slots.state import Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from edgeonnx.bundle import identify
from tests.support.agent import Agent

LIMIT_RATIO = 2.0
PAUSE_SECONDS = 4.0
"""From one swap to the next."""
CONNECTIONS = 32
SETTLED_SECONDS = 1.0
"""After the swap second, what is left of the swap (the old version is being freed) counts neither way."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A request: when it was due (seconds since 1970), seconds until its answer, and the status (0: none)."""

    due: float
    seconds: float
    status: int


async def ask(address: str, messages: list[bytes], due: list[float]) -> list[Answer]:
    """Send each request at its time, over connections that are kept alive."""
    host, port = address.split(":")
    free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = asyncio.LifoQueue()
    for _ in range(CONNECTIONS):
        free.put_nowait(None)
    answers: list[Answer] = []

    async def one(message: bytes, at: float) -> None:
        connection = await free.get()
        try:
            reader, writer = connection or await asyncio.open_connection(host, int(port))
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            free.put_nowait(None)
            answers.append(Answer(due=at, seconds=time.time() - at, status=0))
            return
        free.put_nowait((reader, writer))
        answers.append(Answer(due=at, seconds=time.time() - at, status=int(head[9:12])))

    tasks = []
    for number, at in enumerate(due):
        await asyncio.sleep(max(0.0, at - time.time()))
        tasks.append(asyncio.ensure_future(one(messages[number % len(messages)], at)))
    await asyncio.gather(*tasks)
    return answers


def client(address: str, model: str, rate: float, seconds: float) -> None:
    """The client's process: its answers as JSON on stdout."""
    messages = [
        post("/v1/embeddings", {"model": model, "input": text, "encoding_format": "base64"}) for text in sample(512)
    ]
    began = time.time() + 0.5
    answers = asyncio.run(ask(address, messages, [began + at for at in arrivals(rate, seconds, seed=7).tolist()]))
    print(json.dumps([(each.due, each.seconds, each.status) for each in answers]))


def place(store: Store, bundle: Path) -> Installed:
    """Put a bundle into its slot, by hard links."""
    name, version, contents = identify(bundle)
    shutil.copytree(bundle, store.slot(name, contents), copy_function=os.link)
    return Installed(version=version, contents=contents)


def prove(store: Store, model: str, release: Installed) -> None:
    """Leave a release as the update process does; what is on probation is committed before."""
    state = store.read_state(model)
    if state.running is not None:
        state = step(state, AttemptState.COMMITTED, now=time.time())
    state = begin(state, release, tries=3, now=time.time())
    for to in (AttemptState.STAGED, AttemptState.CANDIDATE, AttemptState.PROVEN):
        state = step(state, to, now=time.time())
    store.write_state(state)


@dataclass(frozen=True, kw_only=True)
class Swap:
    """When the agent began to load (seconds since 1970), and how long it took until the new version served."""

    began: float
    seconds: float


def swap(store: Store, model: str, release: Installed, agent: httpx.Client) -> Swap:
    """Have a release swapped in, and wait for it. Nothing is asked of the agent meanwhile but by the client."""
    prove(store, model, release)
    file = store.model(model) / "state.json"
    written = file.stat().st_mtime_ns
    while file.stat().st_mtime_ns == written:
        time.sleep(0.02)
    began = file.stat().st_mtime
    while True:
        time.sleep(1.0 + SETTLED_SECONDS)
        (view,) = agent.get("/status.json").json()["models"]
        if view["version"] == release.version:
            return Swap(began=began, seconds=view["loaded_at"] - began)


def milliseconds(answers: list[Answer]) -> np.ndarray:
    """The times of answers, in seconds."""
    return np.array([each.seconds for each in answers])


def report(answers: list[Answer], swaps: list[Swap]) -> bool:
    """Print; whether what must be reached was reached."""
    begins = [each.began for each in swaps]
    second = [each for each in answers if any(0 <= each.due - at < 1.0 for at in begins)]
    quiet = [each for each in answers if all(not 0 <= each.due - at < 1.0 + SETTLED_SECONDS for at in begins)]
    failed = sum(each.status != 200 for each in answers)
    took = [each.seconds for each in swaps]
    print(f"{len(swaps)} swaps, each {np.median(took):.2f} s (longest {max(took):.2f} s) from the state to the turn")
    print(f"{'ms':<24}{'requests':>9}{'median':>9}{'p95':>9}{'p99':>9}{'longest':>9}")
    for name, part in (("without a swap", quiet), ("the second of a swap", second)):
        values = milliseconds(part)
        cells = [percentile_ms(values, percent) for percent in (50, 95, 99, 100)]
        print(f"{name:<24}{len(part):>9}" + "".join(f"{cell:>9.1f}" for cell in cells))
    ratio = percentile_ms(milliseconds(second), 99) / percentile_ms(milliseconds(quiet), 99)
    print(f"failed requests: {failed} of {len(answers)}; must reach: 0")
    print(f"p99 in the second of a swap: {ratio:.2f} times that without one; must reach: at most {LIMIT_RATIO:g}")
    return failed == 0 and ratio <= LIMIT_RATIO


def main() -> None:
    """Serve, load, swap and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second (default: 40)")
    parser.add_argument("--swaps", type=int, default=12, help="swaps (default: 12)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.old.resolve().parent) as folder:
        bundles = [options.old, options.new] if options.new else versions_of(options.old, Path(folder) / "made")
        store = Store(Path(folder) / "state")
        store.prepare()
        model = identify(bundles[0])[0]
        if identify(bundles[1])[0] != model:
            parser.error("both bundles must be of one model")
        releases = [place(store, bundle) for bundle in bundles]
        store.write_state(SlotState(model=model, active=releases[0]))
        settings = Path(folder) / "agent.toml"
        settings.write_text("[update]\ninterval_seconds = 0\n", encoding="utf-8")
        arguments = ("--config", str(settings), "--state-dir", str(store.root), "--log-level", "warning")
        with Agent(arguments=arguments) as agent, httpx.Client(base_url=agent.url, timeout=10) as asking:
            seconds = (options.swaps + 1) * (PAUSE_SECONDS + 1.0)
            command = [sys.executable, __file__, "--client", agent.address, model, str(options.rate), str(seconds)]
            loading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            time.sleep(PAUSE_SECONDS)
            swaps = []
            for number in range(options.swaps):
                swaps.append(swap(store, model, releases[(number + 1) % 2], asking))
                time.sleep(max(0.0, swaps[-1].began + PAUSE_SECONDS - time.time()))
            output, _ = loading.communicate(timeout=seconds + 60)
            answers = [Answer(due=due, seconds=took, status=status) for due, took, status in json.loads(output)]
            print(agent.log, end="")
    # The first requests meet an agent that was never asked.
    first = min(each.due for each in answers) + 2.0
    sys.exit(0 if report([each for each in answers if each.due >= first], swaps) else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
