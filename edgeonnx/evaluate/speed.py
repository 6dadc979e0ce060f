"""How fast graphs are on this machine: texts per second in batches, and the time of one text alone.

Graphs that are to be compared are measured together, pass by pass in turn: what else the machine does then hits all of
them alike.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.evaluate.answers import TOKEN_BUDGET, plan_batches
from edgeonnx.evaluate.texts import spread
from edgeonnx.spec.timings import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgeonnx.evaluate.answers import Run
    from edgeonnx.model.ports import IntTensors
    from edgeonnx.model.reference import Reference

    Clock = Callable[[], float]

ROWS = 128
"""At most so many texts make a pass, evenly spread over the lengths: one pass of fp32 then takes about a second."""
SINGLE_ROWS = 48
"""Texts that are run alone in one round, evenly spread over the lengths."""
SECONDS = 1.5
SINGLE_SHARE = 1 / 3
"""Part of the time that goes to texts alone."""


def measure_speed(
    run: Run,
    reference: Reference,
    *,
    threads: int,
    seconds: float = SECONDS,
    rows: int = ROWS,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Measure one graph; see `measure_together`."""
    name = "graph"
    runs = {name: run}
    return measure_together(runs, reference, threads=threads, seconds=seconds, rows=rows, clock=clock)[name]


def measure_together(
    runs: Mapping[str, Run],
    reference: Reference,
    *,
    threads: int,
    seconds: float = SECONDS,
    rows: int = ROWS,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Measure several graphs in turn, with the same texts.

    Throughput is that of the best whole pass: noise only ever makes a pass slower. Latency is the median and the 95th
    percentile over all runs of a text alone.

    Args:
        runs: Functions that run the graphs, opened with `threads` threads, by name.
        reference: The texts' inputs.
        threads: Threads of one run; it is reported, not set.
        seconds: Time for each graph. One pass is always made, however long it takes.
        rows: At most so many texts.
        clock: Seconds, from any start.

    Raises:
        ValidationError: A graph does not run.
    """
    if not runs:
        return {}
    ordered = sorted(range(len(reference.texts)), key=lambda row: reference.lengths[row])
    chosen = [ordered[index] for index in spread(len(ordered), rows)]
    batches = _batches(reference, chosen)
    singles = [reference.inputs[chosen[index]] for index in spread(len(chosen), SINGLE_ROWS)]
    for run in runs.values():  # the first run of a shape allocates; it is no speed
        run(batches[-1])
        run(singles[0])
    share = seconds * len(runs)
    passes = _rounds(runs, batches, share * (1 - SINGLE_SHARE), clock)
    alone = _rounds(runs, singles, share * SINGLE_SHARE, clock)
    tokens = sum(reference.lengths[row] for row in chosen)
    return {name: _timing(threads, len(chosen), tokens, passes[name], alone[name]) for name in runs}


def _batches(reference: Reference, rows: Sequence[int]) -> list[IntTensors]:
    """The padded inputs, made before the clock runs."""
    lengths = [reference.lengths[row] for row in rows]
    groups = plan_batches(lengths, budget=TOKEN_BUDGET)
    return [
        reference.batch([rows[place] for place in group], max(lengths[place] for place in group))[0] for group in groups
    ]


def _rounds(
    runs: Mapping[str, Run], work: Sequence[IntTensors], seconds: float, clock: Clock
) -> dict[str, list[list[float]]]:
    """Let every graph do all the work in turn, in rounds that each begin with another graph.

    A graph does the whole of it before the next one begins: run by run in turn, each would find the caches full of the
    other's weights and its threads still spinning, which no device that serves one model sees.

    Returns:
        By graph, for each pass the seconds that each piece took. There is one round, and more as long as another fits
        into the time.
    """
    took: dict[str, list[list[float]]] = {name: [] for name in runs}
    names = list(runs)
    start = last = clock()
    while True:
        for name in names:
            took[name].append([_time(runs[name], inputs, clock) for inputs in work])
        now = clock()
        if now - start + (now - last) > seconds:
            return took
        last = now
        names = [*names[1:], names[0]]


def _time(run: Run, inputs: IntTensors, clock: Clock) -> float:
    start = clock()
    run(inputs)
    return clock() - start


def _timing(
    threads: int, texts: int, tokens: int, passes: Sequence[Sequence[float]], singles: Sequence[Sequence[float]]
) -> Timing:
    best = max(min(sum(times) for times in passes), 1e-9)  # a clock may be too coarse for a tiny graph
    alone = np.concatenate(singles)
    return Timing(
        threads=threads,
        texts=texts,
        tokens=tokens,
        texts_per_second=texts / best,
        tokens_per_second=tokens / best,
        latency_ms=float(np.median(alone)) * 1e3,
        latency_p95_ms=float(np.percentile(alone, 95)) * 1e3,
    )


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """What speed is measured on: `processor`, `architecture`, `cores` (those that this process may use), `onnxruntime`.

    Args:
        cpuinfo: Where Linux describes its processors.
    """
    return {
        "processor": _processor(cpuinfo),
        "architecture": platform.machine() or "unknown",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "onnxruntime": _onnxruntime(),
    }


def _processor(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    parts = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in parts}
    # x86 names the processor; ARM names at most the board.
    return fields.get("model name") or fields.get("Model") or platform.processor() or "unknown"


def _onnxruntime() -> str:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
