"""`edgeonnx`: package, inspect, verify and report. A verb parses, calls the pipeline, draws, chooses an exit code."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from edgeonnx import __version__
from edgeonnx.cli import exits, interrupt, repository
from edgeonnx.cli.chat import verb as chat
from edgeonnx.errors import EdgeOnnxError
from edgeonnx.evaluate.metrics import METRICS
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="edgeonnx",
    help="Take a trained model to small machines, proven equal to the original.",
    epilog=exits.HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; no progress.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]


def _bound(metric: str) -> Any:
    """The option that sets the gate's bound on a metric."""
    known = METRICS[metric]
    sense = "at least" if known.at_least else "at most"
    return typer.Option(known.option, help=f"Gate: {metric} must be {sense} this. [default: by task and precision]")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgeonnx {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the verb."""


def _interrupted() -> NoReturn:
    typer.echo("interrupted; what was there before is unchanged", err=True)
    raise typer.Exit(exits.INTERRUPTED) from None


def _reported(verb: Callable[P, R]) -> Callable[P, R]:
    """Turn our errors into messages and exit codes; nothing of ours ends in a traceback."""

    @functools.wraps(verb)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except EdgeOnnxError as error:
            if interrupt.received():  # a library that swallows the interrupt may fail over it
                _interrupted()
            from edgeonnx.cli.output import print_error

            print_error(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(error.exit_code) from None
        except (interrupt.Interrupted, KeyboardInterrupt):
            _interrupted()

    return wrapper


@app.command()
@_reported
def package(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Model directory, GGUF file, or hub id.")],
    name: Annotated[str, typer.Option("--name", "-n", help="Name of the bundle.")],
    version: Annotated[str, typer.Option("--version", "-v", help="Version of the bundle, such as 1.0.0.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder in which NAME-VERSION is made.")],
    task: Annotated[
        Task | None, typer.Option("--task", "-t", help="What the model is for [default: from its files].")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=8, help="Longest input in tokens [default: the model's own].")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", help="Kind of device to build for: cpu, avx2, cuda, tensorrt; several times. [default: cpu]"
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", help="A variant to build, by name; several times. Alone, it replaces the default target."
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option("--texts", help="Your own texts to measure with: one a line, or JSONL with text, pair, label."),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", help="Bundle of an earlier version: repeat its recipe and scales if the gate allows."),
    ] = None,
    search_seconds: Annotated[
        float, typer.Option("--search-seconds", min=0, help="How long the refinement of one variant may take.")
    ] = 60.0,
    cosine_mean: Annotated[float | None, _bound("cosine_mean")] = None,
    cosine_p1: Annotated[float | None, _bound("cosine_p1")] = None,
    cosine_min: Annotated[float | None, _bound("cosine_min")] = None,
    rank_correlation: Annotated[float | None, _bound("rank_correlation")] = None,
    agreement: Annotated[float | None, _bound("agreement")] = None,
    score_correlation: Annotated[float | None, _bound("score_correlation")] = None,
    score_diff_mean: Annotated[float | None, _bound("score_diff_mean")] = None,
    score_diff_max: Annotated[float | None, _bound("score_diff_max")] = None,
    accuracy: Annotated[float | None, _bound("accuracy")] = None,
    macro_f1: Annotated[float | None, _bound("macro_f1")] = None,
    pearson: Annotated[float | None, _bound("pearson")] = None,
    metric_drop: Annotated[float | None, _bound("metric_drop")] = None,
    top1: Annotated[float | None, _bound("top1")] = None,
    kl_mean: Annotated[float | None, _bound("kl_mean")] = None,
    kl_p99: Annotated[float | None, _bound("kl_p99")] = None,
    kl_max: Annotated[float | None, _bound("kl_max")] = None,
    perplexity: Annotated[float | None, _bound("perplexity")] = None,
    perplexity_ratio: Annotated[float | None, _bound("perplexity_ratio")] = None,
    invariance_min: Annotated[float | None, _bound("invariance_min")] = None,
    invariance_diff: Annotated[float | None, _bound("invariance_diff")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a bundle of this name and version.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the source and print the plan; write nothing.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Export a model, prove it equal to its source, quantize it, and write a bundle.

    Fails without writing anything if the exported graph does not give the source model's answers, or if no candidate
    of a variant keeps the thresholds of the gate.
    """
    from edgeonnx.cli import show
    from edgeonnx.cli.output import Stages, print_json
    from edgeonnx.pipeline.recipe import PackageRequest

    bounds = {
        "cosine_mean": cosine_mean,
        "cosine_p1": cosine_p1,
        "cosine_min": cosine_min,
        "rank_correlation": rank_correlation,
        "agreement": agreement,
        "score_correlation": score_correlation,
        "score_diff_mean": score_diff_mean,
        "score_diff_max": score_diff_max,
        "accuracy": accuracy,
        "macro_f1": macro_f1,
        "pearson": pearson,
        "metric_drop": metric_drop,
        "top1": top1,
        "kl_mean": kl_mean,
        "kl_p99": kl_p99,
        "kl_max": kl_max,
        "perplexity": perplexity,
        "perplexity_ratio": perplexity_ratio,
        "invariance_min": invariance_min,
        "invariance_diff": invariance_diff,
    }
    request = PackageRequest(
        source=source,
        name=name,
        version=version,
        out=out,
        task=task,
        max_length=max_length,
        replace=force,
        targets=None if target is None else tuple(target),
        variants=tuple(variant or ()),
        texts=texts,
        thresholds={metric: bound for metric, bound in bounds.items() if bound is not None},
        search_seconds=search_seconds,
        base=base,
    )
    if dry_run:
        from edgeonnx.pipeline.plan import plan

        planned = plan(request)
        print_json(planned.to_dict()) if as_json else show.plan(planned)
        return
    from edgeonnx.pipeline.run import package as run_package

    with Stages(quiet=quiet or as_json) as stages:
        result = run_package(request, stages)
    print_json(result.to_dict()) if as_json else show.packaged(result)


@app.command()
@_reported
def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A bundle's folder, or an .onnx file.")],
    as_json: JsonOption = False,
) -> None:
    """Show what a bundle or an .onnx file holds; nothing of it is run."""
    from edgeonnx.cli import show
    from edgeonnx.cli.output import print_json
    from edgeonnx.pipeline.inspect import inspect as run_inspect

    found = run_inspect(path)
    print_json(found.to_dict()) if as_json else show.inspection(found)


@app.command()
@_reported
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check a bundle: every byte, its schema, and its golden answers on this machine."""
    from edgeonnx.cli import show
    from edgeonnx.cli.output import Stages, print_json
    from edgeonnx.pipeline.verify import verify as run_verify

    with Stages(quiet=quiet or as_json) as stages:
        report = run_verify(bundle, stages)
    print_json(report.to_dict()) if as_json else show.verified(report)


@app.command()
@_reported
def report(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it as one HTML page instead of drawing it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what was measured when a bundle was built: fidelity, speed, sizes, worst texts, sensitivity."""
    from edgeonnx.cli.output import print_json
    from edgeonnx.cli.report import draw, written
    from edgeonnx.pipeline import report as pipeline

    found = pipeline.report(bundle)
    if html is not None:
        from edgeonnx.report.html import render

        pipeline.check_output(html, replace=force)
        pipeline.write_page(render(found), html, replace=force)
    if as_json:
        print_json(found.to_dict())
    elif html is None:
        draw(found)
    else:
        written(html)


repository.register(app, _reported)
chat.register(app, _reported)


def main() -> None:
    """Entry point of the `edgeonnx` command."""
    interrupt.install()
    app(prog_name="edgeonnx")


if __name__ == "__main__":
    main()
