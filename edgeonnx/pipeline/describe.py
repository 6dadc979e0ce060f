"""What was built, as the bundle's metadata: results of the stages in, manifest and evidence out. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

from edgeonnx import __version__
from edgeonnx.pipeline.recipe import COMPONENT, FP32, MODEL_FILE, TOKENIZER_FILE
from edgeonnx.spec.evidence import Evidence, VariantEvidence
from edgeonnx.spec.manifest import Component, Manifest, Requirements, Task, TextProcessing, Variant
from edgeonnx.spec.report import Threshold

if TYPE_CHECKING:
    from edgeonnx.bundle.golden import Comparison
    from edgeonnx.export.encoder import LoadedEncoder
    from edgeonnx.export.tokenizer import TokenizerFacts
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.pipeline.base import Base
    from edgeonnx.pipeline.recipe import PackageRequest, VariantRecipe
    from edgeonnx.validate.parity import ParityResult
    from edgeonnx.validate.tokens import TextPath

TOOLS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "tokenizers", "numpy")
EXPORTER = "torch.onnx.export(dynamo=True)"


@dataclass(frozen=True, kw_only=True)
class BuiltVariant:
    """One variant, ready to be written.

    Attributes:
        recipe: How it was made.
        tensor_bytes: Bytes of its own external tensors.
        golden: What a device must reach when it replays the golden set.
        plan: Facts about how it was made.
        evidence: What was measured.
        base: What was kept of the base, and how much differs from it; None without a base.
    """

    recipe: VariantRecipe
    tensor_bytes: int
    golden: tuple[Threshold, ...]
    plan: dict[str, object]
    evidence: VariantEvidence
    base: dict[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything that the stages found out about one package.

    Attributes:
        request: What was asked for.
        encoder: The source model.
        base: The bundle that the build followed, or None.
        graph: The graph that was compared with the source, optimized for the CPU.
        optimized: How often each optimization found something to do.
        text_path: The text path of the device.
        parity: The comparison of the exported graph with the source model.
        texts: Which texts the variants' figures are about.
        variants: What was made, in order of preference.
        tensors: Asset reference of the external tensors of all variants; each is there once.
        tokenizer: Asset reference of the tokenizer.
        golden: Asset reference of the golden set.
    """

    request: PackageRequest
    encoder: LoadedEncoder
    base: Base | None
    graph: StoredGraph
    optimized: dict[str, int]
    text_path: TextPath
    parity: ParityResult
    texts: dict[str, object]
    variants: tuple[BuiltVariant, ...]
    tensors: str
    tokenizer: str
    golden: str


def manifest(build: Build) -> Manifest:
    """The bundle's metadata."""
    facts, plan = build.encoder.tokenizer, build.encoder.plan
    component = Component(
        name=COMPONENT,
        signature=build.graph.signature,
        variants=tuple(variant(built, build.tensors, build.graph, EXPORTER) for built in build.variants),
    )
    return Manifest(
        name=build.request.name,
        version=build.request.version,
        task=plan.task,
        components={COMPONENT: component},
        entry=COMPONENT,
        processing=text_processing(facts, build.text_path, build.tokenizer),
        golden=build.golden,
        labels=plan.labels,
        properties=_properties(build),
    )


def text_processing(facts: TokenizerFacts, path: TextPath, folder: str) -> TextProcessing:
    """How text becomes ids.

    Args:
        facts: The source's tokenizer.
        path: The text path of the device.
        folder: Asset reference of the folder with the tokenizer.
    """
    return TextProcessing(
        tokenizer=f"{folder}/{TOKENIZER_FILE}",
        backend=path.backend,
        max_length=facts.max_length,
        pad_id=facts.pad_id,
        pad_type_id=facts.pad_type_id,
        prefix=facts.prefix,
    )


def variant(built: BuiltVariant, tensors: str, graph: StoredGraph, exporter: str) -> Variant:
    """A variant's metadata.

    Args:
        built: What was made.
        tensors: Asset reference of the external tensors.
        graph: The graph that was compared with the source.
        exporter: What made it.
    """
    recipe = built.recipe
    return Variant(
        name=recipe.name,
        device=recipe.device,
        model_file=MODEL_FILE,
        tensors=tensors,
        precision=recipe.precision,
        requirements=Requirements(provider=recipe.provider, memory_bytes=built.tensor_bytes, integer=recipe.integer),
        golden=built.golden,
        recipe={"precision": recipe.precision, "opset": graph.opset, "exporter": exporter, **built.plan},
    )


def tools() -> dict[str, str]:
    """Versions of what a build is made with."""
    return {"edgeonnx": __version__, **{name: installed_version(name) for name in TOOLS}}


def device_thresholds(recipe: VariantRecipe, measured: Comparison) -> tuple[Threshold, ...]:
    """What a device must reach when it replays the golden set.

    Other instruction sets and libraries round in other places, so fp32 may differ ten times as much as the build host
    must reach. A quantized variant may be twice as far from the source as it was on the build host: a processor that
    saturates is many times further away.

    Args:
        recipe: The variant.
        measured: Its replay on the build host.
    """
    if recipe == FP32:
        return (Threshold(metric="scaled_diff", at_most=1e-3),)
    return (
        Threshold(metric="min_cosine", at_least=round(1 - 2 * (1 - measured.min_cosine) - 1e-3, 4)),
        Threshold(metric="scaled_diff", at_most=round(2 * measured.scaled_diff + 1e-3, 4)),
    )


def _properties(build: Build) -> dict[str, object]:
    """Facts that clients ask for."""
    encoder, plan = build.encoder, build.encoder.plan
    properties: dict[str, object] = {
        "parameters": encoder.parameter_count,
        "vocabulary_size": encoder.vocabulary_size,
    }
    if plan.task is Task.EMBEDDING:
        properties["dimension"] = build.graph.signature.outputs[0].shape[-1]
    if plan.activation is not None:
        properties["activation"] = plan.activation
    if plan.embedding is not None:
        properties["pooling"] = list(plan.embedding.pooling)
        properties["normalized"] = plan.embedding.normalized
    return properties


def _source(build: Build) -> dict[str, object]:
    """What the bundle was made from: the source model's files, and the base if there was one."""
    made_from = build.encoder.source.fingerprint()
    if build.base is not None:
        variants = {built.recipe.name: built.base for built in build.variants}
        made_from["base"] = {**build.base.to_dict(), "variants": variants}
    return made_from


def evidence(build: Build) -> Evidence:
    """What was measured, and with what."""
    graph = build.graph
    return Evidence(
        source=_source(build),
        tools=tools(),
        tokenizer=build.text_path.to_dict(),
        parity=build.parity.to_dict(),
        graph={
            "nodes": graph.node_count,
            "opset": graph.opset,
            "tensors": len(graph.tensors),
            "tensor_bytes": graph.tensor_bytes,
            "optimized": build.optimized,
        },
        texts=build.texts,
        variants={built.recipe.name: built.evidence for built in build.variants},
    )
