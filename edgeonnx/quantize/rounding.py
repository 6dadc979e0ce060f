"""The arithmetic of row-wise int8, in NumPy: how weights and activations are rounded.

Weights are signed and symmetric, one scale per output channel. Activations are unsigned, one scale per row, so that a
row's numbers depend on no other row. This is what the graphs of `rowwise.py` compute, and what the search of
`migrate.py` simulates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float32]

ACTIVATION_MAX = 255
"""Largest quantized activation: uint8."""
CENTRE = 128
"""The zero point of activations that may have either sign; they use 1 to 255."""
WEIGHT_LIMITS = {8: 127, 7: 64}
"""Largest magnitude of a weight by its bits. 64 and not 63: two products of 255 x 64 still fit into 16 bits."""
MOST_CLIPPED = 1.0
"""An earlier scale is kept while the largest element of its channel lies at most so many steps beyond the last one.

A fine-tune moves most weights by less than a step. Of the hundreds of elements of a channel, one or two are then cut by
at most a step, where rounding already moves each of them by up to half a step.
"""
LEAST_USED = 0.9
"""An earlier scale is kept while its channel uses at least this share of the steps: a coarser one costs precision."""


def quantize_weight(weight: Float, limit: int, earlier: Float | None = None) -> tuple[NDArray[np.int8], Float]:
    """Round a weight, a scale per output channel.

    Args:
        weight: float32 (inputs, outputs).
        limit: Largest magnitude of a quantized element.
        earlier: Scales of an earlier weight, float32 (outputs,): kept where they still fit (`keep_scales`). With equal
            scales, only elements that moved by a step change.

    Returns:
        int8 (inputs, outputs) and float32 (outputs,): their product approximates `weight`. The scale of a channel
        of zeros is 1.
    """
    largest = np.abs(weight).max(axis=0)
    scale = (largest / np.float32(limit)).astype(np.float32)
    scale[scale == 0] = 1
    if earlier is not None:
        scale = keep_scales(largest, scale, limit, earlier)
    return np.clip(np.rint(weight / scale), -limit, limit).astype(np.int8), scale


def keep_scales(largest: Float, own: Float, limit: int, earlier: Float) -> Float:
    """The earlier scale of each channel where it still fits the weight, the channel's own scale elsewhere.

    Args:
        largest: Largest magnitude per channel, float32 (outputs,).
        own: The scale that each channel would get by itself, float32 (outputs,).
        limit: Largest magnitude of a quantized element.
        earlier: float32 (outputs,). What is no scale (zero, negative, not finite) fits nothing.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        steps = largest / earlier
    fits = (steps <= limit + MOST_CLIPPED) & (steps >= LEAST_USED * limit)
    return np.where(fits, earlier, own).astype(np.float32)


def quantize_table(table: Float, earlier: Float | None = None) -> tuple[NDArray[np.int8], Float]:
    """Round an embedding table, a scale per entry: int8 (entries, width) and float32 (entries, 1).

    Args:
        table: float32 (entries, width).
        earlier: Scales of an earlier table, float32 (entries, 1), kept where they still fit.
    """
    scales = None if earlier is None else earlier[:, 0]
    rounded, scale = quantize_weight(np.ascontiguousarray(table.T), WEIGHT_LIMITS[8], scales)
    return np.ascontiguousarray(rounded.T), scale[:, None]


def round_rows(rows: Float) -> Float:
    """What a graph sees of activations of either sign: float32 (rows, width), rounded to 255 steps a row."""
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(CENTRE - 1)
    scale[scale == 0] = 1
    return np.asarray(np.rint(rows / scale) * scale)


def round_tensor(rows: Float) -> Float:
    """What a graph with one fixed scale sees: float32 (rows, width), the scale taken from the largest of all rows."""
    scale = np.float32(np.abs(rows).max(initial=0.0) / np.float32(CENTRE - 1)) or np.float32(1)
    return np.asarray(np.rint(rows / scale) * scale, dtype=np.float32)


def round_bounded_rows(rows: Float, lower_bound: float, zero_point: int) -> Float:
    """What a graph sees of activations that are never below `lower_bound`.

    The zero point is one constant for all rows, so that integer matrix products need no correction by row; the scale
    is as large as it takes to hold both the row's largest element and `lower_bound`.

    Args:
        rows: float32 (rows, width).
        lower_bound: At most 0.
        zero_point: Steps below zero, 0 to 254.
    """
    scale = np.maximum(
        rows.max(axis=1, keepdims=True) / np.float32(ACTIVATION_MAX - zero_point), floor_of(lower_bound, zero_point)
    )
    steps = np.clip(np.rint(rows / scale), -zero_point, ACTIVATION_MAX - zero_point)
    return np.asarray(steps * scale, dtype=np.float32)


def floor_of(lower_bound: float, zero_point: int) -> np.float32:
    """The smallest scale with which `zero_point` steps reach down to `lower_bound`; never 0, as rows may be."""
    return np.float32(max(-lower_bound / max(zero_point, 1), 1e-12))
