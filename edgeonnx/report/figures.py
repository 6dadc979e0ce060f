"""What a report shows, derived from its data: rows of variants, the Pareto picture, changes of operators, sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from edgeonnx.bundle.needs import text_files
from edgeonnx.report import words
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.paths import asset_directory, split_asset_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgeonnx.report.content import Report
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.evidence import VariantEvidence
    from edgeonnx.spec.manifest import Variant
    from edgeonnx.spec.timings import AnyTiming

MAIN_METRICS = ("cosine_mean", "agreement", "score_correlation", "rank_correlation", "top1")
"""The one figure of fidelity that stands for the others: the first of these that was measured. More is better."""
BASELINE = "fp32"

State = Literal["passed", "failed", "not judged"]
Kind = Literal["variant", "passed", "failed"]
Change = Literal["as written", "more", "fewer", "gone", "new"]


@dataclass(frozen=True, kw_only=True)
class VariantRow:
    """One variant with what is known of it.

    Attributes:
        variant: The variant.
        evidence: What was measured of it, or None.
        timing: Its speed on the build host, or None.
        ratio: Its texts or tokens per second over those of fp32 with as many threads, or None if one is unknown.
    """

    variant: Variant
    evidence: VariantEvidence | None
    timing: AnyTiming | None
    ratio: float | None = None

    @property
    def state(self) -> State:
        """What the gate said. A gate without thresholds judged nothing."""
        if self.evidence is None or not self.evidence.gate.judged:
            return "not judged"
        return "passed" if self.evidence.gate.passed else "failed"

    @property
    def verdict(self) -> str:
        """What the gate said, as a sentence."""
        if self.evidence is None:
            return "was not measured by itself."
        judged = self.evidence.gate.judged
        failures = [
            f"{words.name_of(threshold.metric)} is {words.figure(value)} and must be {words.bound(threshold)}"
            for threshold, value in judged
            if not threshold.passes(value)
        ]
        if not judged:
            return "was measured, and no threshold was set."
        if not failures:
            return "keeps its one threshold." if len(judged) == 1 else f"keeps all {len(judged)} thresholds."
        return f"does not keep {len(failures)} of {len(judged)} thresholds: {'; '.join(failures)}."


def variant_rows(report: Report) -> tuple[VariantRow, ...]:
    """The variants in the bundle's order of preference."""
    rows = []
    for component in report.manifest.components.values():
        for variant in component.variants:
            evidence = report.evidence.variants.get(variant.name)
            rows.append(VariantRow(variant=variant, evidence=evidence, timing=_timing(report, variant.name, evidence)))
    return tuple(replace(row, ratio=_ratio(row, rows)) for row in rows)


def _timing(report: Report, name: str, evidence: VariantEvidence | None) -> AnyTiming | None:
    """A variant's speed; that of the candidate that became it, where only this was measured."""
    graphs = {} if report.timings is None else report.timings.graphs
    chosen = [] if evidence is None else [point.name for point in evidence.search if point.chosen]
    return next((graphs[key] for key in (name, *chosen) if key in graphs), None)


def _ratio(row: VariantRow, rows: Sequence[VariantRow]) -> float | None:
    """Speed over that of the first fp32 variant that ran with as many threads."""
    if row.timing is None:
        return None
    for other in rows:
        timing = other.timing
        if other.variant.precision == BASELINE and timing is not None and timing.threads == row.timing.threads:
            return row.timing.rate / timing.rate if timing.rate > 0 else None
    return None


def generates(report: Report) -> bool:
    """Whether the bundle's model generates text: then speed is told in tokens, and the worst are positions."""
    return report.manifest.task is Task.TEXT_GENERATION


def counted(report: Report) -> str:
    """What a speed counts: `texts`, or `tokens`."""
    return "tokens" if generates(report) else "texts"


def main_metric(report: Report) -> str | None:
    """The metric of fidelity that the tables and the Pareto picture show; None if no variant was measured."""
    measured: dict[str, None] = {}
    for evidence in report.evidence.variants.values():
        measured.update(dict.fromkeys(evidence.fidelity))
    return next((metric for metric in MAIN_METRICS if metric in measured), next(iter(measured), None))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One build in the Pareto picture.

    Attributes:
        name: Name of the variant or of the candidate.
        x: Texts per second, or tokens where the model generates them.
        y: Fidelity, by the main metric.
        kind: A variant, or a candidate of the search that the gate passed or not.
        front: Whether no other point is at least as good in both and better in one.
    """

    name: str
    x: float
    y: float
    kind: Kind
    front: bool = False


def pareto(report: Report) -> tuple[Point, ...]:
    """Variants and candidates whose speed and fidelity are known, the fastest first.

    The candidate that became a variant is that variant's point. What is not finite cannot be drawn and is left out.
    """
    metric = main_metric(report)
    if metric is None or report.timings is None:
        return ()
    found = []
    for row in variant_rows(report):
        if row.evidence is None:
            continue
        if row.timing is not None and metric in row.evidence.fidelity:
            found.append(_point(row.variant.name, row.timing, row.evidence.fidelity[metric], "variant"))
        for candidate in row.evidence.search:
            timing = report.timings.graphs.get(candidate.name)
            if timing is not None and metric in candidate.metrics and not candidate.chosen:
                kind: Kind = "passed" if candidate.passed else "failed"
                found.append(_point(candidate.name, timing, candidate.metrics[metric], kind))
    drawable = [point for point in found if math.isfinite(point.x) and math.isfinite(point.y)]
    marked = [replace(point, front=not any(_dominates(other, point) for other in drawable)) for point in drawable]
    return tuple(sorted(marked, key=lambda point: (-point.x, -point.y, point.name)))


def _point(name: str, timing: AnyTiming, fidelity: float, kind: Kind) -> Point:
    return Point(name=name, x=timing.rate, y=fidelity, kind=kind)


def _dominates(one: Point, other: Point) -> bool:
    """Whether `one` is at least as good in both figures and better in one: Pareto dominance."""
    return one.x >= other.x and one.y >= other.y and (one.x > other.x or one.y > other.y)


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One operator before and after ONNX Runtime's optimizations: its counts, and what happened to it."""

    name: str
    written: int
    loaded: int

    @property
    def change(self) -> Change:
        """What loading did to it. An operator that is new is most often a fusion of others."""
        if self.written == 0:
            return "new"
        if self.loaded == 0:
            return "gone"
        return "as written" if self.written == self.loaded else ("more" if self.loaded > self.written else "fewer")


