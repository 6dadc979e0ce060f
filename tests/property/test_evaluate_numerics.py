"""The formulas and the plans of evaluate, against trusted implementations and against their own promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.evaluate.answers import plan_batches
from edgeonnx.evaluate.invariance import LONG_ROW, plan_invariance
from edgeonnx.evaluate.metrics import METRICS, rounded
from edgeonnx.evaluate.numerics import macro_f1, pearson, ranks, spearman
from edgeonnx.evaluate.refine import pareto

SMALL = st.integers(-5, 5).map(float)
PAIRS = st.lists(st.tuples(SMALL, SMALL), min_size=3, max_size=40)


def columns(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.array(pairs, dtype=np.float64).T
    return first, second


@settings(deadline=None)  # the first example imports, and these machines are noisy
@given(PAIRS)
def test_correlations_are_scipys(pairs: list[tuple[float, float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = columns(pairs)
    np.testing.assert_array_equal(ranks(first), stats.rankdata(first))
    if np.ptp(first) and np.ptp(second):
        assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second).statistic, abs=1e-9)
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    truth, found = np.array(pairs).T
    ours = macro_f1(truth[:, None] == np.arange(5), found[:, None] == np.arange(5))
    assert ours == pytest.approx(metrics.f1_score(truth, found, average="macro"))


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), max_size=60), st.integers(1, 600))
def test_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_batches(lengths, budget=budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    flat = [lengths[row] for batch in batches for row in batch]
    assert flat == sorted(flat)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=150), st.integers(1, 80))
def test_the_batches_of_invariance(lengths: list[int], limit: int) -> None:
    max_length = max(lengths) + 3
    plan = plan_invariance(lengths, max_length=max_length, limit=limit)
    assert plan == plan_invariance(tuple(lengths), max_length=max_length, limit=limit)
    rows = {row for batch in plan for row in batch.rows}
    assert len(rows) == min(len(lengths), limit)
    assert max(lengths) in {lengths[row] for row in rows}
    for batch in plan:
        assert len(set(batch.rows)) == len(batch.rows)
        assert max(lengths[row] for row in batch.rows) <= batch.width <= max_length
        assert len(batch.rows) <= 3 or sorted(lengths[row] for row in batch.rows)[-2] <= LONG_ROW
    for row in rows:
        assert any(row in batch.rows and batch.width > lengths[row] for batch in plan)
        together = sum(lengths[other] <= LONG_ROW for other in rows) if lengths[row] <= LONG_ROW else 0
        assert together < 2 or any(row in batch.rows and len(batch.rows) > 1 for batch in plan)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_the_front_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    found = pareto([(float(speed), float(fidelity)) for speed, fidelity in points])
    beaten = {
        index
        for index, point in enumerate(points)
        if any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in points)
    }
    assert set(found) == set(range(len(points))) - beaten
    assert [points[index][0] for index in found] == sorted(points[index][0] for index in found)


@settings(deadline=None)
@given(st.sampled_from(sorted(METRICS)), st.floats(allow_nan=True, allow_infinity=True))
def test_evidence_has_only_finite_figures(name: str, value: float) -> None:
    found = rounded({name: value})[name]
    assert np.isfinite(found)
    if not np.isfinite(value):
        assert found == METRICS[name].worst
