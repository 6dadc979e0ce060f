"""A report, drawn in the terminal: the same data as the page, readable without colours, in 80 columns and piped."""

from __future__ import annotations

import io
import math
import sys
from typing import TYPE_CHECKING

from rich.text import Text

from edgeonnx.cli import tables
from edgeonnx.cli.output import stdout
from edgeonnx.errors import printable
from edgeonnx.report import figures, words
from edgeonnx.spec.timings import DecodingTiming, Timing

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from edgeonnx.report.content import Report
    from edgeonnx.report.figures import VariantRow
    from edgeonnx.spec.evidence import VariantEvidence

BAR_WIDTH = 14
EIGHTHS = " ▏▎▍▌▋▊▉"
FULL = "█"
MAX_CONTEXT = 60
"""Characters before a worst position that are shown."""
MAX_TEXT = 200
"""Characters of a worst text that are shown; the page has all that the evidence has."""


def draw(report: Report, console: Console | None = None) -> None:
    """Draw a report.

    Args:
        report: The report.
        console: Where to; standard output if not given.
    """
    if console is None:
        # Texts in many scripts go to terminals of any encoding: what one cannot show becomes an escape.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        console = stdout()
    rows = figures.variant_rows(report)
    console.print(tables.facts(_head(report)))
    console.print()
    for row in rows:
        console.print(_verdict(row))
    _variants(console, report, rows)
    _pareto(console, report)
    for row in rows:
        if row.evidence is not None:
            _detail(console, report, row, row.evidence)
    _sizes(console, report)
    _conditions(console, report)


def written(file: Path) -> None:
    """Say where the page is."""
    stdout().print(tables.facts([("page", str(file))]))


def _head(report: Report) -> list[tuple[str, str]]:
    manifest, source = report.manifest, report.evidence.source
    facts = [
        ("bundle", f"{manifest.name} {manifest.version} ({manifest.task.value})"),
        ("source", f"{words.value_of(source.get('identity'))} ({words.value_of(source.get('architecture'))})"),
    ]
    if manifest.generation is not None:
        facts += words.generation(manifest.generation).items()
    return facts if report.digest is None else [*facts, ("digest", f"sha256:{report.digest}")]


def _verdict(row: VariantRow) -> Text:
    mark, style = {"passed": ("ok    ", "green"), "failed": ("FAILED", "bold red")}.get(row.state, ("      ", ""))
    return Text.assemble((f"{mark} ", style), (printable(row.variant.name), "bold"), f" {printable(row.verdict)}")


def _variants(console: Console, report: Report, rows: tuple[VariantRow, ...]) -> None:
    """Two tables, so that neither needs more than 80 columns."""
    metric = figures.main_metric(report)
    _title(console, "Variants")
    table = tables.table(
        "variant", "precision", "on", f">{words.name_of(metric or 'fidelity')}", ">invariance", ">tensors"
    )
    for row in rows:
        found = row.evidence
        tables.row(
            table,
            row.variant.name,
            row.variant.precision,
            words.provider(row.variant.requirements.provider),
            words.figure(None if found is None or metric is None else found.fidelity.get(metric)),
            words.figure(None if found is None else found.invariance.get("invariance_min")),
            words.size(None if found is None else found.tensor_bytes),
        )
    console.print(table)
    console.print()
    if any(row.timing is not None for row in rows):
        console.print(_decoding_speeds(rows) if figures.generates(report) else _speeds(rows))
    else:
        console.print("No speed of a variant was recorded.")
    console.print()
    console.print(
        tables.facts([(f"{row.variant.name} needs", words.requirements(row.variant.requirements)) for row in rows])
    )


def _speeds(rows: tuple[VariantRow, ...]) -> Table:
    table = tables.table("variant", ">threads", ">texts/s", ">tokens/s", ">median ms", ">95 % ms", ">to fp32")
    for row in rows:
        timing = row.timing
        if isinstance(timing, Timing):
            tables.row(
                table,
                row.variant.name,
                str(timing.threads),
                words.rate(timing.texts_per_second),
                words.rate(timing.tokens_per_second),
                words.milliseconds(timing.latency_ms),
                words.milliseconds(timing.latency_p95_ms),
                words.ratio(row.ratio),
            )
    return table


