"""Rounding with feedback: the error of each weight is made good by the weights that are not rounded yet.

The method of GPTQ (Frantar et al., 2022, https://arxiv.org/abs/2210.17323): with H = X'X of the inputs X that a matrix
multiplies, the weights of an input are rounded one input after the other, and the error is spread over the later
inputs so that the output X W' changes least. All outputs are rounded at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.quantize.decoder.blocks import Blocks, grid_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float32]

DAMPING = 0.01
"""Part of the mean of H's diagonal that is added to it: the calibration text is a sample, and H may be singular."""
SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Parts of a block's range that its grid may span at 4 bits: cutting the largest weight can pay for finer steps."""
CHUNK = 1 << 12
"""Outputs that are rounded at once: their weights stay in the cache."""


def spreading(rows: Float) -> Float:
    """How errors are spread: the upper Cholesky factor of the inverse of the damped H.

    Args:
        rows: float32 (rows, inputs): what the matrix multiplies.

    Returns:
        float32 (inputs, inputs).
    """
    moments = (rows.T @ rows).astype(np.float64)
    diagonal = np.diag_indices_from(moments)
    # An input that is always zero costs nothing, however its weight is rounded.
    moments[diagonal] += DAMPING * moments[diagonal].mean() + np.finfo(np.float32).tiny
    inverse = np.linalg.inv(moments)
    return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T, dtype=np.float32)


def round_with_feedback(weight: Float, factor: Float, size: int, bits: int) -> Blocks:
    """Round a matrix.

    Args:
        weight: float32 (outputs, inputs).
        factor: What `spreading` gave for its inputs.
        size: Weights of a block.
        bits: 8 or 4.
    """
    parts = [_round(weight[start : start + CHUNK], factor, size, bits) for start in range(0, len(weight), CHUNK)]
    values, scales, zero_points = (np.concatenate(items) for items in zip(*parts, strict=True))
    return Blocks(bits=bits, inputs=weight.shape[1], values=values, scales=scales, zero_points=zero_points)


def _round(weight: Float, factor: Float, size: int, bits: int) -> tuple[NDArray[np.uint8], Float, NDArray[np.uint8]]:
    """uint8 (outputs, blocks, size), float32 (outputs, blocks) and uint8 (outputs, blocks)."""
    outputs, inputs = weight.shape
    count, most = -(-inputs // size), (1 << bits) - 1
    left = np.array(weight.T, dtype=np.float32, order="C")  # an input's weights lie together
    values = np.zeros((count * size, outputs), dtype=np.uint8)
    scales, zeros = np.empty((count, outputs), dtype=np.float32), np.empty((count, outputs), dtype=np.uint8)
    for block in range(count):
        first, end = block * size, min(inputs, (block + 1) * size)
        scale, zero = _grid(left[first:end], np.square(1 / np.diag(factor)[first:end]), bits)
        errors = np.empty((end - first, outputs), dtype=np.float32)
        for place in range(first, end):
            rounded = np.clip(np.rint(left[place] / scale) + zero, 0, most)
            error = (left[place] - (rounded - zero) * scale) / factor[place, place]
            left[place + 1 : end] -= factor[place, place + 1 : end, None] * error
            values[place], errors[place - first] = rounded, error
        left[end:] -= factor[first:end, end:].T @ errors
        values[end : (block + 1) * size] = zero  # weights of zero fill the last block up
        scales[block], zeros[block] = scale, zero
    shaped = np.ascontiguousarray(values.T).reshape(outputs, count, size)
    return shaped, np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T)


def _grid(block: Float, cost: Float, bits: int) -> tuple[Float, Float]:
    """Scale and zero point of a block, float32 (outputs,) each: those with the smallest error.

    Args:
        block: float32 (size, outputs).
        cost: What an error of each input costs, float32 (size,).
        bits: 8 (the whole range is taken) or 4.
    """
    low, high = block.min(axis=0), block.max(axis=0)
    best = grid_of(low, high, bits)
    if bits == 8:
        return best
    least = np.full(low.shape, np.inf, dtype=np.float32)
    for shrink in SHRINKS:
        scale, zero = grid_of(low * np.float32(shrink), high * np.float32(shrink), bits)
        values = np.clip(np.rint(block / scale) + zero, 0, (1 << bits) - 1)
        error = cost @ np.square((values - zero) * scale - block)
        better = error < least
        best = np.where(better, scale, best[0]), np.where(better, zero, best[1])
        least = np.minimum(least, error)
    return best
