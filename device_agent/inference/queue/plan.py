"""How many runners call the runtime, and with how many threads each call works: measured on this machine.

On a CPU, several runners with one thread each answer more texts in all, and one runner with all cores answers a single
text sooner; by how much depends on the model, the cores and their caches. So a first load measures the ways to share
the cores, in a fraction of a second, and later loads read what was found. On a GPU there is one runner: its calls
would only wait for each other.

`candidates`, `choose` and the dictionaries are pure; `measure` runs the model.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from device_agent.inference.queue.execution import Runs
    from device_agent.inference.rows import Ids

    OpenRuns = Callable[[int], Runs]

SAME = 0.9
"""Throughput of which the difference to the best one may be noise, as a part of it."""

ENOUGH = 0.75
"""Throughput that is worth giving up for answers to single texts that come in half the time, as a part of the best."""

SOLO_RUNS = 5
BATCH_RUNS = 2
LONGEST_BATCH = 0.04
"""Seconds of one batch; for slower models it is made smaller."""

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """How the cores are shared.

    Attributes:
        runners: Threads that call the runtime.
        threads: Threads that each call works with (`intra_op_num_threads`).
        reason: Why, for the log and for `doctor`.
    """

    runners: int
    threads: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one way to share the cores gave.

    Attributes:
        runners: Threads that called the runtime.
        threads: Threads of each call.
        tokens_per_second: Of full batches, all runners together.
        solo_seconds: Of a single row while nothing else ran; the best of several.
    """

    runners: int
    threads: int
    tokens_per_second: float
    solo_seconds: float


def candidates(cpus: int) -> list[tuple[int, int]]:
    """Ways to share `cpus` cores, as runners and threads: all combinations of 1, 2, 4 or all threads that fit."""
    return sorted({(cpus // threads, threads) for threads in (1, 2, 4, cpus) if threads <= cpus}, reverse=True)


def choose(measurements: Sequence[Measurement]) -> RunPlan:
    """The best way to share the cores.

    Throughput comes first, as it decides what the machine can serve; what is within `SAME` of the best counts as equal,
    and then single texts decide. But a way that halves the time of a single text is worth up to a quarter of the
    throughput: a busy queue is rare on most devices, and a person who waits is not.

    Args:
        measurements: At least one.
    """
    most = max(found.tokens_per_second for found in measurements)
    fastest = min(
        (found for found in measurements if found.tokens_per_second >= SAME * most),
        key=lambda found: found.solo_seconds,
    )
    sooner = min(
        (found for found in measurements if found.tokens_per_second >= ENOUGH * most),
        key=lambda found: found.solo_seconds,
    )
    chosen = sooner if 2 * sooner.solo_seconds <= fastest.solo_seconds else fastest
    others = ", ".join(_told(found) for found in measurements if found is not chosen)
    return RunPlan(
        runners=chosen.runners,
        threads=chosen.threads,
        reason=f"measured: {_told(chosen)}" + (f"; against {others}" if others else ""),
    )


def _told(found: Measurement) -> str:
    return (
        f"{found.runners} x {found.threads} threads {found.tokens_per_second:.0f} tokens/s "
        f"and {found.solo_seconds * 1e3:.1f} ms for one text"
    )


def fixed_plan(*, cpus: int, runners: int | None, threads: int | None, on_cpu: bool) -> RunPlan | None:
    """The plan where nothing is to be measured; None where it is.

    Args:
        cpus: Cores that the process may use.
        runners: The operator's choice (`runtime.runners`), or None.
        threads: The operator's choice (`runtime.threads`), or None.
        on_cpu: Whether the CPU runs the model.
    """
    if not on_cpu:
        # Nodes that the GPU does not take run on the CPU, one at a time.
        return RunPlan(runners=runners or 1, threads=threads or 1, reason="one runner for a GPU")
    if runners or threads:
        runners = runners or max(1, cpus // (threads or 1))
        return RunPlan(runners=runners, threads=threads or max(1, cpus // runners), reason="set by the operator")
    if cpus == 1:
        return RunPlan(runners=1, threads=1, reason="one core")
    return None


def to_dict(measurements: Sequence[Measurement], *, cpus: int, budget: int) -> dict[str, object]:
    """Measurements as plain data, for the cache."""
    return {"schema": SCHEMA, "cpus": cpus, "budget": budget, "measurements": [asdict(found) for found in measurements]}


def from_dict(data: object, *, cpus: int, budget: int) -> list[Measurement] | None:
    """Measurements from the cache; None if they are not whole, or not of this many cores and this budget."""
    if not isinstance(data, dict) or (data.get("schema"), data.get("cpus"), data.get("budget")) != (
        SCHEMA,
        cpus,
        budget,
    ):
        return None
    try:
        found = [Measurement(**values) for values in data["measurements"]]
        whole = sorted(((each.runners, each.threads) for each in found), reverse=True) == candidates(cpus)
        sane = all(each.tokens_per_second > 0 and each.solo_seconds > 0 for each in found)
    except (TypeError, KeyError):
        return None
    return found if whole and sane else None


def measure(open_runs: OpenRuns, row: Mapping[str, Ids], *, cpus: int, budget: int) -> list[Measurement]:
    """Try every way to share the cores with a short piece of real work.

    Args:
        open_runs: Opens the model with a number of threads; called once for each number.
        row: One real row, int64 (1, tokens) by input: a golden one of usual length.
        cpus: Cores that the process may use.
        budget: Tokens of a full batch.

    Returns:
        One measurement for each of `candidates(cpus)`, in that order.

    Raises:
        EdgeOnnxError: What `open_runs` or the model raises.
    """
    return [
        _measured(open_runs(threads), row, runners=runners, threads=threads, budget=budget)
        for runners, threads in candidates(cpus)
    ]


def _measured(engine: Runs, row: Mapping[str, Ids], *, runners: int, threads: int, budget: int) -> Measurement:
    tokens = next(iter(row.values())).shape[1]
    engine.run(row)  # the first run also allocates
    solo = min(_seconds(engine, row) for _ in range(SOLO_RUNS))
    rows = max(1, min(budget // tokens, int(LONGEST_BATCH / solo)))
    batch = {name: np.repeat(values, rows, axis=0) for name, values in row.items()}

    def work(_: int) -> None:
        for _ in range(BATCH_RUNS):
            engine.run(batch)

    began = time.perf_counter()
    with ThreadPoolExecutor(runners) as pool:
        list(pool.map(work, range(runners)))
    seconds = time.perf_counter() - began
    return Measurement(
        runners=runners,
        threads=threads,
        tokens_per_second=runners * BATCH_RUNS * rows * tokens / seconds,
        solo_seconds=solo,
    )


def _seconds(engine: Runs, inputs: Mapping[str, Ids]) -> float:
    began = time.perf_counter()
    engine.run(inputs)
    return time.perf_counter() - began
