"""Weights that lie on a grid already: those of a model that was quantized before, as a GGUF file holds it.

Read as float, each block of 32 weights of such a matrix takes at most 16 values at equal distances (Q4_0, Q4_1, Q4_K)
or whole multiples of a scale up to 127 (Q8_0). Rounded anew to another grid they would lose precision a second time,
and at 4 bits nearly all of what the first rounding left. Put on their own grid they lose nothing:

    weight = step * level + minimum

`MatMulNBits` has whole zero points, so `minimum` must be a whole multiple of the scale. At 8 bits a scale of step / k,
with a k of 9 to 17, comes to about 1/150 of a step. At 4 bits what is left over, an offset for each block,
is multiplied by the mean of the block's inputs: the matrix gets one more column for each block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edgeonnx.quantize.decoder.blocks import Blocks, cut, grid_of, round_asymmetric, round_symmetric

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float32]

_T = TypeVar("_T", bound=np.generic)

GRID_SIZE = 32
"""Weights of a block in GGUF's quantized types."""
LEVELS = 16
FINEST = 1e-2
"""How far from a level a weight may lie, in steps: float32 keeps a step of 1/15 of the range to about 1e-6."""
DIVISORS = np.arange(9, 18, dtype=np.float32)
"""k at 8 bits: 15 steps of up to 17 parts are 255."""
SAMPLE = 64
"""Outputs that are looked at first: a float matrix is told from them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """A matrix on a grid of at most 16 levels a block.

    Attributes:
        inputs: Columns of the matrix, a multiple of `GRID_SIZE`.
        levels: uint8 (outputs, blocks, 32), 0 to 15.
        steps: float32 (outputs, blocks), above 0.
        minima: float32 (outputs, blocks).
    """

    inputs: int
    levels: NDArray[np.uint8]
    steps: Float
    minima: Float


def find_grid(weight: Float) -> Grid | None:
    """The grid that every block of a matrix lies on; None if there is a block without one.

    Args:
        weight: float32 (outputs, inputs).
    """
    if weight.shape[1] % GRID_SIZE or _grid(weight[:: max(1, len(weight) // SAMPLE)]) is None:
        return None
    return _grid(weight)


def _grid(weight: Float) -> Grid | None:
    blocks = cut(weight, GRID_SIZE)
    minima, largest = blocks.min(axis=2), blocks.max(axis=2)
    steps = np.zeros_like(minima)
    for count in range(LEVELS - 1, 0, -1):
        rest = np.nonzero(steps == 0)
        if not len(rest[0]):
            break
        step = (largest[rest] - minima[rest]) / np.float32(count)
        step = np.where(step == 0, np.float32(1), step)
        places = (blocks[rest] - minima[rest][:, None]) / step[:, None]
        fits = np.abs(places - np.rint(places)).max(axis=1) < FINEST
        steps[rest] = np.where(fits, step, 0)
    if not steps.all():
        return None
    levels = np.rint((blocks - minima[..., None]) / steps[..., None]).astype(np.uint8)
    return Grid(inputs=weight.shape[1], levels=levels, steps=steps, minima=minima)


def eight_bits(grid: Grid, size: int) -> Blocks:
    """A grid at 8 bits, as good as exact.

    Args:
        grid: The grid.
        size: Weights of a block: 16 or 32.
    """
    zero = -grid.minima / grid.steps
    wide = zero[..., None] * DIVISORS
    possible = (np.rint(wide) >= 0) & (np.rint(wide) <= 255)
    error = np.where(possible, np.abs(wide - np.rint(wide)) / DIVISORS, np.inf)
    divisor = DIVISORS[error.argmin(axis=2)]
    values = grid.levels * divisor[..., None].astype(np.uint8)
    scales = np.asarray(grid.steps / divisor, dtype=np.float32)
    zero_points = np.rint(zero * divisor)
    far = ~possible.any(axis=2)
    if far.any():  # all weights of such a block lie on one side of zero: it is rounded anew
        weights = grid.levels[far] * grid.steps[far, None] + grid.minima[far, None]
        scales[far], zero_points[far] = grid_of(weights.min(axis=1), weights.max(axis=1), 8)
        anew = np.rint(weights / scales[far, None]) + zero_points[far, None]
        values[far] = np.clip(anew, 0, 255).astype(np.uint8)
    return Blocks(
        bits=8,
        inputs=grid.inputs,
        values=_split(values, size),
        scales=_repeat(scales, size),
        zero_points=_repeat(zero_points.astype(np.uint8), size),
    )


def four_bits(grid: Grid, size: int) -> tuple[Blocks, Float | None]:
    """A grid at 4 bits, exact but for an offset in each block.

    Args:
        grid: The grid.
        size: Weights of a block: 16 or 32.

    Returns:
        The blocks, and what the weights of a block lie above them, float32 (outputs, inputs / 32); None if the zero
        points are whole and there is nothing left.
    """
    zero = np.clip(np.rint(-grid.minima / grid.steps), 0, LEVELS - 1)
    offsets = np.asarray(grid.minima + zero * grid.steps, dtype=np.float32)
    blocks = Blocks(
        bits=4,
        inputs=grid.inputs,
        values=_split(grid.levels, size),
        scales=_repeat(grid.steps, size),
        zero_points=_repeat(zero.astype(np.uint8), size),
    )
    return blocks, None if (np.abs(offsets) < FINEST * grid.steps).all() else offsets


def with_offsets(blocks: Blocks, offsets: Float) -> Blocks:
    """Add a column for each block of 32 inputs, which multiplies their mean.

    Args:
        blocks: At 4 bits.
        offsets: float32 (outputs, inputs / 32).
    """
    columns = round_asymmetric(np.asarray(offsets * np.float32(GRID_SIZE), dtype=np.float32), blocks.size, blocks.bits)
    assert blocks.zero_points is not None and columns.zero_points is not None  # noqa: S101, PT018 - both have them
    return Blocks(
        bits=blocks.bits,
        inputs=blocks.inputs + offsets.shape[1],
        values=np.concatenate([blocks.values, columns.values], axis=1),
        scales=np.concatenate([blocks.scales, columns.scales], axis=1),
        zero_points=np.concatenate([blocks.zero_points, columns.zero_points], axis=1),
    )


def with_means(rows: Float) -> Float:
    """The inputs of a matrix with offsets: float32 (rows, inputs) to (rows, inputs + inputs / 32)."""
    means = rows.reshape(len(rows), -1, GRID_SIZE).mean(axis=2)
    return np.concatenate([rows, means], axis=1)


def find_multiples(weight: Float, size: int) -> Blocks | None:
    """A matrix whose blocks are whole multiples of a scale, up to 127, as Q8_0 has them; None if it is another one.

    Args:
        weight: float32 (outputs, inputs).
        size: Weights of a block in the result: 16 or 32.
    """
    if weight.shape[1] % GRID_SIZE or _multiples(weight[:: max(1, len(weight) // SAMPLE)]) is None:
        return None
    found = _multiples(weight)
    if found is None:
        return None
    return Blocks(
        bits=8,
        inputs=weight.shape[1],
        values=_split(found.values, size),
        scales=_repeat(found.scales, size),
        zero_points=None,
    )


def _multiples(weight: Float) -> Blocks | None:
    rounded = round_symmetric(weight, GRID_SIZE, 8)
    far = np.abs(rounded.floats() - weight).reshape(*rounded.values.shape) > FINEST * rounded.scales[..., None]
    return None if far.any() else rounded


def _split(values: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(len(values), -1, size)


def _repeat(per_block: NDArray[_T], size: int) -> NDArray[_T]:
    return np.repeat(per_block, GRID_SIZE // size, axis=1)
