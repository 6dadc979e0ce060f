"""`package`: from a source model to a bundle. The only caller of all stages, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.bundle import BundleWriter
from edgeonnx.bundle.writer import check_target, clear_leftovers
from edgeonnx.pipeline import describe
from edgeonnx.pipeline.describe import Build, BuiltVariant
from edgeonnx.pipeline.plan import missing_library, plan_source
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.pipeline.recipe import FP32, TOKENIZER_FILE, PackageRequest, model_path, stage_of
from edgeonnx.pipeline.texts import golden_rows, pair_up, shipped_texts
from edgeonnx.pipeline.verify import verify
from edgeonnx.spec.paths import asset_directory, split_asset_reference

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.export.encoder import LoadedEncoder
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.model.reference import Reference
    from edgeonnx.pipeline.progress import Progress
    from edgeonnx.pipeline.recipe import VariantRecipe
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.validate.parity import ParityResult
    from edgeonnx.validate.tokens import TextPath


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """What `package` made.

    Attributes:
        path: The bundle.
        digest: Its digest.
        manifest: Its metadata.
        evidence: What was measured.
        size: Bytes of all files.
        seconds: How long each stage took.
    """

    path: Path
    digest: str
    manifest: Manifest
    evidence: Evidence
    size: int
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "path": str(self.path),
            "digest": self.digest,
            "bytes": self.size,
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
            "manifest": self.manifest.to_dict(),
            "evidence": self.evidence.to_dict(),
        }


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
    encoder = _load(request, timer)
    graph = _export(encoder, timer)
    with BundleWriter(request.target, replace=request.replace) as writer:
        built = _write_variant(FP32, graph, writer)
        folder = writer.staging / asset_directory(split_asset_reference(built.tensors, where="tensors")[0])
        _check(encoder, graph, folder, timer)
        reference, text_path = _tokenize(encoder, timer)
        parity = _parity(encoder, reference, writer.staging / model_path(FP32), folder, timer)
        with timer.stage(*stage_of("bundle")) as stage:
            build = Build(
                request=request,
                encoder=encoder,
                graph=graph,
                text_path=text_path,
                parity=parity,
                variants=(built,),
                tokenizer=writer.add_asset({TOKENIZER_FILE: encoder.tokenizer.document}),
                golden=writer.add_asset(reference.golden(golden_rows(reference.lengths)).to_files()),
            )
            manifest, evidence = describe.manifest(build), describe.evidence(build)
            contents = writer.finish(manifest, evidence)
            stage.result = f"{len(contents.files)} files, {contents.total_size / 1e6:.1f} MB"
        with timer.stage(*stage_of("verify")) as stage:
            report = verify(writer.staging)
            stage.result = f"every byte read back, golden set within {report.replays[0].comparison.scaled_diff:.1e}"
        writer.publish()
    return PackageResult(
        path=request.target,
        digest=contents.digest,
        manifest=manifest,
        evidence=evidence,
        size=contents.total_size,
        seconds=timer.seconds,
    )


def _write_variant(recipe: VariantRecipe, graph: StoredGraph, writer: BundleWriter) -> BuiltVariant:
    """Write a variant's graph and tensors; tensors that are there already are not written twice."""
    writer.add(model_path(recipe), graph.model)
    return BuiltVariant(recipe=recipe, tensors=writer.add_asset(graph.tensors), tensor_bytes=graph.tensor_bytes)


def _load(request: PackageRequest, timer: StageTimer) -> LoadedEncoder:
    with timer.stage(*stage_of("load")) as stage:
        source, decided = plan_source(request)
        try:
            from edgeonnx.export.encoder import load_encoder
        except ImportError as error:
            raise missing_library(error) from None
        encoder = load_encoder(source, decided, max_length=request.max_length)
        stage.result = (
            f"{source.architecture or source.model_type}, {encoder.parameter_count / 1e6:.1f} M parameters, "
            f"task {decided.task.value}, up to {encoder.tokenizer.max_length} tokens"
        )
        return encoder


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


def _parity(encoder: LoadedEncoder, reference: Reference, model: Path, folder: Path, timer: StageTimer) -> ParityResult:
    from edgeonnx.model.runtime import open_graph
    from edgeonnx.validate.parity import check_parity

    with timer.stage(*stage_of("parity")) as stage:
        result = check_parity(
            reference,
            open_graph(model, folder),
            max_length=encoder.tokenizer.max_length,
            on_batch=timer.progress.advanced,
        )
        stage.result = (
            f"max difference {result.comparison.max_abs_diff:.1e} over {result.rows} rows "
            f"in {sum(result.layouts.values())} batches"
        )
        return result
