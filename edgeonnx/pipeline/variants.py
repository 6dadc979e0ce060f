"""Making a variant: quantize, measure, judge, and refine until the gate lets it through or nothing does."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.errors import UsageError
from edgeonnx.evaluate.gate import gate_error
from edgeonnx.evaluate.metrics import METRICS
from edgeonnx.evaluate.refine import Candidate, SearchResult, TimeBudget, refine
from edgeonnx.model.graph import restore_graph
from edgeonnx.model.operators import loaded_operators, written_operators
from edgeonnx.model.runtime import open_graph
from edgeonnx.pipeline.recipe import CPU, PLANNED, Scheme
from edgeonnx.pipeline.verify import host_profile
from edgeonnx.quantize.half import emulate_bf16, to_half
from edgeonnx.quantize.linears import find_groups
from edgeonnx.quantize.ort_dynamic import quantize_ort_dynamic
from edgeonnx.quantize.rowwise import SWITCH, migrate_outliers, plan_rowwise, quantize_rowwise, switchable
from edgeonnx.quantize.static_qdq import quantize_static_qdq
from edgeonnx.quantize.weight_only import quantize_weight_only
from edgeonnx.spec.evidence import NodeCost, SearchPoint, VariantEvidence
from edgeonnx.spec.numerics import integer_kernel, saturates, why

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgeonnx.evaluate.answers import Run
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.model.ports import FloatTensors, IntTensors
    from edgeonnx.pipeline.base import Base
    from edgeonnx.pipeline.measure import Yardstick
    from edgeonnx.pipeline.recipe import VariantRecipe
    from edgeonnx.quantize.earlier import EarlierPlan
    from edgeonnx.quantize.rowwise import RowwisePlan

    Quantizer = Callable[[frozenset[str]], StoredGraph]

MAX_SPEED_POINTS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class MadeVariant:
    """A variant that passed its gate.

    Attributes:
        recipe: How it was made.
        graph: Its graph.
        path: Where the graph lies that was measured, beside its tensors: this one, or for bfloat16, which ONNX
            Runtime does not compute on the CPU, one that rounds as it would.
        evidence: What was measured.
        plan: Facts about how it was made, for the manifest.
        candidates: Graphs of the search by candidate name, for measuring their speed; empty if there was none.
        base: What was kept of the base and how much differs from it, for the evidence; None without a base.
    """

    recipe: VariantRecipe
    graph: StoredGraph
    path: Path
    evidence: VariantEvidence
    plan: dict[str, object]
    candidates: dict[str, Path]
    base: dict[str, object] | None = None


@dataclass(kw_only=True)
class Workshop:
    """Makes the variants of one build.

    Attributes:
        exported: The graph as it was exported, for GPU variants.
        optimized: The same, optimized for the CPU provider; it passed parity.
        yardstick: What variants are held against.
        folder: Holds graphs and tensors while they are worked on.
        search_seconds: Budget of the refinement of one variant.
        on_step: Called with (what is being done, done, of how many), for progress.
        base: A bundle of an earlier version, whose variants are repeated where the gate allows; or None.
    """

    exported: StoredGraph
    optimized: StoredGraph
    yardstick: Yardstick
    folder: Path
    search_seconds: float
    on_step: Callable[[str, int, int], None]
    base: Base | None = None
    _tried: dict[frozenset[str], tuple[StoredGraph, Path]] = field(default_factory=dict)

    def make(self, recipe: VariantRecipe) -> MadeVariant:
        """Make one variant.

        Raises:
            QuantizationError: The graph cannot be quantized this way.
            GateError: No candidate keeps the thresholds.
            UsageError: The figures of this variant cannot be measured on this machine's processor.
        """
        check_host(recipe)
        if self.base is None:
            return self._make(recipe)
        made, outcome = self._make_after(recipe, self.base)
        changes = self.base.compare(recipe, made.graph)
        self.on_step(f"{recipe.name}: {outcome}; {changes}", 0, 0)
        return replace(made, base={"recipe": outcome, **changes.to_dict()})

    def _make_after(self, recipe: VariantRecipe, base: Base) -> tuple[MadeVariant, str]:
        """Make a variant as the base's was made, or anew; and say which."""
        if recipe.scheme not in PLANNED:
            return self._make(recipe), "follows from the weights"
        earlier = base.plan_of(recipe)
        if earlier is None:
            return self._make(recipe), "made anew: the base has no such variant"
        self._tried = {}
        plan, quantize, costs = self._prepare(recipe, earlier)
        keep = earlier.kept & {item.node for item in costs}
        candidate = self._measure(recipe, quantize, keep)
        point = _only_point(candidate, len(keep))
        self._show(recipe, point)
        if candidate.verdict.passed:
            found = SearchResult(keep=keep, points=(point,), candidates=(candidate,), out_of_budget=False)
            return self._made(recipe, plan, found, costs), "recipe and scales of the base kept"
        failed = ", ".join(candidate.verdict.failures)
        return self._make(recipe), f"made anew: with recipe and scales of the base the gate fails ({failed})"

    def _make(self, recipe: VariantRecipe) -> MadeVariant:
        """Make a variant without a base."""
        self._tried = {}
        plan, quantize, costs = self._prepare(recipe)
        found = refine(
            costs,
            partial(self._measure, recipe, quantize),
            budget=TimeBudget.of(self.search_seconds, time.monotonic),
            on_candidate=partial(self._show, recipe),
        )
        if found.keep is None:
            tried = found.points if len(found.points) > 1 else ()
            raise gate_error(recipe.name, found.nearest.verdict, found.nearest.worst, tried=tried)
        return self._made(recipe, plan, found, costs)

    def _measure(self, recipe: VariantRecipe, quantize: Quantizer, keep: frozenset[str]) -> Candidate:
        """Quantize with some groups kept, measure and judge."""
        graph = quantize(keep)
        measured = emulate_bf16(self.exported) if recipe.precision == "bf16" else graph
        path = measured.write(self.folder, f"{recipe.name}-{len(keep):03d}.onnx")
        self._tried[keep] = (graph, path)
        return self.yardstick.measure(open_graph(path, None), self.yardstick.thresholds(recipe))

    def _prepare(
        self, recipe: VariantRecipe, earlier: EarlierPlan | None = None
    ) -> tuple[dict[str, object], Quantizer, list[NodeCost]]:
        """Facts for the manifest, the function that quantizes with groups kept, and what each group costs."""
        yardstick = self.yardstick
        if recipe.scheme is Scheme.ROWWISE:
            plan = plan_rowwise(
                self.optimized,
                yardstick.calibration,
                weight_bits=recipe.weight_bits,
                earlier=earlier,
                on_group=partial(self.on_step, f"{recipe.name}: calibrate"),
            )
            costs = self._costs(recipe, plan)
            return plan.to_dict(), lambda keep: quantize_rowwise(self.optimized, plan, keep=keep), costs
        if recipe.scheme is Scheme.STATIC:
            return self._prepare_static(recipe, earlier)
        makers: dict[Scheme, Callable[[], StoredGraph]] = {
            Scheme.FLOAT: lambda: self.optimized,
            Scheme.WEIGHT_ONLY: lambda: quantize_weight_only(self.optimized, bits=recipe.weight_bits),
            Scheme.BATCH_DYNAMIC: lambda: quantize_ort_dynamic(self.optimized),
            Scheme.HALF: lambda: to_half(self.exported, "bf16" if recipe.precision == "bf16" else "fp16"),
        }
        return {}, lambda _keep: makers[recipe.scheme](), []

    def _prepare_static(
        self, recipe: VariantRecipe, earlier: EarlierPlan | None
    ) -> tuple[dict[str, object], Quantizer, list[NodeCost]]:
        """The same for fixed scales. A group's cost is the error of its own output, which calibration knows already."""
        calibration = self.yardstick.calibration
        plan = plan_rowwise(
            self.exported,
            calibration,
            static=True,
            earlier=earlier,
            on_group=partial(self.on_step, f"{recipe.name}: calibrate"),
        )
        migrated = migrate_outliers(self.exported, plan)
        nodes = {group.name: group.node_names for group in find_groups(restore_graph(self.exported).graph)}
        costs = [NodeCost(node=name, cost=float(f"{item.error:.1e}")) for name, item in plan.groups.items()]
        costs.sort(key=lambda item: (-item.cost, item.node))

        def quantize(keep: frozenset[str]) -> StoredGraph:
            return quantize_static_qdq(migrated, calibration, keep=[node for name in keep for node in nodes[name]])

        return plan.to_dict(), quantize, costs

    def _costs(self, recipe: VariantRecipe, plan: RowwisePlan) -> list[NodeCost]:
        """What each group costs alone, measured in one graph whose groups are switched on one by one."""
        path = switchable(self.optimized, plan).write(self.folder, "switchable.onnx")
        run, costs = open_graph(path, None), []
        nothing = self._loss(run, np.zeros(len(plan.names), np.float32))
        for index, name in enumerate(plan.names):
            flags = np.zeros(len(plan.names), np.float32)
            flags[index] = 1
            # Rounded, as the order of the search must not hang on the last bits of a sum.
            costs.append(NodeCost(node=name, cost=max(0.0, float(f"{self._loss(run, flags) - nothing:.1e}"))))
            self.on_step(f"{recipe.name}: sensitivity", index + 1, len(plan.names))
        return sorted(costs, key=lambda item: (-item.cost, item.node))

    def _loss(self, run: Run, flags: np.ndarray) -> float:
        def switched(inputs: IntTensors) -> FloatTensors:
            return run({**inputs, SWITCH: flags})

        return self.yardstick.loss(switched)

    def _show(self, recipe: VariantRecipe, point: SearchPoint) -> None:
        """A line for each candidate: what was kept, what came of it."""
        verdict = "passes" if point.passed else "fails"
        kept = f", {point.kept} groups kept in fp32" if point.kept else ""
        figures = ", ".join(f"{name} {value:g}" for name, value in list(point.metrics.items())[:3])
        self.on_step(f"{recipe.name}{kept}: {verdict} ({figures})", 0, 0)

    def _made(
        self, recipe: VariantRecipe, plan: dict[str, object], found: SearchResult, costs: list[NodeCost]
    ) -> MadeVariant:
        keep = found.keep or frozenset()
        graph, path = self._tried[keep]
        chosen = found.nearest
        figures: dict[bool, dict[str, float]] = {True: {}, False: {}}
        for name, value in chosen.metrics.items():
            figures["invariance" in name][name] = value
        named = [replace(point, name=f"{recipe.name}/{point.name}") for point in found.points]
        paths = [item[1] for item in self._tried.values()]
        evidence = VariantEvidence(
            precision=recipe.precision,
            measured_on=f"{CPU}, bfloat16 emulated" if recipe.precision == "bf16" else CPU,
            texts=len(self.yardstick.reference.texts),
            fidelity=figures[False],
            invariance=figures[True],
            gate=chosen.verdict,
            tensor_bytes=graph.tensor_bytes,
            operators=written_operators(graph),
            loaded=loaded_operators(path),
            quantized=len(costs) - len(keep),
            kept=tuple(item.node for item in costs if item.node in keep),
            worst=chosen.worst,
            sensitivity=tuple(costs),
            search=tuple(named) if costs else (),
        )
        facts: dict[str, object] = {"scheme": recipe.scheme.value, **plan}
        if keep:
            facts["kept"] = sorted(keep)
        others = {point.name: item for point, item in zip(named, paths, strict=True) if not point.chosen}
        return MadeVariant(
            recipe=recipe,
            graph=graph,
            path=path,
            evidence=evidence,
            plan=facts,
            candidates=dict(list(others.items())[:MAX_SPEED_POINTS]),
        )


