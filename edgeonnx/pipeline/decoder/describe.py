"""What was built, as the bundle's metadata: results of the stages in, manifest and evidence out. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.pipeline.describe import text_processing, tools, variant
from edgeonnx.pipeline.recipe import DECODER
from edgeonnx.spec.evidence import Evidence
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK, Generation
from edgeonnx.spec.manifest import Component, Manifest
from edgeonnx.spec.tensor import ModelSignature

if TYPE_CHECKING:
    from edgeonnx.export.decoder.facts import DecoderFacts
    from edgeonnx.export.decoder.load import LoadedDecoder
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.pipeline.describe import BuiltVariant
    from edgeonnx.pipeline.recipe import PackageRequest
    from edgeonnx.validate.decoder import DecoderParity
    from edgeonnx.validate.tokens import TextPath

TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True, kw_only=True)
class DecoderBuild:
    """Everything that the stages found out about one package.

    Attributes:
        request: What was asked for.
        source: The source model.
        graph: The graph that was compared with the source.
        shipped: A graph as it ships; all variants have its signature.
        text_path: The text path of the device.
        parity: The comparison of the graph with the source model.
        texts: Which texts the variants' figures are about.
        variants: What was made, in order of preference.
        tensors: Asset reference of the external tensors of all variants; each is there once.
        text_files: Asset reference of the tokenizer and the chat template.
        golden: Asset reference of the golden set.
    """

    request: PackageRequest
    source: LoadedDecoder
    graph: StoredGraph
    shipped: StoredGraph
    text_path: TextPath
    parity: DecoderParity
    texts: dict[str, object]
    variants: tuple[BuiltVariant, ...]
    tensors: str
    text_files: str
    golden: str


def generation(facts: DecoderFacts, text_files: str) -> Generation:
    """How text is generated.

    Args:
        facts: What the source says.
        text_files: Asset reference of the folder with the chat template.
    """
    return Generation(
        cache=facts.cache,
        context_length=facts.context_length,
        stop_ids=facts.stop_ids,
        chat_template=None if facts.chat_template is None else f"{text_files}/{TEMPLATE_FILE}",
        special_tokens=facts.special_tokens,
        sampling=facts.sampling,
    )


def manifest(build: DecoderBuild) -> Manifest:
    """The bundle's metadata."""
    source = build.source
    component = Component(
        name=DECODER,
        signature=token_signature(build.shipped.signature),
        variants=tuple(variant(built, build.tensors, build.graph, source.facts.exporter) for built in build.variants),
    )
    return Manifest(
        name=build.request.name,
        version=build.request.version,
        task=source.plan.task,
        components={DECODER: component},
        entry=DECODER,
        processing=text_processing(source.tokenizer, build.text_path, build.text_files),
        golden=build.golden,
        properties={"parameters": source.parameter_count, "vocabulary_size": source.vocabulary_size},
        generation=generation(source.facts, build.text_files),
    )


def token_signature(signature: ModelSignature) -> ModelSignature:
    """Tokens and logits alone: the caches follow from `Manifest.generation`, and half precision has others."""
    return ModelSignature(
        inputs=tuple(spec for spec in signature.inputs if spec.name in (INPUT_IDS, MASK)),
        outputs=tuple(spec for spec in signature.outputs if spec.name == LOGITS),
    )


def evidence(build: DecoderBuild) -> Evidence:
    """What was measured, and with what."""
    graph = build.graph
    return Evidence(
        source=build.source.source.fingerprint(),
        tools=tools(),
        tokenizer=build.text_path.to_dict(),
        parity=build.parity.to_dict(),
        graph={
            "exporter": build.source.facts.exporter,
            "nodes": graph.node_count,
            "opset": graph.opset,
            "tensors": len(graph.tensors),
            "tensor_bytes": graph.tensor_bytes,
        },
        texts=build.texts,
        variants={built.recipe.name: built.evidence for built in build.variants},
    )
