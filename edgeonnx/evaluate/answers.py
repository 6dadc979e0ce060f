"""A graph's own answers to the texts of a reference, row by row, in batches that cost little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.ports import FloatTensors, IntTensors
    from edgeonnx.model.reference import Reference

    Run = Callable[[IntTensors], FloatTensors]

TOKEN_BUDGET = 512
"""Tokens of one batch, padding included: the work of a small encoder then stays in the cache of one core."""


def plan_batches(lengths: Sequence[int], *, budget: int = TOKEN_BUDGET) -> tuple[tuple[int, ...], ...]:
    """Lay rows out in batches with little padding.

    Args:
        lengths: Tokens of each row.
        budget: Rows x longest row of a batch is at most this; a row that is longer alone makes a batch of its own.

    Returns:
        Every row once, sorted by length.
    """
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):  # so the newest row is the longest
        if batches and (len(batches[-1]) + 1) * lengths[row] <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return tuple(tuple(batch) for batch in batches)


def answer_rows(run: Run, reference: Reference, *, budget: int = TOKEN_BUDGET) -> tuple[FloatTensors, ...]:
    """Run a graph over the inputs of a reference.

    Args:
        run: Runs the graph.
        reference: The inputs, and the shapes of the outputs.
        budget: Tokens of a batch.

    Returns:
        As `Reference.outputs`: float32 by output name for each row, (1, ...) or (1, tokens of the row, ...).

    Raises:
        ValidationError: The graph does not run, or an output is missing or has another shape.
    """
    lengths = reference.lengths
    answers: list[FloatTensors] = [{} for _ in lengths]
    for rows in plan_batches(lengths, budget=budget):
        inputs, _ = reference.batch(rows, max(lengths[row] for row in rows))
        for row, own in zip(rows, own_outputs(run(inputs), reference, rows), strict=True):
            answers[row] = own
    return tuple(answers)


def own_outputs(outputs: FloatTensors, reference: Reference, rows: Sequence[int]) -> list[FloatTensors]:
    """Take a batch's outputs apart.

    Args:
        outputs: What the graph gave for a batch.
        reference: The shapes that each row's outputs must have.
        rows: The rows of the batch, in its order.

    Returns:
        For each row its own part, copied (a view would keep the whole batch in memory), as float32; per-token outputs
        are cut to the row's length.

    Raises:
        ValidationError: An output is missing or has another shape.
    """
    return [
        {
            name: _own(name, outputs, place, expected.shape, len(rows))
            for name, expected in reference.outputs[row].items()
        }
        for place, row in enumerate(rows)
    ]


def _own(name: str, outputs: FloatTensors, place: int, shape: tuple[int, ...], rows: int) -> NDArray[np.float32]:
    where = f"output {name}"
    if name not in outputs:
        raise ValidationError(
            "an output is missing", where=where, expected=name, found=", ".join(outputs) or "no output"
        )
    whole = np.asarray(outputs[name])
    if whole.ndim != len(shape) or len(whole) != rows:
        raise ValidationError(
            "an output has another shape", where=where, expected=f"{rows} rows of {shape[1:]}", found=str(whole.shape)
        )
    part = whole[place : place + 1]
    if whole.ndim == 3:  # per token: what is beyond the row is padding
        part = part[:, : shape[1]]
    if part.shape != shape:
        raise ValidationError("an output has another shape", where=where, expected=str(shape), found=str(part.shape))
    return np.array(part, dtype=np.float32)
