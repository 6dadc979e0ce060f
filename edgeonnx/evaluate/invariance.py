"""Does an answer depend on the texts that happen to share its batch, or on its padding?

A recipe that scales activations over the whole batch gives a text another answer next to other texts. So a variant's
answer to each text alone and unpadded is compared with its own answers in batches: of several sizes, in shuffled order,
sorted, padded beyond the longest row, and next to a much longer row. The source plays no part: how near the answer is
to the source's is fidelity.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.bundle.golden import MASK_INPUT, compare_outputs
from edgeonnx.evaluate.answers import own_outputs
from edgeonnx.evaluate.metrics import METRICS, rounded
from edgeonnx.evaluate.texts import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgeonnx.evaluate.answers import Run
    from edgeonnx.model.ports import FloatTensors, IntTensors
    from edgeonnx.model.reference import Reference

ROWS = 64
SIZES = (2, 7, 32)
SORTED_SIZE = 8
EXTRA_PADDING = 5
LONG_ROW = 96
"""Rows with more tokens are run in batches of `LONG_BATCH`: 32 such rows take seconds and prove no more."""
LONG_BATCH = 3
NEIGHBOURS = 24
"""So many short rows are run next to a long one; all rows there would cost as much as everything else together."""
SEED = 3


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch: what it is for, which rows in which order, filled up to which width in tokens."""

    kind: str
    rows: tuple[int, ...]
    width: int


@dataclass(frozen=True, kw_only=True)
class Invariance:
    """How much answers depend on what shares their batch.

    Attributes:
        metrics: `invariance_min`, the smallest cosine of an answer alone and in a batch, and `invariance_diff`, the
            largest absolute difference, divided by the largest magnitude of the batch's output where that is above 1.
            An output of a single value has no angle: a difference d counts as the cosine of two unit vectors that far
            apart, 1 - d^2 / 2.
        texts: Number of texts.
        batches: Number of batches of each kind.
        worst_kind: Kind of the batch in which `invariance_min` was found.
    """

    metrics: dict[str, float]
    texts: int
    batches: dict[str, int]
    worst_kind: str


def plan_invariance(lengths: Sequence[int], *, max_length: int, limit: int = ROWS) -> tuple[Batch, ...]:
    """Lay out the batches that answers are compared in. Pure, and the same for the same lengths.

    Args:
        lengths: Tokens of each row.
        max_length: No batch is wider than this (or than its longest row).
        limit: At most so many rows take part, evenly spread over the lengths.
    """
    ordered = sorted(range(len(lengths)), key=lambda row: lengths[row])
    chosen = _spread_over(ordered, limit)
    shuffled = random.Random(SEED).sample(chosen, len(chosen))  # noqa: S311 - a fixed order, no secret
    short = [row for row in shuffled if lengths[row] <= LONG_ROW]
    long = [row for row in shuffled if lengths[row] > LONG_ROW]
    groups: list[tuple[str, tuple[int, ...], int]] = [("alone, padded", (row,), EXTRA_PADDING) for row in chosen]
    for size in SIZES:
        groups += [(f"shuffled, {size}", rows, EXTRA_PADDING * (place % 2)) for place, rows in _cut(short, size)]
    ascending = [row for row in chosen if lengths[row] <= LONG_ROW]
    groups += [(f"sorted, {SORTED_SIZE}", rows, 0) for _, rows in _cut(ascending, SORTED_SIZE)]
    groups += [(f"long, {LONG_BATCH}", rows, EXTRA_PADDING) for _, rows in _cut(long, LONG_BATCH)]
    groups += [("next to a long row", rows, 0) for rows in _next_to_long(ascending, long, lengths)]
    return tuple(_batch(kind, rows, extra, lengths, max_length) for kind, rows, extra in groups)


def _spread_over(ordered: list[int], limit: int) -> list[int]:
    """Evenly spread, the longest included: it pads the others most."""
    chosen = [ordered[index] for index in spread(len(ordered), limit)]
    return [*chosen[:-1], ordered[-1]]


def _cut(rows: Sequence[int], size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    for start in range(0, len(rows), size):
        yield start // size, tuple(rows[start : start + size])


def _next_to_long(ascending: list[int], long: list[int], lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Short rows in groups around one row that is much longer, but no longer than it must be."""
    if not ascending:
        return
    neighbour = min(long, key=lambda row: lengths[row]) if long else ascending[-1]
    others = [row for row in ascending if row != neighbour]
    chosen = [others[index] for index in spread(len(others), NEIGHBOURS)]
    for _, rows in _cut(chosen, SORTED_SIZE - 1):
        yield (*rows, neighbour)


def _batch(kind: str, rows: tuple[int, ...], extra: int, lengths: Sequence[int], max_length: int) -> Batch:
    longest = max(lengths[row] for row in rows)
    return Batch(kind=kind, rows=rows, width=max(longest, min(longest + extra, max_length)))


def measure_invariance(run: Run, reference: Reference, *, max_length: int, rows: int = ROWS) -> Invariance:
    """Compare a variant's answers alone with its answers in batches.

    Args:
        run: Runs the variant's graph.
        reference: The inputs; its outputs only tell the names and shapes.
        max_length: Longest row that the model takes, in tokens.
        rows: At most so many texts take part; each is run some ten times.

    Raises:
        ValidationError: The graph does not run, or an output is missing or changes its shape.
    """
    plan = plan_invariance(reference.lengths, max_length=max_length, limit=rows)
    taking_part = sorted({row for batch in plan for row in batch.rows})
    alone = [own_outputs(run(reference.inputs[row]), reference, (row,))[0] for row in taking_part]
    place = {row: index for index, row in enumerate(taking_part)}
    own = replace(
        reference,
        texts=tuple(reference.texts[row] for row in taking_part),
        pairs=None,
        inputs=tuple(reference.inputs[row] for row in taking_part),
        outputs=tuple(alone),
    )
    found = []
    for batch in plan:
        inputs, expected = own.batch([place[row] for row in batch.rows], batch.width)
        found.append((*_compare(expected, run(inputs), inputs), batch.kind))
    cosine, _, kind = min(found, key=lambda item: (item[0], -item[1]))
    return Invariance(
        metrics=rounded({"invariance_min": cosine, "invariance_diff": max(diff for _, diff, _ in found)}),
        texts=len(taking_part),
        batches=dict(Counter(batch.kind for batch in plan)),
        worst_kind=kind,
    )


def _compare(expected: FloatTensors, actual: FloatTensors, inputs: IntTensors) -> tuple[float, float]:
    """Smallest cosine and largest scaled difference over all outputs."""
    cosine, largest = 1.0, 0.0
    for name, value in expected.items():
        found = compare_outputs({name: value}, actual, inputs[MASK_INPUT])
        diff = found.scaled_diff
        if not np.isfinite(diff):  # equal infinities would count as equal vectors
            return METRICS["invariance_min"].worst, METRICS["invariance_diff"].worst
        cosine = min(cosine, found.min_cosine if value.shape[-1] > 1 else 1.0 - diff * diff / 2.0)
        largest = max(largest, diff)
    return cosine, largest
