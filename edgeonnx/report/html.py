"""The report as one HTML page: no network, no script, no fonts of its own; for screens, light and dark, and for paper.

Names and texts in a report come from models and users, so nothing in it is trusted: Jinja escapes every value, and
what is not printable (an escape sequence, a change of writing direction) is shown as an escape.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from edgeonnx.errors import RuntimeUnavailableError, printable
from edgeonnx.report import figures, words
from edgeonnx.report.plot import Bar, bars, scatter

if TYPE_CHECKING:
    from jinja2 import Environment

    from edgeonnx.report.content import Report
    from edgeonnx.report.figures import Point, VariantRow

TEMPLATE = "report.html.j2"
MAX_BARS = 40
"""Groups in the plot of sensitivity; those that cost least are counted below it."""


def render(report: Report) -> bytes:
    """The page, UTF-8. The same report gives the same bytes.

    Raises:
        RuntimeUnavailableError: Jinja2 is not installed.
    """
    text = files("edgeonnx.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    # Half a surrogate pair is no text; `printable` shows it as an escape, and nothing else can bring one in.
    return _environment().from_string(text).render(_view(report)).encode("utf-8")


def _environment() -> Environment:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise RuntimeUnavailableError(
            "jinja2 cannot be imported", found=str(error), hint="pip install 'edgeonnx[host]'"
        ) from None
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,  # a slip in the template is an error, not a hole in the page
        finalize=_printable_unless_markup,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("figure", "rate", "milliseconds", "ratio", "size", "quoted", "name_of", "bound", "value_of"):
        environment.filters[name] = getattr(words, name)
    environment.filters["provider"] = words.provider
    environment.filters["requirements"] = words.requirements
    return environment


def _printable_unless_markup(value: object) -> object:
    """What Jinja puts out, made printable; the plots are the only markup that comes in ready."""
    return value if hasattr(value, "__html__") else printable(value)


def _view(report: Report) -> dict[str, object]:
    """What the template names."""
    from markupsafe import Markup

    rows = figures.variant_rows(report)
    metric = figures.main_metric(report)
    points = figures.pareto(report)
    evidence, generation = report.evidence, report.manifest.generation
    source_files = evidence.source.get("files")
    return {
        "report": report,
        "manifest": report.manifest,
        "evidence": evidence,
        "timings": report.timings,
        "rows": rows,
        "metric": metric,
        "sizes": figures.sizes(report),
        "points": points,
        "search_threads": _threads(report),
        "generates": figures.generates(report),
        "generation": {} if generation is None else words.generation(generation),
        "counted": figures.counted(report),
        # Both plots escape every text that they hold.
        "pareto": Markup(_pareto_plot(points, metric, figures.counted(report))),  # noqa: S704
        "sensitivity": {row.variant.name: Markup(_sensitivity_plot(row)) for row in rows},  # noqa: S704
        "max_bars": MAX_BARS,
        "operators": {row.variant.name: figures.operator_rows(row.evidence) for row in rows if row.evidence},
        "fusions": {row.variant.name: figures.fusions(row.evidence) for row in rows if row.evidence},
        "facts": words.facts,
        "source_files": source_files if isinstance(source_files, dict) else {},
        "total_seconds": 0.0 if report.timings is None else sum(report.timings.stages.values()),
    }


def _threads(report: Report) -> str:
    """The thread counts that speeds were measured with, in words."""
    if report.timings is None:
        return ""
    counts = sorted({timing.threads for timing in report.timings.graphs.values()})
    return " and ".join(str(count) for count in counts) + (" thread" if counts == [1] else " threads")


def _pareto_plot(points: tuple[Point, ...], metric: str | None, counted: str) -> str:
    front = ", ".join(point.name for point in points if point.front)
    return scatter(
        points,
        title="Speed against fidelity",
        description=f"{len(points)} builds. On the front, the fastest first: {front}.",
        x_label=f"{counted} per second",
        y_label=words.name_of(metric or ""),
    )


def _sensitivity_plot(row: VariantRow) -> str:
    if row.evidence is None:
        return ""
    kept = set(row.evidence.kept)
    items = [
        Bar(name=item.node, value=item.cost, text=words.figure(item.cost), marked=item.node in kept)
        for item in row.evidence.sensitivity[:MAX_BARS]
    ]
    return bars(
        items,
        title=f"What each group costs in {row.variant.name}",
        description="Loss of fidelity with only that group quantized, the costliest first.",
        mark="kept",
    )