def _decoding_speeds(rows: tuple[VariantRow, ...]) -> Table:
    table = tables.table("variant", ">threads", ">prompt", ">prompt ms", ">tokens/s", ">to fp32")
    for row in rows:
        timing = row.timing
        if isinstance(timing, DecodingTiming):
            tables.row(
                table,
                row.variant.name,
                str(timing.threads),
                str(timing.prompt_tokens),
                words.milliseconds(timing.prompt_ms),
                words.rate(timing.tokens_per_second),
                words.ratio(row.ratio),
            )
    return table


def _pareto(console: Console, report: Report) -> None:
    points, metric = figures.pareto(report), figures.main_metric(report)
    _title(console, "Speed against fidelity")
    if not points:
        missing = "fidelity" if metric is None else "speed"
        console.print(f"There is no picture: no {missing} of a variant is known.")
        return
    fastest = max(point.x for point in points)
    table = tables.table("build", f">{figures.counted(report)}/s", "", f">{words.name_of(metric or '')}", "front")
    for point in points:
        tables.row(
            table,
            point.name,
            words.rate(point.x),
            _bar(point.x, fastest, console),
            words.figure(point.y),
            ("* " if point.front else "  ") + ("fails" if point.kind == "failed" else ""),
        )
    console.print(table)
    console.print("* on the front: nothing else is both faster and closer to the source")
    if any(point.kind == "failed" for point in points):
        console.print("fails: a candidate that does not keep the thresholds of the gate")


def _detail(console: Console, report: Report, row: VariantRow, found: VariantEvidence) -> None:
    name = row.variant.name
    noun = "windows of text" if figures.generates(report) else "texts"
    _title(console, f"{name}: {found.texts:,} {noun}, computed by {found.measured_on}")
    if found.gate.judged:
        table = tables.table("gate", "asked for", ">measured", "verdict")
        for threshold, measured in found.gate.judged:
            verdict = "kept" if threshold.passes(measured) else "NOT KEPT"
            tables.row(table, words.name_of(threshold.metric), words.bound(threshold), words.figure(measured), verdict)
        console.print(table)
        console.print()
    figures_found = {**found.fidelity, **found.invariance}
    if figures_found:
        console.print(tables.facts([(words.name_of(key), words.figure(value)) for key, value in figures_found.items()]))
    _worst(console, found)
    _sensitivity(console, found)
    _search(console, report, found)
    _operators(console, found)


def _worst(console: Console, found: VariantEvidence) -> None:
    if any(item.expected is not None for item in found.worst):
        console.print()
        table = tables.table(">score", ">token", "source", "variant", "worst positions: the text before")
        for item in found.worst:
            answers = [words.quoted(answer) for answer in (item.expected, item.found)]
            tables.row(table, words.figure(item.score), str(item.tokens), *answers, f"…{item.text[-MAX_CONTEXT:]}")
        console.print(table)
    elif found.worst:
        console.print()
        table = tables.table(">score", ">tokens", "worst texts")
        for item in found.worst:
            text = item.text if len(item.text) <= MAX_TEXT else f"{item.text[:MAX_TEXT]}…"
            tables.row(table, words.figure(item.score), str(item.tokens), text)
        console.print(table)


def _sensitivity(console: Console, found: VariantEvidence) -> None:
    if not found.sensitivity:
        return
    console.print()
    costs = [item.cost for item in found.sensitivity if math.isfinite(item.cost)]
    longest = max(costs, default=0.0)
    table = tables.table("group of nodes, quantized alone", ">cost", "")
    for item in found.sensitivity:
        kept = " kept" if item.node in found.kept else ""
        tables.row(table, item.node, words.figure(item.cost), _bar(item.cost, longest, console) + kept)
    console.print(table)
    if found.kept:
        console.print(f"{found.quantized} groups in low precision; those marked kept stay in higher precision")


