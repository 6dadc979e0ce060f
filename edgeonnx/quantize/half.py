"""Half precision for GPUs: fp16 and bf16, with what half precision loses too much on left in fp32.

ONNX Runtime's own converter does the work. What it does not decide is decided here: which nodes stay fp32, that a value
does not become half for a moment between two fp32 nodes, and bf16, which it does not know.

In fp16 the converter keeps subnormal weights, and turns what is smaller than the smallest of them (5.96e-8) into it,
with its sign. Activations may still leave the range of fp16, which only running real inputs can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.quantize.ort_tools import check_loads, expand_keep, is_kept, prepare, run_tool

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import NDArray

HalfType = Literal["fp16", "bf16"]

FP16_MAX = 65504.0
"""Largest finite number of IEEE 754 binary16."""
_BF16_MAX = (2 - 2**-7) * 2.0**127

# Sums over many elements, and functions whose results span more than half precision holds. `LayerNormalization` and
# `Attention` are not here: their kernels keep statistics and softmax in fp32 inside.
_WIDE = frozenset(
    {
        *("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
        *("Softmax", "LogSoftmax", "LpNormalization", "GlobalAveragePool", "CumSum", "Exp", "Log", "Pow"),
    }
)
# Cheap operators that stay fp32 when they read what an fp32 node made, so that a sum is divided before it is rounded.
_FOLLOWING = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Clip", "Max", "Min", "Abs", "Neg", "Where"),
        *("Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat"),
    }
)
_MOVING = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze", "Concat", "Split"}
)
_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def beyond_half_range(graph: StoredGraph) -> dict[str, float]:
    """The weights that fp16 cannot hold, which `to_half` leaves in fp32: largest magnitude by name.

    Constants of one element are not weights but what masks are filled with; the conversion limits them to fp16's range.
    """
    return _beyond_range(restore_graph(graph))


def _beyond_range(model: ir.Model) -> dict[str, float]:
    found = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.size <= 1:
            continue
        magnitudes = np.abs(tensor.numpy())
        largest = float(magnitudes.max(initial=0, where=np.isfinite(magnitudes)))
        if largest > FP16_MAX:
            found[name] = largest
    return found


def to_half(graph: StoredGraph, dtype: HalfType, *, keep: Collection[str] = ()) -> StoredGraph:
    """Convert weights and operators to half precision; inputs and outputs keep their types.

    Sums, Softmax and norms stay fp32, and so do operators on a weight that fp16 cannot hold (`beyond_half_range`).

    Args:
        graph: The fp32 graph.
        dtype: `fp16` also runs on the CPU provider, which computes in fp32 where it has no kernel. `bf16` does not load
            there (no MatMul): measure it with `emulate_bf16`.
        keep: Names of nodes or weights that stay fp32. A kept weight is fp32 for all its users, so it is stored once.

    Raises:
        QuantizationError: The graph cannot be converted, or is half already.
    """
    model = prepare(graph)
    _check_single(model)
    stay = _float_nodes(model, expand_keep(model, keep) | (set(_beyond_range(model)) if dtype == "fp16" else set()))
    originals = {name: value.const_value for name, value in model.graph.initializers.items()}

    def tool(path: Path, _: Path) -> ir.Model:
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

        # Max and Min have had half kernels for long.
        block = sorted(set(DEFAULT_OP_BLOCK_LIST) - {"Max", "Min"})
        proto = _typed(onnx.load(str(path)))
        made: ir.Model = ir.from_proto(
            convert_float_to_float16(
                proto, keep_io_types=True, disable_shape_infer=True, op_block_list=block, node_block_list=sorted(stay)
            )
        )
        _join_casts(made)
        common.IdentityEliminationPass()(made)
        if dtype == "bf16":
            _fp16_to_bf16(made, originals)
        return made

    made = run_tool(model, graph, tool, name="convert_float_to_float16")
    return check_loads(made, name="convert_float_to_float16") if dtype == "fp16" else made


def emulate_bf16(graph: StoredGraph, *, keep: Collection[str] = ()) -> StoredGraph:
    """The bf16 graph in fp32 operators, to measure on the CPU what bf16 costs: ONNX Runtime has no bf16 MatMul there.

    Weights are rounded to bf16, and so is the result of every operator that is bf16 in `to_half(graph, "bf16")`; inside
    an operator numbers are fp32, as in the accumulators of a GPU. All is stored as fp32: not for shipping.

    Raises:
        QuantizationError: See `to_half`.
    """
    model = restore_graph(to_half(graph, "bf16", keep=keep))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype is ir.DataType.BFLOAT16:
            value.const_value = ir.tensor(tensor.numpy().astype(np.float32), name=value.name)
            value.dtype = ir.DataType.FLOAT
    for node in list(model.graph):
        for output in node.outputs:
            if output.dtype is ir.DataType.BFLOAT16:
                output.dtype = ir.DataType.FLOAT
                if node.op_type == "Cast":
                    node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT)
                if node.op_type not in _MOVING:
                    _round_after(model, node, output)
    return check_loads(store_graph(model), name="emulate_bf16")


def _typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Every value's type is known, which the converter goes by; weights have theirs with them only.

    A type that is stated for a weight is made half even if the weight is not, and a Cast of nothing follows.
    """
    typed = onnx.shape_inference.infer_shapes(proto)
    weights = {tensor.name for tensor in typed.graph.initializer}
    values = [info for info in typed.graph.value_info if info.name not in weights]
    typed.graph.ClearField("value_info")
    typed.graph.value_info.extend(values)
    return typed


