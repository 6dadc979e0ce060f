"""The search for what must stay in higher precision: its steps, its budget, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeonnx.evaluate.refine import Candidate, SearchResult, TimeBudget, pareto, refine
from edgeonnx.spec.evidence import NodeCost, SearchPoint
from edgeonnx.spec.report import Threshold, judge

BOUND = Threshold(metric="cosine_min", at_least=0.98)


class Seconds:
    """A budget that a test spends."""

    def __init__(self, seconds: float = 1e9) -> None:
        self.left = seconds

    def remaining(self) -> float:
        return self.left


def costs(count: int) -> list[NodeCost]:
    """Groups g00 (the costliest), g01, ... in another order."""
    made = [NodeCost(node=f"g{index:02d}", cost=1.0 / (index + 1)) for index in range(count)]
    return made[1::2] + made[::2]


def candidate(passed: bool) -> Candidate:
    metrics = {"cosine_min": 0.99 if passed else 0.9}
    return Candidate(metrics=metrics, verdict=judge(metrics, [BOUND]))


def search(
    count: int,
    passes: Callable[[int], bool],
    *,
    budget: Seconds | None = None,
    spend: float = 0.0,
    max_candidates: int = 99,
    seen: list[SearchPoint] | None = None,
) -> SearchResult:
    purse = budget or Seconds()

    def attempt(keep: frozenset[str]) -> Candidate:
        assert keep == {f"g{index:02d}" for index in range(len(keep))}  # always the costliest
        purse.left -= spend
        return candidate(passes(len(keep)))

    return refine(
        costs(count),
        attempt,
        budget=purse,
        max_candidates=max_candidates,
        on_candidate=None if seen is None else seen.append,
    )


def kept(result: SearchResult) -> list[int]:
    return [point.kept for point in result.points]


def test_nothing_is_kept_if_that_passes() -> None:
    result = search(20, lambda count: True)
    assert result.keep == frozenset()
    assert kept(result) == [0]
    assert result.points[0] == SearchPoint(
        name="keep-00", kept=0, metrics={"cosine_min": 0.99}, passed=True, chosen=True
    )


def test_doubling_then_bisection() -> None:
    seen: list[SearchPoint] = []
    result = search(30, lambda count: count >= 11, seen=seen)
    assert kept(result) == [0, 1, 2, 4, 8, 16, 12, 10, 11]
    assert result.keep == {f"g{index:02d}" for index in range(11)}
    assert [point.name for point in result.points if point.chosen] == ["keep-11"]
    assert not result.out_of_budget
    assert [point.name for point in seen] == [point.name for point in result.points]
    assert result.nearest.verdict.passed


def test_all_groups_are_never_kept() -> None:
    result = search(5, lambda count: count >= 5)
    assert kept(result) == [0, 1, 2, 4]
    assert result.keep is None
    assert not result.out_of_budget
    assert not any(point.chosen for point in result.points)
    assert search(5, lambda count: count >= 4).keep == {"g00", "g01", "g02", "g03"}
    assert kept(search(7, lambda count: False)) == [0, 1, 2, 4, 6]
    assert kept(search(1, lambda count: False)) == [0]
    assert kept(search(0, lambda count: False)) == [0]


def test_equal_costs_go_by_name_and_a_cost_that_is_no_number_goes_first() -> None:
    given = [NodeCost(node=name, cost=cost) for name, cost in (("b", 0.5), ("c", 0.1), ("a", 0.5), ("z", float("nan")))]
    tried: list[frozenset[str]] = []

    def attempt(keep: frozenset[str]) -> Candidate:
        tried.append(keep)
        return candidate(False)

    refine(given, attempt, budget=Seconds())
    assert tried == [frozenset(), {"z"}, {"z", "a"}, {"z", "a", "b"}]


def test_a_spent_budget_keeps_the_best_that_passed() -> None:
    result = search(30, lambda count: count >= 11, budget=Seconds(7), spend=1)
    assert kept(result) == [0, 1, 2, 4, 8, 16, 12]
    assert result.keep == {f"g{index:02d}" for index in range(12)}
    assert result.out_of_budget
    assert result.points[-1].chosen


def test_a_spent_budget_with_nothing_that_passed() -> None:
    result = search(30, lambda count: count >= 11, budget=Seconds(3), spend=1)
    assert kept(result) == [0, 1, 2]
    assert result.keep is None
    assert result.out_of_budget


def test_the_first_candidate_is_always_tried() -> None:
    assert search(30, lambda count: True, budget=Seconds(0)).keep == frozenset()
    result = search(30, lambda count: False, budget=Seconds(0))
    assert kept(result) == [0]
    assert result.out_of_budget


def test_a_number_of_candidates_is_a_budget_too() -> None:
    result = search(30, lambda count: count >= 11, max_candidates=4)
    assert kept(result) == [0, 1, 2, 4]
    assert result.out_of_budget


def test_the_nearest_failure_has_the_fewest_broken_bounds_and_then_the_most_kept() -> None:
    bounds = [BOUND, Threshold(metric="cosine_mean", at_least=0.99)]

    def attempt(keep: frozenset[str]) -> Candidate:
        metrics = {"cosine_min": 0.9, "cosine_mean": 0.995 if len(keep) in (1, 2) else 0.9}
        return Candidate(metrics=metrics, verdict=judge(metrics, bounds))

    result = refine(costs(9), attempt, budget=Seconds())
    assert result.nearest is result.candidates[2]


def test_a_group_has_one_cost() -> None:
    with pytest.raises(ValueError, match="two costs"):
        refine([*costs(2), *costs(1)], lambda keep: candidate(True), budget=Seconds())


def test_a_budget_of_time() -> None:
    now = 5.0
    budget = TimeBudget.of(10, lambda: now)
    assert budget.remaining() == 10
    now = 18.0
    assert budget.remaining() == -3


def test_the_pareto_front() -> None:
    points = [(1.0, 0.999), (2.4, 0.98), (2.0, 0.97), (1.5, 0.99), (float("nan"), 2.0), (2.4, 0.98)]
    assert pareto(points) == (0, 3, 1, 5)
    assert pareto([]) == ()
