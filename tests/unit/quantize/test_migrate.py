"""Moving outliers of activations into weights: the factors, and what the search chooses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeonnx.quantize.migrate import (
    GAIN,
    STEPS_PER_OCTAVE,
    STRENGTHS,
    ZERO_POINTS,
    Activations,
    GroupPlan,
    plan_group,
    smoothing_of,
)
from edgeonnx.quantize.rounding import quantize_weight, round_bounded_rows, round_rows

INPUTS, OUTPUTS = 48, 64


def rows_of(seed: int = 0, outlier: float = 1.0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((64, INPUTS)).astype(np.float32)
    rows[:, 7] *= np.float32(outlier)
    return rows


def weight_of(seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((INPUTS, OUTPUTS)) / 7).astype(np.float32)


def seen_of(rows: np.ndarray) -> Activations:
    return Activations(largest=np.abs(rows).max(axis=0), rows=rows)


def plan_of(
    rows: np.ndarray,
    weight: np.ndarray,
    *,
    bound: float | None = None,
    may_migrate: bool = True,
    free: bool = False,
    limit: int = 127,
) -> GroupPlan:
    return plan_group(
        "layer", [seen_of(rows)], weight, limit=limit, lower_bound=bound, may_migrate=may_migrate, free=free
    )


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.square(found - expected).mean() / np.square(expected).mean())


def test_the_factors_cancel_in_the_product() -> None:
    rows, weight = rows_of(outlier=40).astype(np.float64), weight_of()
    factors = smoothing_of(np.abs(rows).max(axis=0), weight, 0.6).astype(np.float64)
    np.testing.assert_allclose((rows / factors) @ (weight * factors[:, None]), rows @ weight, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("strength", [0.0, 0.4, 0.65, 1.0])
def test_the_factors_are_the_papers_to_a_sixteenth_of_an_octave(strength: float) -> None:
    largest, weight = np.abs(rows_of(outlier=40)).max(axis=0), weight_of()
    factors = smoothing_of(largest, weight, strength)
    assert factors.dtype == np.float32
    octaves = np.log2(factors.astype(np.float64))
    np.testing.assert_allclose(octaves * STEPS_PER_OCTAVE, np.rint(octaves * STEPS_PER_OCTAVE), atol=1e-4)
    assert abs(octaves.mean()) <= 0.5 / STEPS_PER_OCTAVE  # a geometric mean of 1, but for the rounding
    paper = largest.astype(np.float64) ** strength / np.abs(weight).max(axis=1).astype(np.float64) ** (1 - strength)
    paper /= np.exp(np.log(paper).mean())
    assert np.abs(octaves - np.log2(paper)).max() <= 0.5 / STEPS_PER_OCTAVE + 1e-4


def test_an_outlier_is_migrated_and_the_error_is_that_of_the_arithmetic() -> None:
    rows, weight = rows_of(outlier=40), weight_of()
    plan = plan_of(rows, weight)
    plain = plan_of(rows, weight, may_migrate=False)
    assert plan.strength in STRENGTHS
    assert plan.smoothing is not None
    assert plan.smoothing[7] == plan.smoothing.max() > 4
    assert plan.error < 0.5 * plain.error
    rounded, scales = quantize_weight(weight * plan.smoothing[:, None], 127)
    found = round_rows(rows / plan.smoothing) @ (rounded * scales)
    assert plan.error == pytest.approx(relative_error(found, rows @ weight), rel=0.01)


def test_no_other_strength_is_better() -> None:
    rows, weight = rows_of(outlier=40), weight_of()
    plan = plan_of(rows, weight)
    for strength in STRENGTHS:
        factors = smoothing_of(np.abs(rows).max(axis=0), weight, strength)
        rounded, scales = quantize_weight(weight * factors[:, None], 127)
        error = relative_error(round_rows(rows / factors) @ (rounded * scales), rows @ weight)
        assert plan.error <= error * 1.01


def test_a_migration_may_be_forbidden() -> None:
    plan = plan_of(rows_of(outlier=40), weight_of(), may_migrate=False)
    assert (plan.strength, plan.smoothing, plan.lower_bound) == (None, None, None)


def test_without_outliers_a_migration_is_not_worth_its_node() -> None:
    rows = np.clip(rows_of(), -2, 2)  # every channel has the same range, as has every input of the weight below
    weight = np.clip(weight_of(), -0.2, 0.2)
    paid, free = plan_of(rows, weight), plan_of(rows, weight, free=True)
    assert (paid.strength, paid.smoothing) == (None, None)
    assert free.error <= paid.error


def test_a_small_gain_is_taken_only_where_it_is_free() -> None:
    weight = weight_of()
    for outlier in np.linspace(1, 4, 25):
        rows = rows_of(outlier=float(outlier))
        paid, free = plan_of(rows, weight), plan_of(rows, weight, free=True)
        if paid.strength is None and free.strength is not None:
            assert GAIN * paid.error <= free.error < paid.error
            return
    pytest.fail("no outlier of this series lies between the two rules")


@pytest.mark.parametrize("bound", [None, 0.0, -0.1701])
@pytest.mark.parametrize("zero", ["rows", "weight", "both"])
def test_zero_activations_and_weights_give_finite_plans(bound: float | None, zero: str) -> None:
    rows = np.abs(rows_of())
    weight = weight_of()
    rows, weight = (rows if zero == "weight" else rows * 0), (weight if zero == "rows" else weight * 0)
    with np.errstate(all="raise", under="ignore"):
        plan = plan_of(rows, weight, bound=bound, free=True)
    assert plan.error == 0
    assert plan.smoothing is None


def test_a_dead_channel_gives_finite_factors() -> None:
    rows, weight = rows_of(outlier=40), weight_of()
    rows[:, 3] = 0
    weight[5] = 0
    with np.errstate(all="raise", under="ignore"):
        plan = plan_of(rows, weight)
    assert plan.smoothing is not None
    assert np.isfinite(plan.smoothing).all()
    assert (plan.smoothing > 0).all()
    assert np.isfinite(plan.error)


def test_what_shares_weights_shares_one_plan_over_all_that_it_saw() -> None:
    quiet, loud, weight = seen_of(rows_of(2)), seen_of(rows_of(3, outlier=60)), weight_of()
    arguments = {"limit": 127, "lower_bound": None, "may_migrate": True}
    both = plan_group("both", [quiet, loud], weight, **arguments)  # type: ignore[arg-type]
    assert both.strength is not None
    assert both.smoothing is not None
    largest = np.maximum(quiet.largest, loud.largest)
    np.testing.assert_array_equal(both.smoothing, smoothing_of(largest, weight, both.strength))
    first = plan_group("both", [quiet], weight, **arguments)  # type: ignore[arg-type]
    assert first.strength is None, "the first one alone needs no migration, so the plan came from both"


@pytest.mark.parametrize(("bound", "points"), [(0.0, (0,)), (-0.1701, ZERO_POINTS)])
def test_bounded_activations_get_a_zero_point_and_no_migration(bound: float, points: tuple[int, ...]) -> None:
    rows, weight = np.maximum(rows_of(outlier=40), np.float32(bound)), weight_of()
    plan = plan_of(rows, weight, bound=bound)
    assert (plan.strength, plan.smoothing, plan.lower_bound) == (None, None, bound)
    rounded, scales = quantize_weight(weight, 127)
    errors = {
        point: relative_error(round_bounded_rows(rows, bound, point) @ (rounded * scales), rows @ weight)
        for point in points
    }
    assert plan.zero_point in points
    assert plan.error == pytest.approx(min(errors.values()), rel=0.01)
    assert errors[plan.zero_point] == pytest.approx(min(errors.values()), rel=0.01)


def test_the_zero_point_follows_the_activations() -> None:
    """Rows that stay near the bound want steps below zero; rows far above it want them for their own range."""
    near = np.random.default_rng(4).uniform(-0.17, 0.2, (64, INPUTS)).astype(np.float32)
    far = np.random.default_rng(5).uniform(0, 20, (64, INPUTS)).astype(np.float32)
    assert plan_of(near, weight_of(), bound=-0.1701).zero_point == max(ZERO_POINTS)
    assert plan_of(far, weight_of(), bound=-0.1701).zero_point in ZERO_POINTS[:2]


def test_seven_bit_weights_cost_accuracy() -> None:
    rows, weight = rows_of(), weight_of()
    assert plan_of(rows, weight, limit=64).error > plan_of(rows, weight).error > 0


def test_the_same_calibration_gives_the_same_plan_and_a_last_bit_does_not_matter() -> None:
    rows, weight = rows_of(outlier=40), weight_of()
    first, again = plan_of(rows, weight), plan_of(rows.copy(), weight.copy())
    assert first.to_dict() == again.to_dict()
    near = plan_of(rows, np.nextafter(weight, np.float32(np.inf)))
    assert near.strength == first.strength
    assert first.smoothing is not None
    for other in (again, near):
        assert other.smoothing is not None
        np.testing.assert_array_equal(first.smoothing, other.smoothing)


def test_a_plan_states_only_what_it_uses() -> None:
    rows, weight = rows_of(outlier=40), weight_of()
    migrated = plan_of(rows, weight).to_dict()
    assert set(migrated) == {"group", "error", "strength"}
    assert set(plan_of(rows, weight, may_migrate=False).to_dict()) == {"group", "error"}
    bounded = plan_of(np.abs(rows), weight, bound=0.0).to_dict()
    assert (set(bounded), bounded["zero_point"]) == ({"group", "error", "zero_point"}, 0)


class TestEarlier:
    """A plan of an earlier version is repeated as it is; only the error is that of the rows and weights of now."""

    def test_it_is_repeated_and_its_error_is_measured_anew(self) -> None:
        earlier = plan_of(rows_of(outlier=40), weight_of())
        rows, weight = rows_of(3, outlier=90), weight_of(2)
        found = _after(earlier, rows, weight)
        assert earlier.smoothing is not None
        assert found.strength == earlier.strength
        np.testing.assert_array_equal(found.smoothing, earlier.smoothing)
        rounded, scales = quantize_weight(weight * earlier.smoothing[:, None], 127)
        expected = relative_error(round_rows(rows / earlier.smoothing) @ (rounded * scales), rows @ weight)
        assert found.error == pytest.approx(expected, rel=0.01)
        assert plan_of(rows, weight).error < found.error, "a plan of its own would differ, or this shows nothing"

    def test_a_zero_point_is_repeated(self) -> None:
        rows = np.random.default_rng(4).uniform(-0.17, 0.2, (64, INPUTS)).astype(np.float32)
        earlier = replace(plan_of(rows, weight_of(), bound=-0.1701), zero_point=8)
        assert plan_of(rows, weight_of(), bound=-0.1701).zero_point != 8
        assert _after(earlier, rows, weight_of(), bound=-0.1701).zero_point == 8

    @pytest.mark.parametrize("case", ["other width", "no migration here", "another bound"])
    def test_a_plan_that_the_graph_cannot_hold_is_not_taken(self, case: str) -> None:
        rows, weight = rows_of(outlier=40), weight_of()
        earlier = replace(plan_of(rows, weight), strength=0.123)
        assert earlier.smoothing is not None
        if case == "other width":
            earlier = replace(earlier, smoothing=earlier.smoothing[:-1])
        may_migrate, bound = case != "no migration here", 0.0 if case == "another bound" else None
        found = _after(earlier, np.abs(rows), weight, bound=bound, may_migrate=may_migrate)
        assert found.to_dict() == plan_of(np.abs(rows), weight, bound=bound, may_migrate=may_migrate).to_dict()


def _after(
    earlier: GroupPlan,
    rows: np.ndarray,
    weight: np.ndarray,
    *,
    bound: float | None = None,
    may_migrate: bool = True,
) -> GroupPlan:
    return plan_group(
        "layer", [seen_of(rows)], weight, limit=127, lower_bound=bound, may_migrate=may_migrate, earlier=earlier
    )
