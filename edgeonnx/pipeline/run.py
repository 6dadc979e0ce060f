"""`package`: from a source model to a bundle. The only caller of all stages, in their order."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.bundle import BundleWriter
from edgeonnx.bundle.writer import check_target, clear_leftovers
from edgeonnx.evaluate.speed import machine, measure_together
from edgeonnx.model.runtime import open_graph
from edgeonnx.optimize.passes import optimize_for_cpu
from edgeonnx.pipeline import describe
from edgeonnx.pipeline.decoder.run import DecoderJob, load_decoder_job, package_decoder
from edgeonnx.pipeline.describe import Build, BuiltVariant, device_thresholds
from edgeonnx.pipeline.finish import PackageResult, finish
from edgeonnx.pipeline.measure import Yardstick, calibration_batches, gate_of, read_user_texts, user_reference
from edgeonnx.pipeline.plan import missing_library, plan_base, plan_source
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.pipeline.recipe import ENCODERS, TOKENIZER_FILE, PackageRequest, model_path, stage_of
from edgeonnx.pipeline.texts import golden_rows, pair_up, shipped_texts
from edgeonnx.pipeline.variants import Workshop, check_host, main_metrics
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.timings import Timings

if TYPE_CHECKING:
    from edgeonnx.bundle.golden import GoldenSet
    from edgeonnx.evaluate.texts import UserTexts
    from edgeonnx.export.encoder import LoadedEncoder
    from edgeonnx.export.source import Source
    from edgeonnx.export.tasks import TaskPlan
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.model.reference import Reference
    from edgeonnx.pipeline.base import Base
    from edgeonnx.pipeline.progress import Progress
    from edgeonnx.pipeline.variants import MadeVariant
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.validate.parity import ParityResult
    from edgeonnx.validate.tokens import TextPath

__all__ = ["PackageResult", "package"]


def package(request: PackageRequest, progress: Progress | None = None) -> PackageResult:
    """Package a source model.

    Args:
        request: What to make.
        progress: Receives the stages as they run.

    Raises:
        EdgeOnnxError: A stage failed; nothing was written.
    """
    clear_leftovers(request.target)
    check_target(request.target, replace=request.replace)
    timer = StageTimer(progress=progress or Silent())
    with timer.stage(*stage_of("load")) as stage:
        source, decided = plan_source(request)
        load = load_decoder_job if decided.task is Task.TEXT_GENERATION else _load
        job = load(request, source, decided)
        stage.result = job.summary
    return package_decoder(job, timer) if isinstance(job, DecoderJob) else _package_encoder(job, timer)


def _package_encoder(job: _EncoderJob, timer: StageTimer) -> PackageResult:
    request, encoder, user, base = job.request, job.encoder, job.user, job.base
    exported = _export(encoder, timer)
    with (
        tempfile.TemporaryDirectory(prefix="edgeonnx-") as work,
        BundleWriter(request.target, replace=request.replace) as writer,
    ):
        folder = Path(work)
        optimized = optimize_for_cpu(exported)
        graph = optimized.graph if base is None else base.name(optimized.graph)
        path = graph.write(folder, "float.onnx")
        _check(encoder, graph, folder, timer)
        reference, text_path = _tokenize(encoder, timer)
        parity = _parity(encoder, reference, path, timer)
        golden = reference.golden(golden_rows(reference.lengths))
        made, yardstick = _variants(request, encoder, user, reference, base, exported, graph, folder, timer)
        timings = _speed(made, yardstick, timer)

        def assemble() -> tuple[Manifest, Evidence]:
            tensors = {name: data for item in made for name, data in item.graph.tensors.items()}
            build = Build(
                request=request,
                encoder=encoder,
                base=base,
                graph=graph,
                optimized=optimized.applied,
                text_path=text_path,
                parity=parity,
                texts=yardstick.to_dict(),
                variants=tuple(_built(item, golden) for item in made),
                tensors=writer.add_asset(tensors),
                tokenizer=writer.add_asset({TOKENIZER_FILE: encoder.tokenizer.document}),
                golden=writer.add_asset(golden.to_files()),
            )
            for item in made:
                writer.add(model_path(item.recipe), item.graph.model)
            return describe.manifest(build), describe.evidence(build)

        return finish(writer, request.target, ENCODERS, timings, timer, assemble)


def _built(made: MadeVariant, golden: GoldenSet) -> BuiltVariant:
    """A variant with what a device must reach when it replays the golden set, found out by replaying it here."""
    found = golden.replay(open_graph(made.path, None))
    return BuiltVariant(
        recipe=made.recipe,
        tensor_bytes=made.graph.tensor_bytes,
        golden=device_thresholds(made.recipe, found),
        plan=made.plan,
        evidence=made.evidence,
        base=made.base,
    )


def _variants(
    request: PackageRequest,
    encoder: LoadedEncoder,
    user: UserTexts | None,
    reference: Reference,
    base: Base | None,
    exported: StoredGraph,
    optimized: StoredGraph,
    folder: Path,
    timer: StageTimer,
) -> tuple[list[MadeVariant], Yardstick]:
    with timer.stage(*stage_of("quantize")) as stage:
        if user is not None:
            reference = user_reference(encoder, user, reference.pad_ids, timer.progress.advanced)
        yardstick = Yardstick(
            encoder=encoder,
            reference=reference,
            calibration=calibration_batches(encoder, reference.pad_ids),
            user=user,
            overrides=request.thresholds,
        )
        workshop = Workshop(
            exported=exported,
            optimized=optimized,
            yardstick=yardstick,
            folder=folder,
            search_seconds=request.search_seconds,
            on_step=timer.progress.stepped,
            base=base,
        )
        made = [workshop.make(recipe) for recipe in request.recipes(encoder.plan.task)]
        stage.result = "; ".join(f"{item.recipe.name} {main_metrics(item.evidence)}" for item in made)
        return made, yardstick


def _speed(made: list[MadeVariant], yardstick: Yardstick, timer: StageTimer) -> Timings:
    """Throughput and latency of what runs on the CPU provider, all measured in turn on one thread."""
    with timer.stage(*stage_of("speed")) as stage:
        paths = {item.recipe.name: item.path for item in made if item.recipe.on_cpu}
        paths.update({name: path for item in made for name, path in item.candidates.items()})
        runs = {name: open_graph(path, None, threads=1) for name, path in paths.items()}
        found = measure_together(runs, yardstick.reference, threads=1)
        shown = [f"{name} {found[name].texts_per_second:.0f}" for name in paths if "/" not in name]
        stage.result = f"texts/s on 1 thread: {', '.join(shown)}"
        return Timings(machine=machine(), graphs=dict(found))


@dataclass(frozen=True, kw_only=True)
class _EncoderJob:
    """An encoder that is loaded, and what is to be made of it."""

    request: PackageRequest
    encoder: LoadedEncoder
    user: UserTexts | None
    base: Base | None
    summary: str


def _load(request: PackageRequest, source: Source, decided: TaskPlan) -> _EncoderJob:
    base = plan_base(request, source, decided)
    recipes = request.recipes(decided.task)
    for recipe in recipes:
        check_host(recipe)
    user = read_user_texts(request.texts, takes_pairs=decided.task.takes_pairs)
    try:
        from edgeonnx.export.encoder import load_encoder
    except ImportError as error:
        raise missing_library(error) from None
    encoder = load_encoder(source, decided, max_length=request.max_length)
    for recipe in recipes:  # thresholds that cannot be are told before the work, not after it
        gate_of(encoder, recipe, request.thresholds, labelled=user is not None and user.labels is not None)
    summary = (
        f"{source.architecture or source.model_type}, {encoder.parameter_count / 1e6:.1f} M parameters, "
        f"task {decided.task.value}, up to {encoder.tokenizer.max_length} tokens"
        f"{'' if base is None else f', base {base.identity}'}"
    )
    return _EncoderJob(request=request, encoder=encoder, user=user, base=base, summary=summary)


def _export(encoder: LoadedEncoder, timer: StageTimer) -> StoredGraph:
    with timer.stage(*stage_of("export")) as stage:
        graph = encoder.export()
        stage.result = f"{graph.node_count} nodes, opset {graph.opset}, {len(graph.tensors)} tensors"
        return graph


def _check(encoder: LoadedEncoder, graph: StoredGraph, folder: Path, timer: StageTimer) -> None:
    from edgeonnx.validate.checker import check_graph

    with timer.stage(*stage_of("check")) as stage:
        check_graph(graph.model, folder, graph.signature, encoder.output_names)
        shown = [f"{spec.name} {spec.shape_text()}" for spec in graph.signature.outputs]
        stage.result = f"valid ONNX, outputs {', '.join(shown)}"


def _tokenize(encoder: LoadedEncoder, timer: StageTimer) -> tuple[Reference, TextPath]:
    from edgeonnx.model.reference import build_reference
    from edgeonnx.validate.tokens import choose_text_path

    with timer.stage(*stage_of("tokenize")) as stage:
        texts = shipped_texts()
        pairs = pair_up(texts) if encoder.plan.task.takes_pairs else None
        facts = encoder.tokenizer
        pad_ids = {"input_ids": facts.pad_id, "token_type_ids": facts.pad_type_id}
        reference = build_reference(encoder, texts, pairs, pad_ids, on_row=timer.progress.advanced)
        text_path = choose_text_path(
            facts.document,
            max_length=facts.max_length,
            pad_id=facts.pad_id,
            pad_type_id=facts.pad_type_id,
            prefix=facts.prefix,
            texts=texts,
            pairs=pairs,
            expected=reference.inputs,
        )
        stage.result = f"{text_path.backend} path, identical on {text_path.texts} texts"
        return reference, text_path


def _parity(encoder: LoadedEncoder, reference: Reference, model: Path, timer: StageTimer) -> ParityResult:
    from edgeonnx.validate.parity import check_parity

    with timer.stage(*stage_of("parity")) as stage:
        result = check_parity(
            reference,
            open_graph(model, None),
            max_length=encoder.tokenizer.max_length,
            on_batch=timer.progress.advanced,
        )
        stage.result = (
            f"max difference {result.comparison.max_abs_diff:.1e} over {result.rows} rows "
            f"in {sum(result.layouts.values())} batches"
        )
        return result
