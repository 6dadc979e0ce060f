"""What an earlier build decided is read back exactly, and repeating it changes as little as the weights did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgeonnx.errors import ManifestError
from edgeonnx.model.graph import StoredGraph
from edgeonnx.quantize.earlier import INT8, SCALE, EarlierPlan, read_constants, read_plan
from edgeonnx.quantize.rowwise import RowwisePlan, migrate_outliers, plan_rowwise, quantize_rowwise
from edgeonnx.quantize.static_qdq import quantize_static_qdq
from edgeonnx.spec.parse import Node
from tests.support.graphs import (
    Weights,
    attention_of_three_axes,
    stored,
    tiny_batches,
    tiny_proto,
    tiny_weights,
    value_outlier,
)

CALIBRATION = tiny_batches(((4, 12), (3, 16)), seed=7)
OTHER_TEXTS = tiny_batches(((5, 10), (2, 30)), seed=8)


def _recipe(plan: RowwisePlan, **more: object) -> Node:
    return Node(value={**plan.to_dict(), **more}, file="component.json", path="recipe")


def _weights(scale: float = 0.0) -> Weights:
    """Weights with an outlier among values and inputs, each moved by up to a share of itself."""
    weights = tiny_weights()
    value_outlier(weights)
    weights["words"][:, 3] *= 30
    rng = np.random.default_rng(9)
    if scale:
        for name, array in weights.items():
            weights[name] = (array * rng.uniform(1 - scale, 1 + scale, array.shape)).astype(np.float32)
    return weights


def _by_steps(weights: Weights) -> StoredGraph:
    return stored(tiny_proto(weights))


@pytest.fixture(params=[attention_of_three_axes, _by_steps], ids=["folded", "explicit"])
def make(request: pytest.FixtureRequest) -> Callable[[Weights], StoredGraph]:
    """Makes a graph in which the factors of one group go into its value projection, or one in which none do."""
    return request.param  # type: ignore[no-any-return]


def _read(graph: StoredGraph, plan: RowwisePlan, **more: object) -> EarlierPlan:
    keep = more.get("kept", ())
    return read_plan(_recipe(plan, **more), quantize_rowwise(graph, plan, keep=keep), graph)  # type: ignore[arg-type]


def test_the_plan_is_read_back(make: Callable[[Weights], StoredGraph]) -> None:
    graph = make(_weights())
    plan = plan_rowwise(graph, CALIBRATION)
    migrated = [name for name, group in plan.groups.items() if group.smoothing is not None]
    assert len(migrated) >= 2
    earlier = _read(graph, plan)
    assert earlier.kept == frozenset()
    assert set(earlier.groups) == set(plan.groups)
    for name, group in plan.groups.items():
        found = earlier.groups[name]
        assert (found.strength, found.lower_bound, found.zero_point) == (
            group.strength,
            group.lower_bound,
            group.zero_point,
        )
        if group.smoothing is None:
            assert found.smoothing is None
        else:
            np.testing.assert_array_equal(found.smoothing, group.smoothing)


def test_the_fixed_scales_of_a_gpu_have_factors_too() -> None:
    graph = attention_of_three_axes(_weights())
    plan = plan_rowwise(graph, CALIBRATION, static=True)
    quantized = quantize_static_qdq(migrate_outliers(graph, plan), CALIBRATION)
    earlier = read_plan(_recipe(plan), quantized, graph)
    assert set(earlier.groups) == set(plan.groups)
    repeated = plan_rowwise(graph, OTHER_TEXTS, static=True, earlier=earlier)
    assert migrate_outliers(graph, repeated) == migrate_outliers(graph, plan)
    assert migrate_outliers(graph, plan_rowwise(graph, OTHER_TEXTS, static=True)) != migrate_outliers(graph, plan)


def test_the_same_weights_give_the_same_bytes_whatever_is_calibrated_with(
    make: Callable[[Weights], StoredGraph],
) -> None:
    graph = make(_weights())
    plan = plan_rowwise(graph, CALIBRATION)
    repeated = plan_rowwise(graph, OTHER_TEXTS, earlier=_read(graph, plan))
    assert quantize_rowwise(graph, repeated) == quantize_rowwise(graph, plan)
    assert quantize_rowwise(graph, plan_rowwise(graph, OTHER_TEXTS)) != quantize_rowwise(graph, plan)
    assert repeated.to_dict() != plan.to_dict(), "the errors are measured on other rows, so they differ"


def test_a_light_fine_tune_moves_few_elements_by_one_step(make: Callable[[Weights], StoredGraph]) -> None:
    graph, tuned = make(_weights()), make(_weights(scale=0.004))
    plan = plan_rowwise(graph, CALIBRATION)
    before = read_constants(quantize_rowwise(graph, plan))
    earlier = _read(graph, plan)
    after = read_constants(quantize_rowwise(tuned, plan_rowwise(tuned, CALIBRATION, earlier=earlier)))
    anew = read_constants(quantize_rowwise(tuned, plan_rowwise(tuned, OTHER_TEXTS)))
    assert set(after) == set(before)
    steps = [np.abs(after[name].astype(int) - before[name].astype(int)) for name in after if name.endswith(INT8)]
    assert max(int(item.max()) for item in steps) == 1
    changed = sum(int((item != 0).sum()) for item in steps)
    lost = sum(int((anew[name] != before[name]).sum()) for name in after if name.endswith(INT8))
    assert 0 < changed < lost / 2
    for name in (name for name in after if name.endswith(SCALE)):
        np.testing.assert_array_equal(after[name], before[name])


def test_what_stayed_in_float_is_told() -> None:
    graph = attention_of_three_axes(_weights())
    plan = plan_rowwise(graph, CALIBRATION)
    kept = ["up"]
    earlier = _read(graph, plan, kept=kept)
    assert earlier.kept == frozenset(kept)
    assert f"up{SCALE}" not in earlier.scales
    assert f"down{SCALE}" in earlier.scales


def test_a_group_whose_factors_cannot_be_told_is_planned_anew() -> None:
    graph = attention_of_three_axes(_weights())
    plan = plan_rowwise(graph, CALIBRATION)
    (first,) = (name for name in plan.groups if "value" in name)
    assert plan.groups[first].smoothing is not None
    # The quantized graph has neither the factors of the first group, nor its weights to tell those of the next one by.
    earlier = _read(graph, plan, kept=[first])
    assert first not in earlier.groups
    assert "output" in earlier.groups, "its factors stand in the graph, as they could not be folded"
    repeated = plan_rowwise(graph, CALIBRATION, earlier=earlier)
    assert repeated.groups[first].smoothing is not None


def test_groups_of_other_shapes_are_planned_anew() -> None:
    graph = attention_of_three_axes(_weights())
    earlier = _read(graph, plan_rowwise(graph, CALIBRATION))
    wrong = {name: np.ones(5, np.float32) for name in earlier.scales}
    broken = EarlierPlan(groups=earlier.groups, kept=earlier.kept, scales=wrong)
    repeated = quantize_rowwise(graph, plan_rowwise(graph, CALIBRATION, earlier=broken))
    assert repeated == quantize_rowwise(graph, plan_rowwise(graph, CALIBRATION))


@pytest.mark.parametrize(
    "recipe",
    [{}, {"groups": 3}, {"groups": [{"group": "up", "error": "small"}]}, {"groups": [], "kept": [1]}],
    ids=["no groups", "a number", "a text for an error", "a number for a name"],
)
def test_a_recipe_that_is_none_is_refused(recipe: dict[str, object]) -> None:
    graph = attention_of_three_axes(_weights())
    with pytest.raises(ManifestError) as caught:
        read_plan(Node(value=recipe, file="component.json", path="recipe"), graph, graph)
    assert "component.json: recipe" in str(caught.value)
