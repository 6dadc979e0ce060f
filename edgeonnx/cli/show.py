"""Results of the verbs, drawn for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from edgeonnx.cli import tables
from edgeonnx.cli.output import megabytes, stdout
from edgeonnx.errors import printable
from edgeonnx.report import words
from edgeonnx.spec.timings import Timing

SHOWN_METRICS = (
    "cosine_mean",
    "cosine_min",
    "agreement",
    "score_correlation",
    "accuracy",
    "pearson",
    "metric_drop",
    "top1",
    "kl_mean",
    "perplexity_ratio",
    "invariance_min",
)

if TYPE_CHECKING:
    from rich.table import Table

    from edgeonnx.bundle import Bundle
    from edgeonnx.pipeline.inspect import Inspection
    from edgeonnx.pipeline.plan import PackagePlan
    from edgeonnx.pipeline.run import PackageResult
    from edgeonnx.pipeline.verify import VerifyReport
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.timings import AnyTiming
    from edgeonnx.validate.inspection import GraphFacts


def plan(planned: PackagePlan) -> None:
    """The plan of `package --dry-run`."""
    console = stdout()
    console.print(tables.facts(planned.facts().items()))
    table = tables.table("stage", "what it does")
    for name, about in planned.stages:
        table.add_row(name, about)
    console.print(table)
    console.print("dry run: nothing was written")


def packaged(result: PackageResult) -> None:
    """The result of `package`."""
    rows = {
        "bundle": str(result.path),
        "digest": f"sha256:{result.digest}",
        "size": megabytes(result.size),
        "parity": _parity(result.evidence),
        **{name: _measured(name, result) for name in result.evidence.variants},
        "report": str(result.path / "report.html"),
        "time": f"{sum(result.seconds.values()):.1f} s",
    }
    console = stdout()
    console.print(tables.facts(rows.items()))
    console.print(Text.assemble("serve it: ", (f"edgeonnx-agent serve --bundle {result.path}", "bold")))
    if result.manifest.generation is not None:
        console.print(Text.assemble("try it:   ", (f"edgeonnx chat {result.path}", "bold")))


def _measured(name: str, result: PackageResult) -> str:
    """A variant in one line: what it is against the source, its size, its speed."""
    found = result.evidence.variants[name]
    figures = {**found.fidelity, **found.invariance}
    shown = [f"{metric.replace('_', ' ')} {figures[metric]:.5g}" for metric in SHOWN_METRICS if metric in figures]
    timing = result.timings.graphs.get(name)
    speed = [] if timing is None else [_speed(timing)]
    kept = [f"{len(found.kept)} groups in fp32"] if found.kept else []
    return ", ".join([*shown, megabytes(found.tensor_bytes), *speed, *kept])


def _speed(timing: AnyTiming) -> str:
    threads = f"{timing.threads} thread{'s' * (timing.threads > 1)}"
    return f"{timing.rate:.0f} {'texts' if isinstance(timing, Timing) else 'tokens'}/s on {threads}"


def verified(report: VerifyReport) -> None:
    """The result of `verify`."""
    manifest = report.bundle.manifest
    rows = {
        "bundle": f"{manifest.name} {manifest.version} ({manifest.task.value})",
        "digest": f"sha256:{report.bundle.digest}",
        "files": f"{report.files}, every byte as in contents.json",
        **(
            {"not covered": f"{', '.join(report.unsealed)}: outside the digest, not checked"} if report.unsealed else {}
        ),
        "tokens": f"{report.texts} golden texts give the source's ids ({report.text_path})",
    }
    for item in report.replays:
        comparison = item.comparison
        rows[item.variant] = (
            f"golden answers within {comparison.scaled_diff:.1e}, min cosine {comparison.min_cosine:.6f}, "
            "in a batch and alone"
        )
    rows.update({name: f"not replayed: {reason}" for name, reason in report.skipped})
    console = stdout()
    console.print(tables.facts(rows.items()))
    console.print(Text("the bundle is good on this machine", style="green"))


def inspection(found: Inspection) -> None:
    """The result of `inspect`."""
    console = stdout()
    if found.bundle is not None and found.evidence is not None:
        console.print(tables.facts(_bundle_rows(found.bundle, found.evidence).items()))
        console.print(_variants(found.bundle))
    for name, facts in found.graphs.items():
        _graph(name, facts)


def _bundle_rows(bundle: Bundle, evidence: Evidence) -> dict[str, str]:
    manifest, processing = bundle.manifest, bundle.manifest.processing
    rows = {
        "bundle": f"{manifest.name} {manifest.version}",
        "digest": f"sha256:{bundle.digest}",
        "task": manifest.task.value,
        "files": f"{len(bundle.contents.files)}, {megabytes(bundle.contents.total_size)}",
        "text": f"{processing.backend} path, up to {processing.max_length} tokens",
        "source": f"{evidence.source.get('identity', 'not stated')} ({evidence.source.get('architecture', 'unknown')})",
        "parity": _parity(evidence),
        "built with": ", ".join(f"{name} {version}" for name, version in evidence.tools.items()) or "not stated",
    }
    if bundle.absent:
        rows["not here"] = f"{', '.join(sorted(bundle.absent))} (a device holds only what it can use)"
    if manifest.generation is not None:
        rows.update(words.generation(manifest.generation))
    if manifest.labels:
        rows["labels"] = ", ".join(manifest.labels)
    rows.update({key: str(value) for key, value in manifest.properties.items()})
    return rows


def _parity(evidence: Evidence) -> str:
    """The figures of the comparison with the source model, as far as the evidence has them."""
    names = {"max_abs_diff": "max difference", "min_cosine": "min cosine", "texts": "texts", "rows": "rows"}
    names["greedy_tokens"] = "greedy tokens equal"
    found = [f"{label} {evidence.parity[key]}" for key, label in names.items() if key in evidence.parity]
    return ", ".join(found) or "not stated"


def _variants(bundle: Bundle) -> Table:
    table = tables.table("variant", "precision", "provider", "memory at least")
    for component in bundle.manifest.components.values():
        for variant in component.variants:
            needs = variant.requirements
            tables.row(
                table,
                f"{component.name}/{variant.name}",
                variant.precision,
                needs.provider,
                megabytes(needs.memory_bytes),
            )
    return table


def _of_a_later_layer(port: str) -> bool:
    """Whether a tensor is a cache like those of layer 0, which stand for all."""
    parts = port.split(".")
    return len(parts) == 3 and parts[0] in ("past_key_values", "present") and parts[1] != "0"


def _graph(name: str, facts: GraphFacts) -> None:
    console = stdout()
    console.print(Text(printable(name), style="bold"))
    table = tables.table("tensor", "type", "shape")
    for side, ports in (("in ", facts.inputs), ("out", facts.outputs)):
        for port, dtype, shape in ports:
            if not _of_a_later_layer(port):
                tables.row(table, f"{side} {port}", dtype, shape)
        caches = sum(_of_a_later_layer(port) for port, _, _ in ports)
        if caches:
            tables.row(table, f"{side} and {caches} caches of the other layers", "", "")
    console.print(table)
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts.opsets.items())
    console.print(
        tables.facts(
            {
                "opsets": opsets,
                "ir version": str(facts.ir_version),
                "producer": facts.producer or "not stated",
                "parameters": f"{facts.parameters:,} in {megabytes(facts.weight_bytes)}",
                "external files": str(facts.external_files),
            }.items()
        )
    )
    table = tables.table("operator", "domain", ">count")
    for (domain, operator), count in facts.operators.items():
        tables.row(table, operator, domain, str(count))
    console.print(table)
    table = tables.table("weights", ">tensors", ">elements", ">size")
    for dtype, (count, elements, size) in facts.weights.items():
        tables.row(table, dtype, str(count), f"{elements:,}", megabytes(size))
    console.print(table)
    table = tables.table("largest tensors", "type", "shape", ">size")
    for item in facts.largest:
        tables.row(table, item.name, item.dtype, str(list(item.shape)), megabytes(item.size))
    console.print(table)
