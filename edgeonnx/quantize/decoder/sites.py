"""What there is to quantize in a decoder: matrices by what they read and what they do, and the embedding table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.decoder.recipe import Role
from edgeonnx.spec.generation import INPUT_IDS, LOGITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from edgeonnx.model.graph import StoredGraph

    Float = NDArray[np.float32]

ATTENTION = "GroupQueryAttention"
NORMS = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2,),
}
"""Operators that multiply by a constant for each channel: the places of it and of the bias."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Matrices that read the same tensor: they share its smoothing, and its block means.

    Attributes:
        source: What they read, float32 (batch, sequence, inputs).
        nodes: Their `MatMul` nodes; the second input of each is a constant, float32 (inputs, outputs).
        role: What they do. Matrices that read one tensor and do two things are two sites.
        norm: The node whose per-channel constants may be divided, if `source` is read by these nodes alone.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    role: Role
    norm: ir.Node | None

    @property
    def name(self) -> str:
        """Name of the tensor that they read."""
        return str(self.source.name)

    def weights(self) -> list[Float]:
        """Each matrix, float32 (outputs, inputs)."""
        return [numbers(node.inputs[1]).T for node in self.nodes]


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """The table that tokens are looked up in.

    Attributes:
        node: The `Gather` node.
        table: The constant: float32 (tokens, width), or (width, tokens) where the head has the same.
        tied: Whether the head multiplies by the same constant.
    """

    node: ir.Node
    table: ir.Value
    tied: bool


def open_model(graph: StoredGraph) -> ir.Model:
    """The model with its tensors where they are: nothing is copied."""
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(graph.model))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            data = np.frombuffer(graph.tensors[str(tensor.location)], dtype=tensor.dtype.numpy())
            value.const_value = ir.tensor(data.reshape(tensor.shape.numpy()), dtype=tensor.dtype, name=value.name)
    return model


def numbers(value: ir.Value | None) -> Float:
    """The numbers of a constant."""
    assert value is not None and value.const_value is not None  # noqa: S101, PT018 - callers have looked
    return np.asarray(value.const_value.numpy())


def find_sites(graph: ir.Graph) -> tuple[Site, ...]:
    """The sites of a decoder, in its order."""
    readers: dict[tuple[ir.Value, Role], list[ir.Node]] = {}
    for node in graph:
        if node.op_type == "MatMul" and node.domain == "" and is_matrix(node.inputs[1]):
            source = node.inputs[0]
            assert source is not None  # noqa: S101 - MatMul has two inputs
            readers.setdefault((source, _role(node)), []).append(node)
    return tuple(
        Site(source=source, nodes=tuple(nodes), role=role, norm=_norm(source, nodes))
        for (source, role), nodes in readers.items()
    )


def is_matrix(value: ir.Value | None) -> bool:
    """Whether a value is a constant float matrix that nothing feeds."""
    tensor = None if value is None else value.const_value
    if value is None or tensor is None or value.is_graph_input():
        return False
    return tensor.dtype is ir.DataType.FLOAT and len(tensor.shape) == 2


def _norm(source: ir.Value, nodes: list[ir.Node]) -> ir.Node | None:
    norm = source.producer()
    alone = {use.node for use in source.uses()} <= set(nodes) and not source.is_graph_output()
    if norm is None or norm.op_type not in NORMS or source is not norm.outputs[0] or not alone:
        return None
    constants = [norm.inputs[place] for place in NORMS[norm.op_type] if place < len(norm.inputs)]
    return norm if all(value is None or value.const_value is not None for value in constants) else None


def _role(node: ir.Node) -> Role:
    """What a matrix does: seen from what comes next behind it and before it."""
    following = {found.op_type if found is not None else LOGITS for found in _next_products(node)}
    if following == {LOGITS}:
        return Role.HEAD
    if ATTENTION in following:
        return Role.ATTENTION_IN
    before = _last_product(node)
    if before is not None and before.op_type == ATTENTION:
        return Role.ATTENTION_OUT
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    return Role.MLP_IN if producer is not None and producer.op_type in NORMS else Role.MLP_OUT


def _next_products(node: ir.Node) -> Iterator[ir.Node | None]:
    """Matrix products and attentions that read a node's output, however many other nodes lie between; None: logits."""
    waiting, seen = list(node.outputs), set(node.outputs)
    while waiting:
        value = waiting.pop()
        if value.is_graph_output() and value.name == LOGITS:
            yield None
        for use in value.uses():
            if use.node.op_type in ("MatMul", ATTENTION):
                yield use.node
                continue
            new = [output for output in use.node.outputs if output not in seen]
            seen.update(new)
            waiting += new


def _last_product(node: ir.Node) -> ir.Node | None:
    """The attention or matrix product that a node's first input comes from in a straight line."""
    value = node.inputs[0]
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type in ("MatMul", ATTENTION):
            return producer
        value = producer.inputs[0]
    return None


def find_embedding(graph: ir.Graph, sites: tuple[Site, ...]) -> Embedding | None:
    """The table that `input_ids` are looked up in; None where the graph has none that can be quantized."""
    heads = {node.inputs[1] for site in sites if site.role is Role.HEAD for node in site.nodes}
    for node in graph:
        if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0 or not _looks_up_tokens(node):
            continue
        table = node.inputs[0]
        turned = None if table is None else table.producer()
        if turned is not None and turned.op_type == "Transpose" and turned.inputs[0] in heads:
            assert turned.inputs[0] is not None  # noqa: S101 - it is one of the heads
            return Embedding(node=node, table=turned.inputs[0], tied=True)
        if table is not None and is_matrix(table):
            return Embedding(node=node, table=table, tied=False)
    return None


def _looks_up_tokens(node: ir.Node) -> bool:
    return node.inputs[1] is not None and node.inputs[1].name == INPUT_IDS


def check_sites(sites: tuple[Site, ...], model: ir.Model) -> None:
    """Refuse what a recipe cannot start from.

    Raises:
        QuantizationError: There is no head, or nothing to quantize.
    """
    if sum(len(site.nodes) for site in sites if site.role is Role.HEAD) != 1:
        raise QuantizationError(
            "the graph has no LM head that can be quantized",
            where=str(model.graph.name),
            expected=f"one MatMul by a constant float matrix that makes {LOGITS}",
            found=", ".join(site.role.value for site in sites[-3:]) or "no such MatMul at all",
        )
