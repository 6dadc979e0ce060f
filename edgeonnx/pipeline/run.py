"""`package`: from a source model to a bundle. The only caller of all stages, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

from edgeonnx import __version__
from edgeonnx.bundle import BundleWriter
from edgeonnx.bundle.writer import check_target
from edgeonnx.errors import RuntimeUnavailableError
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.pipeline.recipe import COMPONENT, STAGES, VARIANT, PackageRequest, stage_of
from edgeonnx.pipeline.texts import golden_rows, pair_up, shipped_texts
from edgeonnx.pipeline.verify import verify
from edgeonnx.spec.manifest import Component, Manifest, Requirements, Task, TextProcessing, Variant
from edgeonnx.spec.paths import asset_directory, split_asset_reference
from edgeonnx.spec.report import Evidence, Threshold

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.export.encoder import LoadedEncoder
    from edgeonnx.export.graph import ExportedGraph
    from edgeonnx.export.source import Source
    from edgeonnx.export.tasks import TaskPlan
    from edgeonnx.pipeline.progress import Progress
    from edgeonnx.validate.parity import ParityResult, Reference
    from edgeonnx.validate.tokens import TextPath

TOKENIZER_FILE = "tokenizer.json"
MODEL_FILE = "model.onnx"
TOOLS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "tokenizers", "numpy")
GOLDEN_THRESHOLDS = (Threshold(metric="scaled_diff", at_most=1e-3),)
"""What a device must reach with fp32: ten times what the build host must, for other instruction sets and libraries."""


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


@dataclass(frozen=True, kw_only=True)
class PackagePlan:
    """What `package` would do, found out from the source's files alone.

    Attributes:
        request: What was asked for.
        source: The source model.
        plan: Its task.
    """

    request: PackageRequest
    source: Source
    plan: TaskPlan

    def facts(self) -> dict[str, str]:
        """For people."""
        source = self.source
        rows = {
            "source": f"{source.identity} ({source.architecture or source.model_type})",
            "weights": ", ".join(source.weights),
            "task": self.plan.task.value,
            "bundle": str(self.request.target),
            "variants": VARIANT,
        }
        head = self.plan.embedding
        if head is not None:
            steps = [f"{' + '.join(head.pooling)} pooling"]
            steps += [layer if isinstance(layer, str) else f"dense {layer.out_features}" for layer in head.layers]
            steps += [] if head.keep is None else [f"first {head.keep} elements"]
            rows["in the graph"] = " -> ".join(steps)
        if self.plan.labels:
            rows["labels"] = ", ".join(self.plan.labels)
        return rows

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {"plan": self.facts(), "stages": [{"stage": name, "about": about} for name, about in STAGES]}


def plan(request: PackageRequest) -> PackagePlan:
    """Find and check the source, decide the task; load, export and write nothing.

    Raises:
        EdgeOnnxError: As `package` raises before it loads the model.
    """
    check_target(request.target, replace=request.replace)
    source, decided = _plan_source(request)
    return PackagePlan(request=request, source=source, plan=decided)


def package(request: PackageRequest, progress: Progress | None = None) -> PackageResult:
    """Package a source model.

    Args:
        request: What to make.
        progress: Receives the stages as they run.

    Raises:
        EdgeOnnxError: A stage failed; nothing was written.
    """
    check_target(request.target, replace=request.replace)
    timer = StageTimer(progress=progress or Silent())
    encoder = _load(request, timer)
    graph = _export(encoder, timer)
    with BundleWriter(request.target, replace=request.replace) as writer:
        model = writer.add(f"{COMPONENT}/{VARIANT}/{MODEL_FILE}", graph.model).path
        tensors = writer.add_asset(graph.tensors)
        folder = writer.staging / asset_directory(split_asset_reference(tensors, where="tensors")[0])
        _check(encoder, graph, folder, timer)
        reference, text_path = _tokenize(encoder, timer)
        parity = _parity(encoder, reference, writer.staging / model, folder, timer)
        with timer.stage(*stage_of("bundle")) as stage:
            manifest = _manifest(request, encoder, graph, reference, text_path, tensors, writer)
            evidence = _evidence(encoder, graph, text_path, parity)
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


def _plan_source(request: PackageRequest) -> tuple[Source, TaskPlan]:
    """What the files alone tell; torch is not imported for it."""
    try:
        from edgeonnx.export.source import locate
        from edgeonnx.export.tasks import plan_task

        source = locate(request.source)
    except ImportError as error:
        raise _missing(error) from None
    return source, plan_task(source, request.task)


def _missing(error: ImportError) -> RuntimeUnavailableError:
    return RuntimeUnavailableError(
        "a library of the build host cannot be imported", found=str(error), hint="pip install 'edgeonnx[host]'"
    )


def _load(request: PackageRequest, timer: StageTimer) -> LoadedEncoder:
    with timer.stage(*stage_of("load")) as stage:
        source, decided = _plan_source(request)
        try:
            from edgeonnx.export.encoder import load_encoder
        except ImportError as error:
            raise _missing(error) from None
        encoder = load_encoder(source, decided, max_length=request.max_length)
        stage.result = (
            f"{source.architecture or source.model_type}, {encoder.parameter_count / 1e6:.1f} M parameters, "
            f"task {decided.task.value}, up to {encoder.tokenizer.max_length} tokens"
        )
        return encoder


def _export(encoder: LoadedEncoder, timer: StageTimer) -> ExportedGraph:
    with timer.stage(*stage_of("export")) as stage:
        graph = encoder.export()
        stage.result = f"{graph.node_count} nodes, opset {graph.opset}, {len(graph.tensors)} tensors"
        return graph


def _check(encoder: LoadedEncoder, graph: ExportedGraph, folder: Path, timer: StageTimer) -> None:
    from edgeonnx.validate.checker import check_graph

    with timer.stage(*stage_of("check")) as stage:
        check_graph(graph.model, folder, graph.signature, encoder.output_names)
        shown = [f"{spec.name} {spec.shape_text()}" for spec in graph.signature.outputs]
        stage.result = f"valid ONNX, outputs {', '.join(shown)}"


def _tokenize(encoder: LoadedEncoder, timer: StageTimer) -> tuple[Reference, TextPath]:
    from edgeonnx.validate.parity import build_reference
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
    from edgeonnx.validate.parity import check_parity
    from edgeonnx.validate.runtime import open_graph

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


def _manifest(
    request: PackageRequest,
    encoder: LoadedEncoder,
    graph: ExportedGraph,
    reference: Reference,
    text_path: TextPath,
    tensors: str,
    writer: BundleWriter,
) -> Manifest:
    """Write tokenizer and golden set, and describe everything."""
    facts, plan = encoder.tokenizer, encoder.plan
    tokenizer = writer.add_asset({TOKENIZER_FILE: facts.document})
    golden = writer.add_asset(reference.golden(golden_rows(reference.lengths)).to_files())
    variant = Variant(
        name=VARIANT,
        device="cpu",
        model_file=MODEL_FILE,
        tensors=tensors,
        precision="fp32",
        requirements=Requirements(
            provider="CPUExecutionProvider", memory_bytes=sum(len(data) for data in graph.tensors.values())
        ),
        golden=GOLDEN_THRESHOLDS,
        recipe={"precision": "fp32", "opset": graph.opset, "exporter": "torch.onnx.export(dynamo=True)"},
    )
    dimension = graph.signature.outputs[0].shape[-1]
    return Manifest(
        name=request.name,
        version=request.version,
        task=plan.task,
        components={COMPONENT: Component(name=COMPONENT, signature=graph.signature, variants=(variant,))},
        entry=COMPONENT,
        processing=TextProcessing(
            tokenizer=f"{tokenizer}/{TOKENIZER_FILE}",
            backend=text_path.backend,
            max_length=facts.max_length,
            pad_id=facts.pad_id,
            pad_type_id=facts.pad_type_id,
            prefix=facts.prefix,
        ),
        golden=golden,
        labels=plan.labels,
        properties=_properties(encoder, dimension if plan.task is Task.EMBEDDING else None),
    )


def _properties(encoder: LoadedEncoder, dimension: int | str | None) -> dict[str, object]:
    properties: dict[str, object] = {
        "parameters": encoder.parameter_count,
        "vocabulary_size": encoder.vocabulary_size,
    }
    if dimension is not None:
        properties["dimension"] = dimension
    if encoder.plan.activation is not None:
        properties["activation"] = encoder.plan.activation
    head = encoder.plan.embedding
    if head is not None:
        properties["pooling"] = list(head.pooling)
        properties["normalized"] = head.normalized
    return properties


def _evidence(encoder: LoadedEncoder, graph: ExportedGraph, text_path: TextPath, parity: ParityResult) -> Evidence:
    return Evidence(
        source=encoder.source.fingerprint(),
        tools={"edgeonnx": __version__, **{name: installed_version(name) for name in TOOLS}},
        tokenizer=text_path.to_dict(),
        parity=parity.to_dict(),
        graph={
            "nodes": graph.node_count,
            "opset": graph.opset,
            "tensors": len(graph.tensors),
            "tensor_bytes": sum(len(data) for data in graph.tensors.values()),
        },
    )
