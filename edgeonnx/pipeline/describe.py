"""What was built, as the bundle's metadata: results of the stages in, manifest and evidence out. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

from edgeonnx import __version__
from edgeonnx.pipeline.recipe import COMPONENT, MODEL_FILE, TOKENIZER_FILE
from edgeonnx.spec.evidence import Evidence
from edgeonnx.spec.manifest import Component, Manifest, Requirements, Task, TextProcessing, Variant

if TYPE_CHECKING:
    from edgeonnx.export.encoder import LoadedEncoder
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.pipeline.recipe import PackageRequest, VariantRecipe
    from edgeonnx.validate.parity import ParityResult
    from edgeonnx.validate.tokens import TextPath

TOOLS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "tokenizers", "numpy")


@dataclass(frozen=True, kw_only=True)
class BuiltVariant:
    """One variant whose files are written.

    Attributes:
        recipe: How it was made.
        tensors: Asset reference of its external tensors.
        tensor_bytes: Bytes of those tensors.
    """

    recipe: VariantRecipe
    tensors: str
    tensor_bytes: int


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything that the stages found out about one package.

    Attributes:
        request: What was asked for.
        encoder: The source model.
        graph: The exported graph, which all variants come from.
        text_path: The text path of the device.
        parity: The comparison of the exported graph with the source model.
        variants: What was written, in order of preference.
        tokenizer: Asset reference of the tokenizer.
        golden: Asset reference of the golden set.
    """

    request: PackageRequest
    encoder: LoadedEncoder
    graph: StoredGraph
    text_path: TextPath
    parity: ParityResult
    variants: tuple[BuiltVariant, ...]
    tokenizer: str
    golden: str


def manifest(build: Build) -> Manifest:
    """The bundle's metadata."""
    facts, plan = build.encoder.tokenizer, build.encoder.plan
    component = Component(
        name=COMPONENT,
        signature=build.graph.signature,
        variants=tuple(_variant(built, build.graph) for built in build.variants),
    )
    return Manifest(
        name=build.request.name,
        version=build.request.version,
        task=plan.task,
        components={COMPONENT: component},
        entry=COMPONENT,
        processing=TextProcessing(
            tokenizer=f"{build.tokenizer}/{TOKENIZER_FILE}",
            backend=build.text_path.backend,
            max_length=facts.max_length,
            pad_id=facts.pad_id,
            pad_type_id=facts.pad_type_id,
            prefix=facts.prefix,
        ),
        golden=build.golden,
        labels=plan.labels,
        properties=_properties(build),
    )


def _variant(built: BuiltVariant, graph: StoredGraph) -> Variant:
    recipe = built.recipe
    return Variant(
        name=recipe.name,
        device=recipe.device,
        model_file=MODEL_FILE,
        tensors=built.tensors,
        precision=recipe.precision,
        requirements=Requirements(provider=recipe.provider, memory_bytes=built.tensor_bytes),
        golden=recipe.golden,
        recipe={"precision": recipe.precision, "opset": graph.opset, "exporter": "torch.onnx.export(dynamo=True)"},
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


def evidence(build: Build) -> Evidence:
    """What was measured, and with what."""
    graph = build.graph
    return Evidence(
        source=build.encoder.source.fingerprint(),
        tools={"edgeonnx": __version__, **{name: installed_version(name) for name in TOOLS}},
        tokenizer=build.text_path.to_dict(),
        parity=build.parity.to_dict(),
        graph={
            "nodes": graph.node_count,
            "opset": graph.opset,
            "tensors": len(graph.tensors),
            "tensor_bytes": graph.tensor_bytes,
        },
    )
