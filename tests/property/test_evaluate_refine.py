"""The search finds the smallest number that passes, in few tries, and never hands back what did not pass."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from edgeonnx.evaluate.refine import Candidate, refine
from edgeonnx.spec.evidence import NodeCost
from edgeonnx.spec.report import Threshold, judge

BOUND = Threshold(metric="passes", at_least=1.0)
GROUPS = st.integers(0, 200)


class Counted:
    """A budget of so many candidates."""

    def __init__(self, count: int) -> None:
        self.count = count

    def remaining(self) -> float:
        return float(self.count)


def searched(passing: set[int], groups: int, budget: int):
    costs = [NodeCost(node=f"g{index}", cost=float(-index % 7)) for index in range(groups)]
    purse = Counted(budget)
    tried: dict[frozenset[str], bool] = {}

    def attempt(keep: frozenset[str]) -> Candidate:
        purse.count -= 1
        assert keep not in tried
        tried[keep] = len(keep) in passing
        metrics = {"passes": float(tried[keep])}
        return Candidate(metrics=metrics, verdict=judge(metrics, [BOUND]))

    return refine(costs, attempt, budget=purse, max_candidates=999), tried


@given(GROUPS, st.integers(0, 220))
def test_a_monotone_search_finds_exactly_the_smallest(groups: int, needed: int) -> None:
    result, tried = searched(set(range(needed, groups)), groups, 999)
    if groups and needed < groups:
        assert result.keep is not None
        assert len(result.keep) == needed
        assert len(tried) <= 2 * math.ceil(math.log2(needed + 1)) + 2
    elif needed:
        assert result.keep is None
    assert not result.out_of_budget


@given(st.integers(1, 60), st.sets(st.integers(0, 60)), st.integers(0, 12))
def test_what_is_handed_back_was_tried_and_passed(groups: int, passing: set[int], budget: int) -> None:
    result, tried = searched(passing, groups, budget)
    chosen = [point for point in result.points if point.chosen]
    if result.keep is None:
        assert not chosen
        assert not any(tried.values())
    else:
        assert tried[result.keep]
        assert [point.kept for point in chosen] == [len(result.keep)]
        assert len(result.keep) == min(len(keep) for keep, passed in tried.items() if passed)
    assert len(result.points) == len(result.candidates) == len(tried) <= max(budget, 1)
    assert max(point.kept for point in result.points) < groups
    names = [point.name for point in result.points]
    assert len(names) == len(set(names))
