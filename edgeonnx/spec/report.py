"""Thresholds on measured figures, and the verdict on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgeonnx.spec.parse import Node


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A bound on one metric: `at_most` or `at_least` (exactly one of them)."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"threshold on {self.metric!r} needs exactly one of at_most and at_least")

    def passes(self, value: float) -> bool:
        """Whether `value` keeps the bound. A value that is not a number never does."""
        if math.isnan(value):
            return False
        return value <= self.at_most if self.at_most is not None else value >= (self.at_least or 0.0)

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"{self.metric} <= {self.at_most:g}"
        return f"{self.metric} >= {self.at_least:g}"

    @classmethod
    def from_dict(cls, node: Node) -> Threshold:
        """Read one threshold."""
        node.only(("metric", "at_most", "at_least"))
        bounds = {key: child.typed(float) for key in ("at_most", "at_least") if (child := node.child(key)) is not None}
        if len(bounds) != 1:
            node.fail("needs exactly one of at_most and at_least")
        return cls(metric=node.text("metric"), **bounds)

    def to_dict(self) -> dict[str, object]:
        """The threshold as JSON."""
        bound = {"at_most": self.at_most} if self.at_most is not None else {"at_least": self.at_least}
        return {"metric": self.metric, **bound}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a gate found: each threshold with the measured value, and whether all passed."""

    judged: tuple[tuple[Threshold, float], ...]

    @property
    def passed(self) -> bool:
        """Whether every threshold is kept."""
        return all(threshold.passes(value) for threshold, value in self.judged)

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each threshold that is not kept."""
        return tuple(
            f"{threshold} was asked for, measured {value:g}"
            for threshold, value in self.judged
            if not threshold.passes(value)
        )


def judge(metrics: Mapping[str, float], thresholds: Iterable[Threshold]) -> Verdict:
    """Judge measured metrics. A metric that was not measured counts as not a number, so it fails."""
    return Verdict(judged=tuple((t, metrics.get(t.metric, math.nan)) for t in thresholds))
