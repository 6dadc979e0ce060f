"""What do the batcher and the way around it cost, and how good are its batches?

1. `take`: the time to find a batch in queues of different size. Must stay below 5 us for one row, and well below 100 us
   for 10,000.
2. `latency`: one text at a time through the batcher, against the same engine called directly in the same thread; what
   is between is two changes of thread and the bookkeeping.
3. `share`: a request of several rows with two idle runners, whole against divided: where dividing begins to pay.
4. `throughput`: real texts of mixed length in a queue that never runs dry, against the offline optimum: the same texts,
   all known beforehand, sorted by length, in batches of the same budget, on the same engine and as many threads. In
   turn, block by block; the best block of each counts, as other work on the machine only slows. The same as processor
   time a text, which other work on the machine changes less; it includes this bench's own tasks, one a text.
5. `plan`: what is measured at a first load to choose runners and threads, and how long that takes.

Run it with `PYTHONPATH=. python bench/batching.py BUNDLE [SECTION ...]`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_agent.config import AgentConfig, QueueConfig, RuntimeConfig, usable_cpus
from device_agent.inference.queue import batcher as batcher_module
from device_agent.inference.queue import plan
from device_agent.inference.queue.batching import CALL_TOKENS, WaitingRows
from device_agent.inference.queue.execution import Runs
from device_agent.inference.rows import Rows, write_batch
from device_agent.models.loading import LoadedModel, load_model
from tests.support.texts import vader_texts

BUDGET = QueueConfig().batch_tokens


def sample(count: int, seed: int = 7) -> list[str]:
    """Real texts, drawn with a fixed seed."""
    texts = vader_texts()
    return [texts[index] for index in np.random.default_rng(seed).integers(0, len(texts), count)]


def best_of(repeats: int, measured: Callable[[], float]) -> float:
    """The least of several measurements, in microseconds."""
    return min(measured() for _ in range(repeats)) * 1e6


def bench_take(loaded: LoadedModel) -> None:
    """Print the time of `add` and `take` for queues of different size."""
    lengths = loaded.text.rows(sample(10_000)).lengths

    def once(rows: int) -> tuple[float, float]:
        waiting = WaitingRows()
        began = time.perf_counter()
        for key in range(rows):
            waiting.add(key, lengths[key : key + 1])
        added = (time.perf_counter() - began) / rows
        takes = max(1, min(50, rows // 40))
        began = time.perf_counter()
        for _ in range(takes):
            waiting.take(BUDGET)
        return added, (time.perf_counter() - began) / takes

    print(f"{'rows that wait':<18}{'add, us a request':>20}{'take, us a batch':>20}")
    for rows in (1, 10, 100, 1000, 10_000):
        pairs = [once(rows) for _ in range(max(5, 2000 // rows))]
        print(f"{rows:<18}{min(pair[0] for pair in pairs) * 1e6:>20.1f}{min(pair[1] for pair in pairs) * 1e6:>20.1f}")

    def many() -> float:
        waiting = WaitingRows()
        began = time.perf_counter()
        waiting.add(0, lengths[:2048])
        return time.perf_counter() - began

    print(f"add one request of 2,048 rows: {best_of(10, many):.0f} us")


def run_loop(main: Awaitable[None]) -> None:
    """Run a coroutine in the event loop that the agent uses."""

    async def call() -> None:
        await main

    try:
        import uvloop
    except ImportError:
        asyncio.run(call())
    else:
        uvloop.run(call())


def bench_latency(loaded: LoadedModel, requests: int = 600) -> None:
    """Print what the batcher adds to a request that comes alone."""
    texts = sample(requests)
    names = loaded.engine.inputs
    found: dict[str, list[float]] = {"direct": [], "through": [], "run": [], "added": [], "queue": []}

    async def main() -> None:
        for text in texts:
            rows = loaded.text.rows([text])
            await asyncio.sleep(0.0005)  # as a request comes: the loop and the runners sleep
            began = time.perf_counter()
            loaded.engine.run(write_batch([(rows, [0])], int(rows.lengths[0]), names), None)
            found["direct"].append(time.perf_counter() - began)
            await asyncio.sleep(0.0005)
            began = time.perf_counter()
            answer = await loaded.batcher.submit(rows, seconds=30.0).future
            through = time.perf_counter() - began
            found["through"].append(through)
            found["run"].append(answer.infer_seconds)
            found["added"].append(through - answer.infer_seconds)
            found["queue"].append(answer.queue_seconds)

    run_loop(main())
    print(f"{'microseconds':<48}{'p10':>9}{'median':>9}{'p90':>9}")
    labels = {
        "direct": "pad and run, in the loop's own thread",
        "through": "submit until the answer is in the loop",
        "run": "  of it the run",
        "added": "  of it all else",
        "queue": "    until a runner has the batch",
    }
    for name, label in labels.items():
        values = [float(np.percentile(found[name], q)) * 1e6 for q in (10, 50, 90)]
        print(f"{label:<48}" + "".join(f"{value:>9.0f}" for value in values))


def bench_share(loaded: LoadedModel) -> None:
    """Print how long a request takes whole and divided among idle runners."""
    texts = sample(4000)
    lengths = loaded.text.rows(texts).lengths
    print(f"{'rows x tokens':<16}{'tokens':>8}{'whole, ms':>12}{'divided, ms':>12}{'ratio':>8}")
    for count, width in ((2, 6), (2, 12), (4, 9), (2, 24), (4, 16), (2, 48), (8, 16), (8, 24), (20, 17), (20, 24)):
        near = np.argsort(np.abs(lengths - width), kind="stable")[:count]
        rows = loaded.text.rows([texts[index] for index in near])
        times: dict[bool, list[float]] = {False: [], True: []}

        async def main(rows: Rows = rows, times: dict[bool, list[float]] = times) -> None:
            for _ in range(25):
                for divided in (False, True):
                    batcher_module.SHARE_TOKENS = 1 if divided else 1 << 30
                    await asyncio.sleep(0.001)
                    began = time.perf_counter()
                    await loaded.batcher.submit(rows).future
                    times[divided].append(time.perf_counter() - began)

        before = batcher_module.SHARE_TOKENS
        try:
            run_loop(main())
        finally:
            batcher_module.SHARE_TOKENS = before
        whole, divided = (statistics.median(times[kind]) * 1e3 for kind in (False, True))
        tokens = int(rows.lengths.sum())
        print(f"{count:>4} x {width:<9}{tokens:>8}{whole:>12.2f}{divided:>12.2f}{divided / whole:>8.2f}")


def offline_batches(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """All rows sorted by length, in batches of the budget."""
    order = np.argsort(-lengths, kind="stable")
    at = 0
    while at < len(order):
        count = max(1, BUDGET // int(lengths[order[at]]))
        yield order[at : at + count]
        at += count


@dataclass(frozen=True)
class Speed:
    """Texts a second, processor time a text in seconds, and useful tokens as a part of padded ones and calls."""

    texts: float
    cpu: float
    useful: float


def timed(count: int, work: Callable[[], float]) -> Speed:
    """How fast `work` gets through `count` texts; it returns the useful part."""
    began, cpu = time.perf_counter(), time.process_time()
    useful = work()
    return Speed(count / (time.perf_counter() - began), (time.process_time() - cpu) / count, useful)


def run_offline(loaded: LoadedModel, texts: list[str], runners: int) -> Speed:
    """The offline optimum."""
    rows = loaded.text.rows(texts)
    names = loaded.engine.inputs
    listed = list(offline_batches(rows.lengths))
    batches = iter(listed)
    lock = threading.Lock()

    def work(_: int) -> None:
        while True:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            width = int(rows.lengths[batch].max())
            loaded.engine.run(write_batch([(rows, batch.tolist())], width, names), ("sentence_embedding",))

    def all_of_it() -> float:
        with ThreadPoolExecutor(runners) as pool:
            list(pool.map(work, range(runners)))
        padded = sum(len(batch) * int(rows.lengths[batch].max()) + CALL_TOKENS for batch in listed)
        return int(rows.lengths.sum()) / padded

    return timed(len(texts), all_of_it)


def run_queue(loaded: LoadedModel, texts: list[str], backlog: int | None) -> Speed:
    """The batcher, one text a request, `backlog` requests in it at any time (None: all)."""
    requests = [loaded.text.rows([text]) for text in texts]

    async def main() -> None:
        room = asyncio.Semaphore(backlog or len(texts))

        async def ask(rows: Rows) -> None:
            await loaded.batcher.submit(rows, ("sentence_embedding",), seconds=300.0).future
            room.release()

        async with asyncio.TaskGroup() as group:
            for rows in requests:
                await room.acquire()
                group.create_task(ask(rows))

    def all_of_it() -> float:
        before = loaded.batcher.state().counts
        run_loop(main())
        after = loaded.batcher.state().counts
        calls = (after.runs - before.runs) * CALL_TOKENS
        return (after.tokens_run - before.tokens_run) / (after.batch_tokens.total - before.batch_tokens.total + calls)

    return timed(len(texts), all_of_it)


def bench_throughput(loaded: LoadedModel, blocks: int, texts_per_block: int) -> None:
    """Print the batcher's texts per second next to the offline optimum's."""
    runners = loaded.batcher.runners
    kinds: dict[str, Callable[[list[str]], Speed]] = {
        "offline: all sorted by length": lambda texts: run_offline(loaded, texts, runners),
        "batcher, all texts waiting": lambda texts: run_queue(loaded, texts, None),
        "batcher, 400 requests at any time": lambda texts: run_queue(loaded, texts, 400),
        "batcher, 64 requests at any time": lambda texts: run_queue(loaded, texts, 64),
        "batcher, 32 requests at any time": lambda texts: run_queue(loaded, texts, 32),
    }
    found: dict[str, list[Speed]] = {kind: [] for kind in kinds}
    for block in range(blocks):
        texts = sample(texts_per_block, seed=block)
        for kind, run in kinds.items():
            found[kind].append(run(texts))
    print(f"{blocks} blocks of {texts_per_block} texts, {runners} runners, budget {BUDGET}; the best block of each")
    print(f"{'':<36}{'texts/s':>9}{'of offline':>12}{'CPU, ms a text':>16}{'of offline':>12}{'useful tokens':>15}")
    offline = found["offline: all sorted by length"]
    fastest, cheapest = max(speed.texts for speed in offline), min(speed.cpu for speed in offline)
    for kind, speeds in found.items():
        best, least = max(speed.texts for speed in speeds), min(speed.cpu for speed in speeds)
        useful = statistics.mean(speed.useful for speed in speeds)
        print(
            f"{kind:<36}{best:>9.0f}{best / fastest:>12.1%}{least * 1e3:>16.3f}{cheapest / least:>12.1%}{useful:>15.1%}"
        )
    state = loaded.batcher.state()
    print(f"measured by the batcher itself: {state.tokens_per_second:.0f} tokens/s in a full queue")


def bench_plan(bundle: Path, loaded: LoadedModel) -> None:
    """Print what a first load would measure, and what it would choose."""
    opened: dict[int, LoadedModel] = {}

    def open_runs(threads: int) -> Runs:
        if threads not in opened:
            opened[threads] = load_model(bundle, AgentConfig(runtime=RuntimeConfig(threads=threads, runners=1)))
        return opened[threads].engine

    for threads in {threads for _, threads in plan.candidates(usable_cpus())}:
        open_runs(threads)  # what opening takes is not measured here
    golden = loaded.bundle.golden()
    rows = loaded.text.rows(golden.texts, golden.pairs)
    middle = int(np.argsort(rows.lengths)[len(rows.lengths) // 2])
    row = write_batch([(rows, [middle])], int(rows.lengths[middle]), loaded.engine.inputs)
    began = time.perf_counter()
    found = plan.measure(open_runs, row, cpus=usable_cpus(), budget=BUDGET)
    print(f"measured in {time.perf_counter() - began:.3f} s, a row of {row['input_ids'].shape[1]} tokens")
    for each in found:
        print(
            f"{each.runners:>4} x {each.threads} threads: {each.tokens_per_second:>8.0f} tokens/s, "
            f"one text {each.solo_seconds * 1e3:.2f} ms"
        )
    chosen = plan.choose(found)
    print(f"chosen: {chosen.runners} x {chosen.threads}")
    for other in opened.values():
        other.close(timeout=5)


def main() -> None:
    """Measure and print."""
    sections = ("take", "latency", "share", "throughput", "plan")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(sections)} (default: all)")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of the throughput (default: 3)")
    parser.add_argument("--texts", type=int, default=1000, help="texts of a block (default: 1000)")
    options = parser.parse_args()
    loaded = load_model(options.bundle, AgentConfig())
    print(f"{loaded.name} {loaded.version}, {loaded.engine.variant.name}, {usable_cpus()} CPUs, call {CALL_TOKENS}")
    for section in options.sections or sections:
        print(f"\n{section}")
        if section == "take":
            bench_take(loaded)
        elif section == "latency":
            bench_latency(loaded)
        elif section == "share":
            bench_share(loaded)
        elif section == "throughput":
            bench_throughput(loaded, options.blocks, options.texts)
        elif section == "plan":
            bench_plan(options.bundle, loaded)
        else:
            parser.error(f"no such section: {section}")
    loaded.close(timeout=5)


if __name__ == "__main__":
    main()