def operator_rows(evidence: VariantEvidence) -> tuple[OperatorRow, ...]:
    """Operators of the graph as written, the most frequent first, then those that only loading brought in."""
    names = sorted(
        {**evidence.operators, **evidence.loaded},
        key=lambda name: (-evidence.operators.get(name, 0), -evidence.loaded.get(name, 0), name),
    )
    return tuple(
        OperatorRow(name=name, written=evidence.operators.get(name, 0), loaded=evidence.loaded.get(name, 0))
        for name in names
    )


def fusions(evidence: VariantEvidence) -> tuple[OperatorRow, ...]:
    """The operators that appear only after loading; none if the loaded graph was not looked at."""
    return tuple(row for row in operator_rows(evidence) if row.change == "new")


@dataclass(frozen=True, kw_only=True)
class VariantSize:
    """Bytes of one variant's graph, of its external tensors, and of those that another variant has as well.

    `shared` is None where two variants have one folder of tensors: then the files do not say which is whose.
    """

    name: str
    graph: int
    tensors: int
    shared: int | None


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Where a bundle's bytes are.

    Attributes:
        variants: By variant.
        parts: Kind of file -> number of files and bytes; together they are the bundle.
        files: Number of files.
        total: Bytes of all files.
        distinct: Bytes of the different contents among them: what a store by digest keeps.
    """

    variants: tuple[VariantSize, ...]
    parts: dict[str, tuple[int, int]]
    files: int
    total: int
    distinct: int


def sizes(report: Report) -> Sizes | None:
    """Where the bytes of a bundle are; None if its files are not known."""
    if report.contents is None:
        return None
    files = report.contents.files
    by_digest = {entry.sha256: entry.size for entry in files}
    return Sizes(
        variants=_variant_sizes(report, files),
        parts=_parts(report, files),
        files=len(files),
        total=report.contents.total_size,
        distinct=sum(by_digest.values()),
    )


def _variant_sizes(report: Report, files: Sequence[FileEntry]) -> tuple[VariantSize, ...]:
    variants = [(c.name, variant) for c in report.manifest.components.values() for variant in c.variants]
    folders = {variant.name: _folder(variant.tensors) for _, variant in variants}
    held = {name: _below(files, folder) for name, folder in folders.items()}
    result = []
    for component, variant in variants:
        name, evidence = variant.name, report.evidence.variants.get(variant.name)
        mine = {entry.sha256: entry.size for entry in held[name]}
        others = {entry.sha256 for other, entries in held.items() if other != name for entry in entries}
        same = folders[name] is not None and list(folders.values()).count(folders[name]) > 1
        result.append(
            VariantSize(
                name=name,
                graph=sum(entry.size for entry in _below(files, f"{component}/{name}")),
                tensors=sum(mine.values()) if evidence is None else evidence.tensor_bytes,
                shared=None if same else sum(count for digest, count in mine.items() if digest in others),
            )
        )
    return tuple(result)


def _parts(report: Report, files: Sequence[FileEntry]) -> dict[str, tuple[int, int]]:
    """Files and bytes by kind; each file counts in the first kind that it belongs to."""
    manifest, generation = report.manifest, report.manifest.generation
    variants = [(c.name, variant) for c in manifest.components.values() for variant in c.variants]
    kinds: dict[str, list[str | None]] = {
        "tensors": [_folder(variant.tensors) for _, variant in variants],
        "graphs": [f"{component}/{variant.name}" for component, variant in variants],
        "tokenizer" if generation is None else "tokenizer and chat template": [
            _folder(reference) for reference in text_files(manifest)
        ],
        "golden set": [_folder(manifest.golden)],
    }
    parts, rest = {}, set(files)
    for kind, folders in kinds.items():
        chosen = {entry for folder in folders for entry in _below(rest, folder)}
        parts[kind] = (len(chosen), sum(entry.size for entry in chosen))
        rest -= chosen
    parts["metadata and evidence"] = (len(rest), sum(entry.size for entry in rest))
    return parts


def _folder(reference: str | None) -> str | None:
    return None if reference is None else asset_directory(split_asset_reference(reference, where="manifest.json")[0])


def _below(files: Iterable[FileEntry], folder: str | None) -> list[FileEntry]:
    return [] if folder is None else [entry for entry in files if entry.path.startswith(folder + "/")]