def _search(console: Console, report: Report, found: VariantEvidence) -> None:
    if not found.search:
        return
    metric = figures.main_metric(report)
    graphs = {} if report.timings is None else report.timings.graphs
    console.print()
    table = tables.table(
        "candidate", ">kept", f">{words.name_of(metric or 'fidelity')}", f">{figures.counted(report)}/s", "gate"
    )
    for item in found.search:
        timing = graphs.get(item.name)
        tables.row(
            table,
            item.name,
            str(item.kept),
            words.figure(None if metric is None else item.metrics.get(metric)),
            words.rate(None if timing is None else timing.rate),
            ("passed" if item.passed else "failed") + (", chosen" if item.chosen else ""),
        )
    console.print(table)


def _operators(console: Console, found: VariantEvidence) -> None:
    rows = figures.operator_rows(found)
    if not rows:
        return
    console.print()
    table = tables.table("operator", ">written", ">loaded", "change")
    for row in rows:
        if found.loaded:
            change = "" if row.change == "as written" else row.change
            tables.row(table, row.name, str(row.written), str(row.loaded), change)
        else:
            tables.row(table, row.name, str(row.written), words.NONE, "")
    console.print(table)


def _sizes(console: Console, report: Report) -> None:
    found = figures.sizes(report)
    _title(console, "Sizes")
    if found is None:
        console.print("The files of the bundle are not known to this report.")
        return
    table = tables.table("variant", ">graph", ">tensors", ">of these shared")
    for item in found.variants:
        tables.row(table, item.name, words.size(item.graph), words.size(item.tensors), words.size(item.shared))
    console.print(table)
    console.print()
    table = tables.table("files", ">number", ">size")
    for name, (count, total) in {**found.parts, "all": (found.files, found.total)}.items():
        tables.row(table, name, f"{count:,}", words.size(total))
    console.print(table)
    if found.distinct < found.total:
        console.print(f"stored by digest, each content once: {words.size(found.distinct)}")


def _conditions(console: Console, report: Report) -> None:
    """Parity, texts, tools, machine and times: as the evidence has them, or a sentence that it has none."""
    evidence, timings = report.evidence, report.timings
    parts: list[tuple[str, list[tuple[str, str]], str]] = [
        ("Parity with the source", words.facts(evidence.parity), "No comparison is recorded."),
        ("Text path", words.facts(evidence.tokenizer), "No comparison is recorded."),
        ("Source", words.facts(evidence.source, without=("files",)), "The source is not recorded."),
        ("Files that were read", _source_files(report), "No file of the source is recorded."),
        ("Texts", words.facts(evidence.texts), "Which texts the variants were measured on is not recorded."),
        ("Tools", list(evidence.tools.items()), "The tools are not recorded."),
        ("Machine", [] if timings is None else words.facts({**timings.machine}), "The machine is not recorded."),
        ("Times", _times(report), "The times of the stages are not recorded."),
    ]
    for title, facts, otherwise in parts:
        _title(console, title)
        console.print(tables.facts(facts) if facts else otherwise)


def _source_files(report: Report) -> list[tuple[str, str]]:
    files = report.evidence.source.get("files")
    return [(str(name), words.value_of(digest)) for name, digest in files.items()] if isinstance(files, dict) else []


def _times(report: Report) -> list[tuple[str, str]]:
    stages = {} if report.timings is None else report.timings.stages
    if not stages:
        return []
    times = {**stages, "all": sum(stages.values())}
    return [(words.name_of(name), f"{seconds:.1f} s") for name, seconds in times.items()]


def _bar(value: float, longest: float, console: Console) -> str:
    """A bar of block characters, to an eighth of a column; of `#` where the terminal has no UTF-8."""
    if not (math.isfinite(value) and value > 0 and longest > 0):
        return ""
    eighths = round(value / longest * BAR_WIDTH * 8)
    if not (console.encoding or "").startswith("utf"):
        return "#" * round(eighths / 8)
    return FULL * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(printable(text), style="bold"))
