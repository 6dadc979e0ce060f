"""The search for the fewest groups of nodes that must stay in higher precision so that a variant passes its gate.

Pure: it knows groups by name and cost, and asks a function to quantize and measure. First nothing is kept; then the
1, 2, 4, 8, ... costliest groups, until a candidate passes; then the smallest number that passes is found by bisection
between the last failure and the first success. That takes about 2 log2(k) tries for a k among hundreds of groups.

Bisection is exact if keeping more groups never hurts. Where it does hurt, the result is still a candidate that was
measured and passed, though a smaller one may exist.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from edgeonnx.spec.evidence import SearchPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgeonnx.spec.evidence import NodeCost, WorstText
    from edgeonnx.spec.report import Verdict

MAX_CANDIDATES = 24


class Budget(Protocol):
    """How much the search may still spend."""

    def remaining(self) -> float:
        """Seconds that are left; 0 or less ends the search after the candidate that is being tried."""


@dataclass(frozen=True, kw_only=True)
class TimeBudget:
    """A budget of seconds, from when it is made.

    Attributes:
        end: Reading of the clock at which nothing is left.
        clock: Seconds, from any start.
    """

    end: float
    clock: Callable[[], float]

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float]) -> TimeBudget:
        """A budget of `seconds` from now."""
        return cls(end=clock() + seconds, clock=clock)

    def remaining(self) -> float:
        """Seconds that are left."""
        return self.end - self.clock()


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One quantized graph, measured.

    Attributes:
        metrics: Its figures.
        verdict: What the gate says of them.
        worst: The texts on which it is worst, for the error if nothing passes.
    """

    metrics: dict[str, float]
    verdict: Verdict
    worst: tuple[WorstText, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What the search found.

    Attributes:
        keep: The groups that stay in higher precision, or None if no candidate passed.
        points: Every candidate, in the order of the tries.
        candidates: What was measured of each, in the same order.
        out_of_budget: Whether the budget ended the search before it was done.
    """

    keep: frozenset[str] | None
    points: tuple[SearchPoint, ...]
    candidates: tuple[Candidate, ...]
    out_of_budget: bool

    @property
    def nearest(self) -> Candidate:
        """The chosen candidate; if none passed, the one with the fewest failures (of equal ones, with most kept)."""

        def order(index: int) -> tuple[bool, int, int]:
            point, candidate = self.points[index], self.candidates[index]
            return not point.chosen, len(candidate.verdict.failures), -point.kept

        return self.candidates[min(range(len(self.points)), key=order)]


def refine(
    costs: Sequence[NodeCost],
    try_candidate: Callable[[frozenset[str]], Candidate],
    *,
    budget: Budget,
    max_candidates: int = MAX_CANDIDATES,
    on_candidate: Callable[[SearchPoint], None] | None = None,
) -> SearchResult:
    """Find the fewest of the costliest groups that must be kept.

    Args:
        costs: What quantizing each group costs, each group once.
        try_candidate: Quantizes with these groups kept, and measures.
        budget: Asked before each candidate but the first, which is always tried.
        max_candidates: At most so many are tried.
        on_candidate: Called after each, for progress.

    Returns:
        The result. To keep every group is no quantization at all, so it is never tried: if everything else fails,
        nothing passes.
    """
    if max(Counter(item.node for item in costs).values(), default=1) > 1:
        raise ValueError("a group has two costs")
    search = _Search(
        order=[item.node for item in sorted(costs, key=_costliest_first)],
        try_candidate=try_candidate,
        may_try=lambda tried: tried == 0 or (tried < max_candidates and budget.remaining() > 0),
        on_candidate=on_candidate,
    )
    chosen = search.smallest()
    points = [replace(point, chosen=point.kept == chosen) for point in search.points]
    return SearchResult(
        keep=None if chosen is None else frozenset(search.order[:chosen]),
        points=tuple(points),
        candidates=tuple(search.candidates),
        out_of_budget=search.stopped,
    )


def _costliest_first(item: NodeCost) -> tuple[float, str]:
    """A cost that is not a number is the highest: quantizing that group broke the answers."""
    return (-math.inf if math.isnan(item.cost) else -item.cost, item.node)


class _Search:
    """The state of one search: what was tried, and whether the budget ended it."""

    def __init__(
        self,
        *,
        order: Sequence[str],
        try_candidate: Callable[[frozenset[str]], Candidate],
        may_try: Callable[[int], bool],
        on_candidate: Callable[[SearchPoint], None] | None,
    ) -> None:
        self.order = order
        self.points: list[SearchPoint] = []
        self.candidates: list[Candidate] = []
        self.stopped = False
        self._try_candidate = try_candidate
        self._may_try = may_try
        self._on_candidate = on_candidate

    def smallest(self) -> int | None:
        """The smallest number of kept groups that passed, or None."""
        failing, passing = -1, None
        for kept in _growing(len(self.order)):
            passed = self._passes(kept)
            if passed is None:
                return None
            if passed:
                passing = kept
                break
            failing = kept
        while passing is not None and passing - failing > 1:
            middle = (failing + passing) // 2
            passed = self._passes(middle)
            if passed is None:
                break
            failing, passing = (failing, middle) if passed else (middle, passing)
        return passing

    def _passes(self, kept: int) -> bool | None:
        """Try with the `kept` costliest groups kept; None if the budget does not allow it."""
        if not self._may_try(len(self.points)):
            self.stopped = True
            return None
        candidate = self._try_candidate(frozenset(self.order[:kept]))
        passed = candidate.verdict.passed
        point = SearchPoint(name=f"keep-{kept:02d}", kept=kept, metrics=dict(candidate.metrics), passed=passed)
        self.points.append(point)
        self.candidates.append(candidate)
        if self._on_candidate is not None:
            self._on_candidate(point)
        return passed


def _growing(groups: int) -> list[int]:
    """0, 1, 2, 4, 8, ... and last all groups but one."""
    powers = [1 << exponent for exponent in range(max(groups - 1, 0).bit_length())]
    return sorted({0, *(power for power in powers if power < groups - 1), max(groups - 1, 0)})


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """The points that no other one beats: none is as good in both values and better in one.

    Args:
        points: (speed, fidelity) each, more is better in both.

    Returns:
        Their indices, by rising speed. Points with a value that is not a number are left out.
    """
    usable = [index for index, point in enumerate(points) if not any(math.isnan(value) for value in point)]
    front: list[int] = []
    best = -math.inf
    for index in sorted(usable, key=lambda index: (-points[index][0], -points[index][1], index)):
        fidelity = points[index][1]
        if fidelity > best or (front and points[front[-1]] == points[index]):
            front.append(index)
            best = fidelity
    return tuple(sorted(front, key=lambda index: (points[index][0], index)))