def _only_point(candidate: Candidate, kept: int) -> SearchPoint:
    """The one candidate of a variant that repeats its base."""
    passed = candidate.verdict.passed
    metrics = dict(candidate.metrics)
    return SearchPoint(name=f"keep-{kept:02d}", kept=kept, metrics=metrics, passed=passed, chosen=passed)


def check_host(recipe: VariantRecipe) -> None:
    """Refuse to measure integer arithmetic that this machine's processor does not compute exactly.

    Raises:
        UsageError: It would saturate here, so that every figure would be wrong.
    """
    if recipe.integer is None:
        return
    host = host_profile()
    kernel = integer_kernel(host.architecture, host.instruction_sets)
    if saturates(kernel, recipe.integer.activation_max, recipe.integer.weight_max):
        raise UsageError(
            f"the variant {recipe.name} cannot be measured on this machine",
            expected="a processor that computes its integer products exactly",
            found=why(kernel),
            hint="build on a machine with VNNI, or take --target avx2, whose weights are safe here",
        )


def main_metrics(evidence: VariantEvidence, count: int = 2) -> str:
    """The first figures of a variant, in a few words."""
    shown = [(name, value) for name, value in evidence.fidelity.items() if name in METRICS][:count]
    return ", ".join(f"{name.replace('_', ' ')} {value:.6g}" for name, value in shown)
