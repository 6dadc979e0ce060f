"""The arithmetic of weights in blocks, and the form in which `MatMulNBits` reads them.

A matrix is held as (outputs, inputs). Each run of `size` inputs of an output is a block with a scale and a zero point
of its own:

    weight = scale * (value - zero point),    value in 0 ... 2**bits - 1

Without a stored zero point it is 2**(bits - 1). The last block is filled up with weights of zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

ACTIVATION_LIMIT = 127
"""Largest magnitude of an activation at accuracy level 4."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """A matrix in blocks.

    Attributes:
        bits: 8 or 4.
        inputs: Columns of the matrix; the last block may reach beyond them.
        values: uint8 (outputs, blocks, size), one weight each.
        scales: float32 (outputs, blocks).
        zero_points: uint8 (outputs, blocks), or None.
    """

    bits: int
    inputs: int
    values: Bytes
    scales: Float
    zero_points: Bytes | None

    @property
    def size(self) -> int:
        """Weights of a block."""
        return int(self.values.shape[2])

    def floats(self) -> Float:
        """The weights that the kernel multiplies by: float32 (outputs, inputs)."""
        zero: Float | np.float32 = np.float32(1 << (self.bits - 1))
        if self.zero_points is not None:
            zero = self.zero_points.astype(np.float32)[..., None]
        weights = (self.values.astype(np.float32) - zero) * self.scales[..., None]
        return weights.reshape(len(weights), -1)[:, : self.inputs]

    def every(self, stride: int) -> Blocks:
        """One output in `stride`."""
        zero_points = None if self.zero_points is None else self.zero_points[::stride]
        return replace(self, values=self.values[::stride], scales=self.scales[::stride], zero_points=zero_points)

    def packed_values(self) -> Bytes:
        """uint8 (outputs, blocks, size * bits / 8), the low half of a byte first."""
        return self.values if self.bits == 8 else _pair(self.values)

    def packed_zero_points(self) -> Bytes | None:
        """uint8 (outputs, ceil(blocks * bits / 8)), or None."""
        if self.zero_points is None or self.bits == 8:
            return self.zero_points
        odd = self.zero_points.shape[1] % 2
        return _pair(np.pad(self.zero_points, ((0, 0), (0, odd)), constant_values=8))


def _pair(values: Bytes) -> Bytes:
    return np.asarray(values[..., 0::2] | values[..., 1::2] << 4, dtype=np.uint8)


def cut(weight: Float, size: int) -> Float:
    """A matrix, float32 (outputs, inputs), as float32 (outputs, blocks, size), filled up with zeros."""
    outputs, inputs = weight.shape
    missing = -inputs % size
    if missing:
        weight = np.pad(weight, ((0, 0), (0, missing)))
    return np.ascontiguousarray(weight).reshape(outputs, -1, size)


def grid_of(smallest: Float, largest: Float, bits: int) -> tuple[Float, Float]:
    """Scale and zero point that hold a range and 0.

    Args:
        smallest: float32, any shape.
        largest: The same shape.
        bits: 8 or 4.

    Returns:
        Scales, never 0, and zero points (whole numbers), float32 of the same shape.
    """
    steps = np.float32((1 << bits) - 1)
    low, high = np.minimum(smallest, 0), np.maximum(largest, 0)
    scale = np.asarray((high - low) / steps, dtype=np.float32)
    scale[scale == 0] = 1
    return scale, np.clip(np.rint(-low / scale), 0, steps)


def round_asymmetric(weight: Float, size: int, bits: int) -> Blocks:
    """Round each weight by itself, to a grid from the smallest to the largest weight of its block."""
    blocks = cut(weight, size)
    scale, zero = grid_of(blocks.min(axis=2), blocks.max(axis=2), bits)
    values = np.clip(np.rint(blocks / scale[..., None]) + zero[..., None], 0, (1 << bits) - 1)
    return Blocks(
        bits=bits,
        inputs=weight.shape[1],
        values=values.astype(np.uint8),
        scales=scale,
        zero_points=zero.astype(np.uint8),
    )


def round_symmetric(weight: Float, size: int, bits: int) -> Blocks:
    """Round each weight by itself, to a grid as wide below zero as above."""
    blocks = cut(weight, size)
    middle = 1 << (bits - 1)
    scale = np.asarray(np.abs(blocks).max(axis=2) / np.float32(middle - 1), dtype=np.float32)
    divisor = np.where(scale == 0, np.float32(1), scale)[..., None]
    values = np.clip(np.rint(blocks / divisor), 1 - middle, middle - 1) + middle
    return Blocks(bits=bits, inputs=weight.shape[1], values=values.astype(np.uint8), scales=scale, zero_points=None)


def round_activations(rows: Float, size: int) -> Float:
    """What the kernel sees of activations at accuracy level 4.

    Args:
        rows: float32 (rows, inputs).
        size: Inputs that share a scale.
    """
    blocks = cut(rows, size)
    scale = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(ACTIVATION_LIMIT)
    scale[scale == 0] = 1
    rounded = np.asarray(np.rint(blocks / scale) * scale, dtype=np.float32)
    return rounded.reshape(len(rows), -1)[:, : rows.shape[1]]
