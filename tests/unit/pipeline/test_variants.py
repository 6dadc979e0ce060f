"""Integer variants are only measured where their products are exact; a base is followed as far as the gate allows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.evaluate.refine import Candidate
from edgeonnx.model.graph import StoredGraph
from edgeonnx.pipeline import variants
from edgeonnx.pipeline.base import Changes, compare
from edgeonnx.pipeline.recipe import RECIPES, VariantRecipe
from edgeonnx.quantize.earlier import EarlierPlan, read_constants, read_plan
from edgeonnx.quantize.rowwise import plan_rowwise, quantize_rowwise
from edgeonnx.spec.parse import Node
from edgeonnx.spec.report import Threshold, judge
from tests.support.graphs import tiny_batches, tiny_graph


def _host(monkeypatch: pytest.MonkeyPatch, *instruction_sets: str) -> None:
    host = SimpleNamespace(architecture="x86_64", instruction_sets=frozenset(instruction_sets))
    monkeypatch.setattr(variants, "host_profile", lambda: host)


def test_eight_bits_are_refused_where_they_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    _host(monkeypatch, "avx2")
    with pytest.raises(UsageError) as caught:
        variants.check_host(RECIPES["cpu-int8"])
    assert "--target avx2" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["cpu-int8-avx2", "cpu-fp32", "cpu-int8-weights"])
def test_what_cannot_saturate_is_measured_anywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _host(monkeypatch, "avx2")
    variants.check_host(RECIPES[name])


class _Yardstick:
    """Judges as it is told, one verdict a candidate; measures nothing."""

    def __init__(self, *passes: bool) -> None:
        self.calibration = tiny_batches(((4, 12), (3, 16)), seed=7)
        self.reference = SimpleNamespace(texts=("a text",))
        self._passes = iter(passes)

    def thresholds(self, _recipe: VariantRecipe) -> tuple[Threshold, ...]:
        return (Threshold(metric="cosine_min", at_least=0.5),)

    def measure(self, _run: object, thresholds: tuple[Threshold, ...]) -> Candidate:
        value = 1.0 if next(self._passes) else 0.0
        return Candidate(metrics={"cosine_min": value}, verdict=judge({"cosine_min": value}, thresholds))

    def loss(self, _run: object) -> float:
        return 0.0


class _Base:
    """A base that was quantized with other texts, and with one group kept."""

    def __init__(self, graph: StoredGraph, *, has: bool = True) -> None:
        plan = plan_rowwise(graph, tiny_batches(((5, 10), (2, 30)), seed=8), weight_bits=7)
        self.kept = next(iter(plan.groups))
        self.made = quantize_rowwise(graph, plan, keep=[self.kept])
        recipe = Node(value={**plan.to_dict(), "kept": [self.kept]}, file="component.json", path="recipe")
        self.plan = read_plan(recipe, self.made, graph) if has else None

    def plan_of(self, _recipe: VariantRecipe) -> EarlierPlan | None:
        return self.plan

    def compare(self, _recipe: VariantRecipe, graph: StoredGraph) -> Changes:
        return compare(read_constants(self.made), read_constants(graph), graph, set(self.made.tensors))


class TestBase:
    RECIPE = RECIPES["cpu-int8-avx2"]

    def _make(
        self, tmp_path: Path, base: _Base | None, *passes: bool, recipe: VariantRecipe = RECIPE
    ) -> tuple[variants.MadeVariant, list[str]]:
        graph, told = tiny_graph(), []
        workshop = variants.Workshop(
            exported=graph,
            optimized=graph,
            yardstick=_Yardstick(*passes),  # type: ignore[arg-type]
            folder=tmp_path,
            search_seconds=60,
            on_step=lambda step, _done, total: told.append(step) if not total else None,
            base=base,  # type: ignore[arg-type]
        )
        return workshop.make(recipe), told

    def test_what_the_gate_lets_through_is_the_base_again(self, tmp_path: Path) -> None:
        base = _Base(tiny_graph())
        made, told = self._make(tmp_path, base, True)
        assert made.graph.tensors.keys() == base.made.tensors.keys()
        assert made.evidence.kept == (base.kept,)
        assert (len(made.evidence.search), made.evidence.search[0].chosen) == (1, True)
        assert made.base is not None
        assert made.base["recipe"] == "recipe and scales of the base kept"
        assert made.base["changed_tensors"] == 0
        assert "0 of" in told[-1]

    def test_what_the_gate_refuses_is_made_anew_and_says_why(self, tmp_path: Path) -> None:
        base = _Base(tiny_graph())
        made, told = self._make(tmp_path, base, False, True)
        without, _ = self._make(tmp_path / "without", None, True)
        assert made.graph == without.graph
        assert made.plan == without.plan
        assert made.evidence.search == without.evidence.search, "the refused candidate is not one of this search"
        assert made.base is not None
        assert str(made.base["recipe"]).startswith("made anew: with recipe and scales of the base the gate fails")
        assert "cosine_min" in str(made.base["recipe"])
        assert made.base["changed_tensors"] != 0
        assert "made anew" in told[-1]
        assert "travel" in told[-1]

    def test_a_base_without_the_variant_leaves_nothing_to_keep(self, tmp_path: Path) -> None:
        made, _ = self._make(tmp_path, _Base(tiny_graph(), has=False), True)
        assert made.base is not None
        assert made.base["recipe"] == "made anew: the base has no such variant"

    def test_float_follows_from_the_weights(self, tmp_path: Path) -> None:
        made, _ = self._make(tmp_path, _Base(tiny_graph()), True, recipe=RECIPES["cpu-fp32"])
        assert made.base is not None
        assert made.base["recipe"] == "follows from the weights"

    def test_without_a_base_nothing_is_said_of_one(self, tmp_path: Path) -> None:
        made, told = self._make(tmp_path, None, True)
        assert made.base is None
        assert len(told) == 1
