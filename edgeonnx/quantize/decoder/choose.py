"""Choosing how the matrices of a site are quantized: the way with the smallest error of their output on real text.

Smoothing (SmoothQuant, Xiao et al., 2022, https://arxiv.org/abs/2211.10438) divides a channel of the activations by s
and multiplies the channel's weights by s, so that no channel stands out of its block. Behind a norm it costs nothing:
the norm multiplies by a constant for each channel anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.quantize.decoder.blocks import Blocks, round_activations, round_asymmetric
from edgeonnx.quantize.decoder.feedback import round_with_feedback, spreading
from edgeonnx.quantize.decoder.grids import (
    GRID_SIZE,
    eight_bits,
    find_grid,
    find_multiples,
    four_bits,
    with_means,
    with_offsets,
)
from edgeonnx.quantize.migrate import smoothing_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.quantize.decoder.activations import Activations
    from edgeonnx.quantize.decoder.recipe import WeightFormat, WeightRecipe

    Float = NDArray[np.float32]

JUDGED_ROWS = 128
JUDGED_OUTPUTS = 1024
"""Rows of activations and outputs of a matrix on which the ways are compared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """How the matrices of a site are quantized.

    Attributes:
        matrices: Each matrix in blocks.
        smoothing: s, float32 (inputs,): what the weights are multiplied by, and the norm is divided by. None: nothing.
        means: Whether the matrices multiply the means of blocks of 32 inputs too.
    """

    matrices: tuple[Blocks, ...]
    smoothing: Float | None
    means: bool


def choose(
    weights: Sequence[Float],
    seen: Activations | None,
    form: WeightFormat,
    recipe: WeightRecipe,
    *,
    may_smooth: bool,
) -> Choice:
    """Choose for one site.

    Args:
        weights: Its matrices, float32 (outputs, inputs).
        seen: What they read; None if there was no calibration: nothing is smoothed then, and nothing fed back.
        form: Their form.
        recipe: What may be tried.
        may_smooth: Whether the graph can hold a smoothing here.
    """
    exact = _exact(weights, form) if recipe.exact else None
    if seen is None:
        return exact or Choice(matrices=_round(weights, form), smoothing=None, means=False)
    smoothings: list[Float | None] = [None]
    if may_smooth:
        together = np.concatenate([_sample(weight) for weight in weights]).T
        smoothings += [smoothing_of(seen.largest, together, strength) for strength in recipe.strengths]
    judge = _Judge(weights, seen, form, recipe)
    errors = [judge.rounded(smoothing) for smoothing in smoothings]
    best = int(np.argmin(errors))
    if exact is not None and judge.of(exact) <= errors[best]:
        return exact
    return _settle(weights, seen, form, recipe, smoothings[best])


def _settle(
    weights: Sequence[Float], seen: Activations, form: WeightFormat, recipe: WeightRecipe, smoothing: Float | None
) -> Choice:
    """Round whole matrices, the smoothing decided."""
    if smoothing is not None:
        weights = [np.asarray(weight * smoothing, dtype=np.float32) for weight in weights]
    if not recipe.feedback:
        return Choice(matrices=_round(weights, form), smoothing=smoothing, means=False)
    factor = spreading(seen.rows if smoothing is None else np.asarray(seen.rows / smoothing, dtype=np.float32))
    matrices = tuple(round_with_feedback(weight, factor, form.block_size, form.bits) for weight in weights)
    return Choice(matrices=matrices, smoothing=smoothing, means=False)


def _round(weights: Sequence[Float], form: WeightFormat) -> tuple[Blocks, ...]:
    return tuple(round_asymmetric(weight, form.block_size, form.bits) for weight in weights)


def _sample(weight: Float) -> Float:
    """Outputs evenly spread over a matrix."""
    return weight[:: _stride(len(weight))]


def _stride(outputs: int) -> int:
    return max(1, outputs // JUDGED_OUTPUTS)


def _exact(weights: Sequence[Float], form: WeightFormat) -> Choice | None:
    """The matrices on their own grids, if every one of them has one that the form can hold."""
    if form.block_size > GRID_SIZE:
        return None
    if form.bits == 8:
        found = [_exact_eight(weight, form.block_size) for weight in weights]
        known = tuple(item for item in found if item is not None)
        return Choice(matrices=known, smoothing=None, means=False) if len(known) == len(found) else None
    grids = [find_grid(weight) for weight in weights]
    pairs = [four_bits(grid, form.block_size) for grid in grids if grid is not None]
    if len(pairs) < len(weights):
        return None
    if all(offsets is None for _, offsets in pairs):
        return Choice(matrices=tuple(blocks for blocks, _ in pairs), smoothing=None, means=False)
    nothing = [np.zeros((len(weight), weight.shape[1] // GRID_SIZE), dtype=np.float32) for weight in weights]
    matrices = tuple(
        with_offsets(blocks, none if offsets is None else offsets)
        for (blocks, offsets), none in zip(pairs, nothing, strict=True)
    )
    return Choice(matrices=matrices, smoothing=None, means=True)


def _exact_eight(weight: Float, size: int) -> Blocks | None:
    grid = find_grid(weight)
    return eight_bits(grid, size) if grid is not None else find_multiples(weight, size)


class _Judge:
    """Measures ways on a sample of rows and outputs.

    Args:
        weights: float32 (outputs, inputs) each.
        seen: What they read.
        form: Their form.
        recipe: How activations are rounded.
    """

    def __init__(self, weights: Sequence[Float], seen: Activations, form: WeightFormat, recipe: WeightRecipe) -> None:
        self._weights = [_sample(weight) for weight in weights]
        self._rows = seen.rows[:: max(1, len(seen.rows) // JUDGED_ROWS)]
        self._form = form
        self._rounds = recipe.accuracy_level == 4
        self._expected = [self._rows @ weight.T for weight in self._weights]

    def rounded(self, smoothing: Float | None) -> float:
        """The error of plain rounding: sum of squares over all outputs."""
        s = np.float32(1) if smoothing is None else smoothing
        matrices = [
            round_asymmetric(np.asarray(weight * s, dtype=np.float32), self._form.block_size, self._form.bits).floats()
            for weight in self._weights
        ]
        return self._error(np.asarray(self._rows / s, dtype=np.float32), matrices)

    def of(self, choice: Choice) -> float:
        """The error of a choice without smoothing."""
        rows = with_means(self._rows) if choice.means else self._rows
        return self._error(rows, [blocks.every(_stride(len(blocks.values))).floats() for blocks in choice.matrices])

    def _error(self, rows: Float, matrices: Sequence[Float]) -> float:
        if self._rounds:
            rows = round_activations(rows, self._form.block_size)
        total = 0.0
        for matrix, expected in zip(matrices, self._expected, strict=True):
            total += float(np.square(rows @ matrix.T - expected, dtype=np.float64).sum())
        return float(f"{total:.3e}")  # the choice must not hang on the last bits of a sum
