"""`package` for a model that generates text. The only caller of its stages, in their order."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.bundle import BundleWriter
from edgeonnx.bundle.golden import GoldenSet
from edgeonnx.evaluate.speed import machine
from edgeonnx.pipeline.describe import device_thresholds
from edgeonnx.pipeline.finish import finish
from edgeonnx.pipeline.plan import missing_library, plan_base
from edgeonnx.pipeline.recipe import DECODERS, MODEL_FILE, TOKENIZER_FILE
from edgeonnx.pipeline.texts import calibration_texts, passages, shipped_texts
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK
from edgeonnx.spec.timings import Timings

if TYPE_CHECKING:
    from edgeonnx.evaluate.texts import UserTexts
    from edgeonnx.export.decoder.load import LoadedDecoder
    from edgeonnx.export.source import Source
    from edgeonnx.export.tasks import TaskPlan
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.pipeline.decoder.variants import MadeDecoder
    from edgeonnx.pipeline.decoder.yardstick import DecoderYardstick
    from edgeonnx.pipeline.describe import BuiltVariant
    from edgeonnx.pipeline.finish import PackageResult
    from edgeonnx.pipeline.progress import StageTimer
    from edgeonnx.pipeline.recipe import PackageRequest
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.validate.decoder import DecoderParity
    from edgeonnx.validate.tokens import TextPath


@dataclass(frozen=True, kw_only=True)
class DecoderJob:
    """A decoder that is loaded, and what is to be made of it.

    Attributes:
        request: What was asked for.
        source: The source model.
        user: The user's own texts to measure with, or None.
        summary: What was loaded, in a line.
    """

    request: PackageRequest
    source: LoadedDecoder
    user: UserTexts | None
    summary: str


def load_decoder_job(request: PackageRequest, source: Source, decided: TaskPlan) -> DecoderJob:
    """Load a source model; what can be refused early, is.

    Raises:
        EdgeOnnxError: The request does not fit a decoder, or the source cannot be loaded.
    """
    try:
        from edgeonnx.export.decoder.load import load_decoder
        from edgeonnx.pipeline.decoder.yardstick import gate_of, read_user_texts
    except ImportError as error:
        raise missing_library(error) from None
    plan_base(request, source, decided)
    for recipe in request.recipes(decided.task):
        gate_of(recipe, request.thresholds)
    user = read_user_texts(request.texts)
    loaded = load_decoder(source, decided, max_length=request.max_length)
    summary = (
        f"{source.architecture or source.model_type}, {loaded.parameter_count / 1e6:.1f} M parameters, "
        f"task {decided.task.value}, up to {loaded.facts.context_length} tokens"
    )
    return DecoderJob(request=request, source=loaded, user=user, summary=summary)


def package_decoder(job: DecoderJob, timer: StageTimer) -> PackageResult:
    """Make and write the bundle.

    Raises:
        EdgeOnnxError: A stage failed; nothing was written.
    """
    request, source = job.request, job.source
    with (
        tempfile.TemporaryDirectory(prefix="edgeonnx-") as work,
        BundleWriter(request.target, replace=request.replace) as writer,
    ):
        folder = Path(work)
        graph = _export(source, timer)
        path = graph.write(folder, "float.onnx")
        _check(source, graph, folder, timer)
        text_path, golden = _tokenize(source, timer)
        parity = _parity(source, path, timer)
        made, yardstick = _variants(job, graph, folder, timer)
        timings = _speed(source, made, timer)

        def assemble() -> tuple[Manifest, Evidence]:
            return _assemble(job, writer, graph, text_path, parity, golden, made, yardstick)

        return finish(writer, request.target, DECODERS, timings, timer, assemble)


def _export(source: LoadedDecoder, timer: StageTimer) -> StoredGraph:
    with timer.stage(*DECODERS.stage("export")) as stage:
        graph = source.export()
        stage.result = (
            f"{source.facts.exporter}: {graph.node_count} nodes, opset {graph.opset}, {len(graph.tensors)} tensors"
        )
        return graph


def _check(source: LoadedDecoder, graph: StoredGraph, folder: Path, timer: StageTimer) -> None:
    from edgeonnx.validate.checker import check_graph

    with timer.stage(*DECODERS.stage("check")) as stage:
        cache = source.facts.cache
        check_graph(graph.model, folder, graph.signature, (LOGITS, *cache.present_names))
        stage.result = (
            f"valid ONNX; caches of {cache.layers} layers, {cache.heads} heads of {cache.head_size}, "
            f"{cache.bytes_per_token(4) / 1e3:.1f} kB a token"
        )


def _tokenize(source: LoadedDecoder, timer: StageTimer) -> tuple[TextPath, GoldenSet]:
    from edgeonnx.pipeline.decoder.texts import path_texts
    from edgeonnx.validate.tokens import choose_text_path

    with timer.stage(*DECODERS.stage("tokenize")) as stage:
        facts = source.tokenizer
        texts = path_texts(source.facts.special_tokens)
        rows = source.tokenize(texts)
        whole = [place for place, row in enumerate(rows) if len(row) <= facts.max_length]
        text_path = choose_text_path(
            facts.document,
            max_length=facts.max_length,
            pad_id=facts.pad_id,
            pad_type_id=facts.pad_type_id,
            prefix=facts.prefix,
            texts=[texts[place] for place in whole],
            pairs=None,
            expected=[_one_row(rows[place]) for place in whole],
        )
        stage.result = f"{text_path.backend} path, identical on {text_path.texts} texts"
        return text_path, _golden(source)


def _one_row(ids: list[int]) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    row = np.array([ids], dtype=np.int64)
    return {INPUT_IDS: row, MASK: np.ones_like(row)}


def _golden(source: LoadedDecoder) -> GoldenSet:
    """Real texts with the source's logits after the last token of each."""
    from edgeonnx.pipeline.decoder.texts import golden_rows

    texts = shipped_texts()
    rows = source.tokenize(texts)
    chosen = golden_rows([len(row) for row in rows], source.facts.context_length)
    width = max(len(rows[place]) for place in chosen)
    ids = np.full((len(chosen), width), source.tokenizer.pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, place in enumerate(chosen):
        ids[row, : len(rows[place])] = rows[place]
        mask[row, : len(rows[place])] = 1
    logits = [source.logits(np.array([rows[place]], dtype=np.int64))[0, -1] for place in chosen]
    return GoldenSet(
        texts=tuple(texts[place] for place in chosen),
        pairs=None,
        inputs={INPUT_IDS: ids, MASK: mask},
        outputs={LOGITS: np.stack(logits)},
    )


def _parity(source: LoadedDecoder, path: Path, timer: StageTimer) -> DecoderParity:
    from edgeonnx.model.decoder import open_decoder
    from edgeonnx.pipeline.decoder.texts import open_show, parity_rows
    from edgeonnx.validate.decoder import check_decoder

    with timer.stage(*DECODERS.stage("parity")) as stage:
        result = check_decoder(
            source,
            open_decoder(path, None, source.facts.cache),
            parity_rows(source.tokenize),
            context_length=source.facts.context_length,
            show=open_show(source.tokenizer.document),
            on_check=timer.progress.advanced,
        )
        ties = f" but for {result.near_ties} near-ties" if result.near_ties else ""
        stage.result = (
            f"max difference {result.max_abs_diff:.1e} over {sum(result.positions.values())} positions with and "
            f"without caches; {result.answer_tokens} greedy tokens equal{ties}"
        )
        return result


def _variants(
    job: DecoderJob, graph: StoredGraph, folder: Path, timer: StageTimer
) -> tuple[list[MadeDecoder], DecoderYardstick]:
    from edgeonnx.pipeline.decoder.texts import company_rows, open_show
    from edgeonnx.pipeline.decoder.variants import DecoderWorkshop, make_all
    from edgeonnx.pipeline.decoder.yardstick import open_yardstick
    from edgeonnx.pipeline.variants import main_metrics

    source = job.source
    with timer.stage(*DECODERS.stage("quantize")) as stage:
        yardstick = open_yardstick(
            source,
            job.user,
            company_rows(source.tokenize(passages()), source.facts.context_length),
            open_show(source.tokenizer.document),
            job.request.thresholds,
            folder,
            timer.progress.advanced,
        )
        workshop = DecoderWorkshop(
            full=graph,
            half=source.export_half,
            calibration=_calibration(source),
            cache=source.facts.cache,
            yardstick=yardstick,
            folder=folder,
            on_step=timer.progress.stepped,
        )
        task = source.plan.task
        made, left_out = make_all(workshop.make, job.request.recipes(task), job.request.optional(task))
        shown = [f"{item.recipe.name} {main_metrics(item.evidence)}" for item in made]
        stage.result = "; ".join([*shown, *(f"{name} is left out: its gate lets none through" for name in left_out)])
        return made, yardstick


def _calibration(source: LoadedDecoder) -> tuple[tuple[int, ...], ...]:
    """Token ids of the calibration texts; none of them is a text that variants are measured on."""
    rows = source.tokenize(calibration_texts())
    return tuple(tuple(row[: source.facts.context_length]) for row in rows if row)


def _speed(source: LoadedDecoder, made: list[MadeDecoder], timer: StageTimer) -> Timings:
    """Prompts and steps of what runs on the CPU provider, all measured in turn on all cores."""
    from edgeonnx.evaluate.decoding import NEW_TOKENS, PROMPT_TOKENS, measure_decoding
    from edgeonnx.model.decoder import open_decoder

    with timer.stage(*DECODERS.stage("speed")) as stage:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        room = source.facts.context_length
        prompt = source.tokenize(passages()[:1])[0][: min(PROMPT_TOKENS, max(1, room // 2))]
        decoders = {
            item.recipe.name: open_decoder(item.path, None, source.facts.cache, threads=threads, spinning=True)
            for item in made
            if item.recipe.on_cpu
        }
        tokens = min(NEW_TOKENS, room - len(prompt))
        found = measure_decoding(decoders, prompt, threads=threads, tokens=tokens)
        shown = [f"{name} {item.tokens_per_second:.0f}" for name, item in found.items()]
        stage.result = f"tokens/s on {threads} thread{'s' * (threads > 1)}: {', '.join(shown)}"
        return Timings(machine=machine(), graphs=dict(found))


def _assemble(
    job: DecoderJob,
    writer: BundleWriter,
    graph: StoredGraph,
    text_path: TextPath,
    parity: DecoderParity,
    golden: GoldenSet,
    made: list[MadeDecoder],
    yardstick: DecoderYardstick,
) -> tuple[Manifest, Evidence]:
    """Write the files of the variants and give the metadata."""
    from edgeonnx.pipeline.decoder import describe
    from edgeonnx.pipeline.decoder.genai import GENAI_FILE, genai_config

    source = job.source
    texts = {TOKENIZER_FILE: source.tokenizer.document}
    if source.facts.chat_template is not None:
        texts[describe.TEMPLATE_FILE] = source.facts.chat_template.encode()
    build = describe.DecoderBuild(
        request=job.request,
        source=source,
        graph=graph,
        shipped=made[-1].graph,
        text_path=text_path,
        parity=parity,
        texts=yardstick.to_dict(),
        variants=tuple(_built(item, golden, source) for item in made),
        tensors=writer.add_asset({name: data for item in made for name, data in item.graph.tensors.items()}),
        text_files=writer.add_asset(texts),
        golden=writer.add_asset(golden.to_files()),
    )
    manifest = describe.manifest(build)
    for item in made:
        writer.add(DECODERS.path(item.recipe), item.graph.model)
        config = genai_config(
            describe.generation(source.facts, build.text_files),
            vocabulary=source.vocabulary_size,
            pad_id=source.tokenizer.pad_id,
            model_file=MODEL_FILE,
            tensors=build.tensors,
            provider=item.recipe.provider,
        )
        writer.add(DECODERS.path(item.recipe, GENAI_FILE), canonical_json(config))
    return manifest, describe.evidence(build)


def _built(made: MadeDecoder, golden: GoldenSet, source: LoadedDecoder) -> BuiltVariant:
    """A variant with what a device must reach when it replays the golden set, found out by replaying it here."""
    from edgeonnx.model.decoder import open_decoder
    from edgeonnx.pipeline.describe import BuiltVariant

    found = golden.replay(open_decoder(made.path, None, source.facts.cache).replay)
    return BuiltVariant(
        recipe=made.recipe,
        tensor_bytes=made.graph.tensor_bytes,
        golden=device_thresholds(made.recipe, found),
        plan=made.plan,
        evidence=made.evidence,
    )