def _check_single(model: ir.Model) -> None:
    half = [name for name, value in model.graph.initializers.items() if value.dtype in _HALF]
    half += [
        str(node.name)
        for node in model.graph.all_nodes()
        if node.op_type == "Cast" and node.attributes["to"].as_int() in _HALF
    ]
    if half:
        raise QuantizationError(
            "the graph is in half precision already",
            expected="fp32 weights",
            found=f"{len(half)} half weights or casts, for example {half[0]}",
        )


def _float_nodes(model: ir.Model, keep: Collection[str]) -> set[str]:
    """Names of the nodes that stay fp32, in the graph's order, which is the order of computation."""
    stay: set[str] = set()
    for node in model.graph.all_nodes():
        follows = node.op_type in _FOLLOWING and any(
            value is not None and (maker := value.producer()) is not None and maker.name in stay and _is_float(value)
            for value in node.inputs
        )
        if node.op_type in _WIDE or follows or is_kept(node, keep):
            stay.add(str(node.name))
    return stay


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.FLOAT)


def _cast_type(node: ir.Node | None) -> ir.DataType | None:
    if node is None or node.op_type != "Cast" or node.domain:
        return None
    return ir.DataType(node.attributes["to"].as_int())


def _join_casts(model: ir.Model) -> None:
    """Let an fp32 node read what an fp32 node made: the converter puts a Cast to fp16 and one back between them."""
    for node in list(model.graph.all_nodes()):
        source = node.inputs[0] if node.inputs else None
        if _cast_type(node) is not ir.DataType.FLOAT or source is None:
            continue
        first = source.producer()
        if first is None or _cast_type(first) is not ir.DataType.FLOAT16 or first.inputs[0] is None:
            continue
        if first.inputs[0].dtype is ir.DataType.FLOAT and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(first.inputs[0])
        elif first.inputs[0].dtype is ir.DataType.FLOAT:
            node.replace_input_with(0, first.inputs[0])  # the output keeps its name
            node.op_type = "Identity"
            node.attributes.clear()


def _fp16_to_bf16(model: ir.Model, originals: dict[str, ir.TensorProtocol | None]) -> None:
    """Turn the converter's fp16 into bf16, weights from their fp32 values."""
    for value in model.graph.initializers.values():
        original = originals.get(str(value.name))
        if original is not None and value.const_value is not None and value.const_value.dtype is ir.DataType.FLOAT16:
            value.const_value = ir.tensor(_to_bf16(original.numpy()), name=value.name)
            value.dtype = ir.DataType.BFLOAT16
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if (
                attribute.type is ir.AttributeType.INT
                and name in ("to", "dtype")
                and attribute.as_int() == ir.DataType.FLOAT16
            ):
                node.attributes[name] = ir.AttrInt64(name, ir.DataType.BFLOAT16)
            elif attribute.type is ir.AttributeType.TENSOR and attribute.as_tensor().dtype is ir.DataType.FLOAT16:
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(_to_bf16(attribute.as_tensor().numpy())))
        for output in node.outputs:
            if output.dtype is ir.DataType.FLOAT16:
                output.dtype = ir.DataType.BFLOAT16


def _to_bf16(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Round to bf16, to the nearest; a finite number that would round to infinity becomes the largest of bf16."""
    wide = array.astype(np.float32)
    limited = np.where(np.isfinite(wide), np.clip(wide, -_BF16_MAX, _BF16_MAX), wide)
    return limited.astype(ml_dtypes.bfloat16)


def _round_after(model: ir.Model, node: ir.Node, output: ir.Value) -> None:
    """Put a Cast to bf16 and one back after a value."""
    users = list(output.uses())
    narrow = ir.node("Cast", [output], {"to": ir.DataType.BFLOAT16}, name=f"{output.name}_to_bf16")
    wide = ir.node("Cast", [narrow.outputs[0]], {"to": ir.DataType.FLOAT}, name=f"{output.name}_from_bf16")
    narrow.outputs[0].name, wide.outputs[0].name = f"{output.name}_bf16", f"{output.name}_rounded"
    narrow.outputs[0].dtype, wide.outputs[0].dtype = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    model.graph.insert_after(node, [narrow, wide])
    for user, index in users:
        user.replace_input_with(index, wide.outputs[0])
