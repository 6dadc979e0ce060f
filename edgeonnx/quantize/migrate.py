"""Moving outliers of activations into weights, as strongly as each group of layers wants it.

A few channels of an encoder's activations are many times larger than the others, and a scale per row then leaves the
others few steps. As (x / s) (s W) = x W for any positive s per input channel, part of that range can move into the
weights, which have steps to spare: s_j = max|x_j|^a / max|W_j|^(1-a), from SmoothQuant (Xiao et al., 2023, equation
4), normalized to a geometric mean of 1. The strength a is searched per group, by the error that the group's own
output gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.quantize.rounding import quantize_weight, round_bounded_rows, round_rows, round_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Float = NDArray[np.float32]

STRENGTHS = (0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
ZERO_POINTS = (8, 16, 24, 32)
STEPS_PER_OCTAVE = 8
TINY = 1e-5
GAIN = 0.9
"""A migration that leaves more than this share of the error is not worth its node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Activations:
    """What calibration saw of one tensor.

    Attributes:
        largest: Largest magnitude per channel, float32 (inputs,).
        rows: A sample of its rows, float32 (rows, inputs).
    """

    largest: Float
    rows: Float


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupPlan:
    """How the activations of one group are quantized.

    Attributes:
        name: The group's name.
        strength: The strength of the migration, or None for no migration.
        smoothing: s, float32 (inputs,), or None.
        lower_bound: The smallest value of the activations, where it is known and used; None otherwise.
        zero_point: Steps below zero if `lower_bound` is used.
        error: Mean squared error of the group's output, relative to its mean square, on the calibration rows.
    """

    name: str
    strength: float | None
    smoothing: Float | None
    lower_bound: float | None
    zero_point: int
    error: float

    def to_dict(self) -> dict[str, object]:
        """For the variant's recipe. The error is rounded: beyond two digits it is noise."""
        facts: dict[str, object] = {"group": self.name, "error": float(f"{self.error:.1e}")}
        if self.strength is not None:
            facts["strength"] = self.strength
        if self.lower_bound is not None:
            facts["zero_point"] = self.zero_point
        return facts


def smoothing_of(largest: Float, weight: Float, strength: float) -> Float:
    """The factor per input channel.

    It is rounded to eighths of an octave: calibration on a machine that sums in another order gives the same bytes,
    and so does a model that was fine-tuned a little.

    Args:
        largest: float32 (inputs,).
        weight: float32 (inputs, outputs).
        strength: 0 (everything stays in the activations) to 1 (everything moves into the weights).
    """
    wide = np.maximum(largest.astype(np.float64), TINY)
    tall = np.maximum(np.abs(weight).max(axis=1).astype(np.float64), TINY)
    exponent = strength * np.log2(wide) - (1 - strength) * np.log2(tall)
    exponent -= exponent.mean()
    return round_to_steps(exponent)


def round_to_steps(exponent: NDArray[np.float64]) -> Float:
    """Powers of 2, the exponents rounded to `STEPS_PER_OCTAVE`: float64 (inputs,) to float32 (inputs,)."""
    return np.asarray(np.exp2(np.rint(exponent * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE), dtype=np.float32)


def _round_each(rows: Float, lower_bound: float | None, zero_point: int) -> Float:
    return round_rows(rows) if lower_bound is None else round_bounded_rows(rows, lower_bound, zero_point)


def plan_group(
    name: str,
    seen: Sequence[Activations],
    weight: Float,
    *,
    limit: int,
    lower_bound: float | None,
    may_migrate: bool,
    free: bool = False,
    static: bool = False,
    earlier: GroupPlan | None = None,
) -> GroupPlan:
    """Choose how a group's activations are quantized: the way with the smallest error of its output.

    Args:
        name: The group's name.
        seen: Its activations; several where groups share their weights, which then share one plan.
        weight: All weights of the group side by side, float32 (inputs, outputs).
        limit: Largest magnitude of a quantized weight.
        lower_bound: Smallest value of the activations, if it is known.
        may_migrate: Whether the graph can hold a migration here.
        free: Whether it costs no node (it folds into what comes before).
        static: Whether activations get one fixed scale instead of one a row.
        earlier: How an earlier version of the group was quantized. If the graph can hold that, it is taken as it is;
            only its error is measured anew, with scales of the weight's own.
    """
    rows = np.concatenate([item.rows for item in seen])
    largest = np.stack([item.largest for item in seen]).max(axis=0)
    expected = rows @ weight
    scale = max(float(np.square(expected, dtype=np.float64).mean()), TINY * TINY)

    def error_of(smoothing: Float | None, bound: float | None, zero_point: int) -> float:
        x: Float = rows if smoothing is None else np.asarray(rows / smoothing, dtype=np.float32)
        w: Float = weight if smoothing is None else np.asarray(weight * smoothing[:, None], dtype=np.float32)
        x = round_tensor(x) if static else _round_each(x, bound, zero_point)
        rounded, scales = quantize_weight(w, limit)
        found = x @ (rounded.astype(np.float32) * scales)
        error = float(np.square(found - expected, dtype=np.float64).mean()) / scale
        return float(f"{error:.3e}")  # the choice must not hang on the last bits of a sum

    bound = None if static else lower_bound
    if earlier is not None and _fits(earlier, inputs=weight.shape[0], bound=bound, may_migrate=may_migrate):
        return replace(earlier, error=error_of(earlier.smoothing, earlier.lower_bound, earlier.zero_point))
    if bound is not None:
        points = ZERO_POINTS if bound < 0 else (0,)
        errors = {point: error_of(None, bound, point) for point in points}
        best = min(errors, key=lambda point: errors[point])
        return GroupPlan(
            name=name, strength=None, smoothing=None, lower_bound=bound, zero_point=best, error=errors[best]
        )
    plain = error_of(None, None, 0)
    found = GroupPlan(name=name, strength=None, smoothing=None, lower_bound=None, zero_point=0, error=plain)
    if not may_migrate:
        return found
    for strength in STRENGTHS:
        smoothing = smoothing_of(largest, weight, strength)
        error = error_of(smoothing, None, 0)
        if error < found.error and (free or error < GAIN * plain):
            found = GroupPlan(
                name=name, strength=strength, smoothing=smoothing, lower_bound=None, zero_point=0, error=error
            )
    return found


def _fits(plan: GroupPlan, *, inputs: int, bound: float | None, may_migrate: bool) -> bool:
    """Whether the graph can hold a plan that was made for another version of the group."""
    if plan.lower_bound != bound:
        return False
    return plan.smoothing is None or (may_migrate and plan.smoothing.shape == (inputs,))
