"""Making a variant of a decoder: the fastest candidate first, until the gate lets one through."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edgeonnx.errors import GateError
from edgeonnx.evaluate.gate import gate_error
from edgeonnx.model.decoder import open_decoder
from edgeonnx.model.operators import loaded_operators, written_operators
from edgeonnx.pipeline.recipe import CPU, Scheme
from edgeonnx.quantize.decoder import WEIGHT_RECIPES, last_position, quantize_decoder
from edgeonnx.spec.evidence import SearchPoint, VariantEvidence

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from edgeonnx.evaluate.refine import Candidate
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.pipeline.decoder.yardstick import DecoderYardstick
    from edgeonnx.pipeline.recipe import VariantRecipe
    from edgeonnx.spec.generation import CacheShape


@dataclass(frozen=True, kw_only=True, eq=False)
class MadeDecoder:
    """A variant that passed its gate.

    Attributes:
        recipe: What it is.
        graph: Its graph as it ships, with the logits of the last position.
        path: Where that graph lies, beside its tensors.
        evidence: What was measured.
        plan: Facts about how it was made, for the manifest.
    """

    recipe: VariantRecipe
    graph: StoredGraph
    path: Path
    evidence: VariantEvidence
    plan: dict[str, object]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Draft:
    """A candidate that is not measured yet: its name, how it is made, and facts about that for the manifest."""

    name: str
    make: Callable[[], StoredGraph]
    facts: dict[str, object]


@dataclass(kw_only=True)
class DecoderWorkshop:
    """Makes the variants of one build.

    Attributes:
        full: The float graph with logits at every position; it passed parity.
        half: Makes the same in half precision, for GPUs.
        calibration: Token ids of the calibration texts.
        cache: The decoder's caches.
        yardstick: What variants are held against.
        folder: Holds graphs and tensors while they are worked on.
        on_step: Called with (what is being done, done, of how many), for progress.
    """

    full: StoredGraph
    half: Callable[[], StoredGraph]
    calibration: tuple[tuple[int, ...], ...]
    cache: CacheShape
    yardstick: DecoderYardstick
    folder: Path
    on_step: Callable[[str, int, int], None]

    def make(self, recipe: VariantRecipe) -> MadeDecoder:
        """Make one variant.

        Raises:
            QuantizationError: The graph cannot be quantized this way.
            GateError: No candidate keeps the thresholds.
        """
        tried: list[tuple[SearchPoint, Candidate]] = []
        thresholds = self.yardstick.thresholds(recipe)
        for draft in self._drafts(recipe):
            self.on_step(f"{recipe.name}: make {draft.name}", 0, 1)
            graph = draft.make()
            path = graph.write(self.folder, f"{recipe.name}.full.onnx")
            measured = self.yardstick.measure(
                open_decoder(path, None, self.cache), thresholds, partial(self.on_step, f"{recipe.name}: measure")
            )
            passed = measured.verdict.passed
            point = SearchPoint(
                name=f"{recipe.name}/{draft.name}", kept=0, metrics=dict(measured.metrics), passed=passed, chosen=passed
            )
            tried.append((point, measured))
            self._show(recipe, draft, measured)
            if passed:
                return self._made(recipe, draft, graph, tried)
        _, nearest = min(tried, key=lambda item: _misses(item[1]))
        points = [point for point, _ in tried]
        raise gate_error(recipe.name, nearest.verdict, nearest.worst, tried=points if len(points) > 1 else ())

    def _drafts(self, recipe: VariantRecipe) -> Iterator[_Draft]:
        """The candidates of a variant, the fastest first."""
        if recipe.scheme is Scheme.FLOAT:
            yield _Draft(name="float", make=lambda: self.full, facts={})
        elif recipe.scheme is Scheme.HALF:
            yield _Draft(name="half", make=self.half, facts={})
        else:
            for place, weights in enumerate(WEIGHT_RECIPES[recipe.weight_bits], 1):
                make = partial(quantize_decoder, self.full, weights, calibration=self.calibration)
                yield _Draft(name=f"candidate-{place}", make=make, facts=weights.to_dict())

    def _show(self, recipe: VariantRecipe, draft: _Draft, measured: Candidate) -> None:
        """A line for each candidate: what came of it."""
        verdict = "passes" if measured.verdict.passed else "fails"
        figures = ", ".join(f"{bound.metric} {value:g}" for bound, value in measured.verdict.judged)
        self.on_step(f"{recipe.name}, {draft.name}: {verdict} ({figures})", 0, 0)

    def _made(
        self, recipe: VariantRecipe, draft: _Draft, graph: StoredGraph, tried: list[tuple[SearchPoint, Candidate]]
    ) -> MadeDecoder:
        shipped = last_position(graph)
        path = shipped.write(self.folder, f"{recipe.name}.onnx")
        measured = tried[-1][1]
        figures: dict[bool, dict[str, float]] = {True: {}, False: {}}
        for name, value in measured.metrics.items():
            figures["invariance" in name][name] = value
        evidence = VariantEvidence(
            precision=recipe.precision,
            measured_on=CPU,
            texts=len(self.yardstick.reference.windows),
            fidelity=figures[False],
            invariance=figures[True],
            gate=measured.verdict,
            tensor_bytes=shipped.tensor_bytes,
            operators=written_operators(shipped),
            loaded=loaded_operators(path),
            worst=measured.worst,
            search=tuple(point for point, _ in tried) if len(tried) > 1 else (),
        )
        return MadeDecoder(
            recipe=recipe,
            graph=shipped,
            path=path,
            evidence=evidence,
            plan={"scheme": recipe.scheme.value, **draft.facts},
        )


def make_all(
    make: Callable[[VariantRecipe], MadeDecoder], recipes: Sequence[VariantRecipe], optional: Collection[str]
) -> tuple[list[MadeDecoder], dict[str, GateError]]:
    """Make variants; those that may be left out are, where none of their candidates passes.

    Args:
        make: Makes one, as `DecoderWorkshop.make` does.
        recipes: What to make.
        optional: Names of those that may be left out.

    Returns:
        What was made, and why the others were not, by name.

    Raises:
        GateError: One that must pass does not.
    """
    made, left_out = [], {}
    for recipe in recipes:
        try:
            made.append(make(recipe))
        except GateError as error:
            if recipe.name not in optional:
                raise
            left_out[recipe.name] = error
    return made, left_out


def _misses(candidate: Candidate) -> float:
    """How far a candidate is from its gate: the largest miss, in parts of the bound's own room."""
    misses = [0.0]
    for bound, value in candidate.verdict.judged:
        if bound.passes(value):
            continue
        if bound.at_least is not None:
            misses.append((bound.at_least - value) / max(1 - bound.at_least, 1e-9))
        else:
            misses.append(value / max(bound.at_most or 0.0, 1e-9))
    return max(misses)
