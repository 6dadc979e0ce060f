"""The form in which a decoder ships: logits of the last position alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from edgeonnx.errors import QuantizationError
from edgeonnx.spec.generation import LOGITS

if TYPE_CHECKING:
    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.spec.tensor import ModelSignature

PRODUCTS = ("MatMul", "MatMulNBits", "Gemm", "FusedMatMul")
PLACE = "last_place"


def last_position(graph: StoredGraph) -> StoredGraph:
    """Let a decoder compute logits for the last of the new tokens only.

    A prompt of 512 tokens needs 512 rows of the LM head otherwise, the largest matrix of a small model.

    Args:
        graph: A graph of the contract with `logits` (batch, sequence, vocabulary); its tensors are shared, not copied.

    Returns:
        The same graph with `logits` (batch, 1, vocabulary).

    Raises:
        QuantizationError: The logits do not come from a matrix product in a straight line.
    """
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(graph.model))
    logits = next(value for value in model.graph.outputs if value.name == LOGITS)
    head = _head(logits)
    source = head.inputs[0]
    last = ir.tensor(np.array([-1], dtype=np.int64), name=PLACE)
    place = ir.Value(name=PLACE, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=last)
    model.graph.register_initializer(place)
    gather = ir.node("Gather", [source, place], attributes={"axis": 1}, name="last_position")
    gather.outputs[0].name = "last_hidden"
    model.graph.insert_before(head, gather)
    head.replace_input_with(0, gather.outputs[0])
    _shorten(logits, head)
    return replace(
        graph,
        model=ir.to_proto(model).SerializeToString(deterministic=True),
        signature=_shortened(graph.signature),
        node_count=len(model.graph),
    )


def _head(logits: ir.Value) -> ir.Node:
    """The matrix product that the logits come from, through casts and scaling that know no positions."""
    value: ir.Value | None = logits
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in PRODUCTS:
            return node
        moving = [item for item in node.inputs if item is not None and item.const_value is None]
        value = moving[0] if len(moving) == 1 else None
    raise QuantizationError(
        "the logits do not come from a matrix product in a straight line",
        where=LOGITS,
        expected=f"one of {', '.join(PRODUCTS)}, then operators with one input that is no constant",
    )


def _shorten(logits: ir.Value, head: ir.Node) -> None:
    """The sequence axis of the logits is 1; shapes between the head and them are forgotten."""
    value = head.outputs[0]
    while value is not logits:
        value.shape = None
        value = next(iter(value.uses())).node.outputs[0]
    if logits.shape is not None:
        logits.shape = ir.Shape([logits.shape[0], 1, *logits.shape[2:]])


def _shortened(signature: ModelSignature) -> ModelSignature:
    outputs = tuple(
        replace(spec, shape=(spec.shape[0], 1, *spec.shape[2:])) if spec.name == LOGITS else spec
        for spec in signature.outputs
    )
    return replace(signature, outputs=outputs)
