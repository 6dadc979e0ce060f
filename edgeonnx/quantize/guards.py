"""Is this a graph that a recipe can start from? One check, made before every recipe.

ONNX Runtime's tools quantize what they are given: NaN becomes some integer, a graph that is quantized already is
quantized again in part. Both load and answer, so they must be refused before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeonnx.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_QUANTIZED_OPERATORS = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "ConvInteger",
        "QAttention",
        "QEmbedLayerNormalization",
        "QGemm",
        "QMoE",
        "QOrderedMatMul",
        "MatMulNBits",
        "MatMulBnb4",
        "MatMulFpQ4",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "GatherBlockQuantized",
    }
)
_QUANTIZED_PREFIXES = ("QLinear", "QOrdered", "DynamicQuantize")
_INTEGER_WEIGHTS = frozenset(
    {
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT4,
        ir.DataType.UINT4,
    }
)
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_PRODUCTS = ("MatMul", "Gemm")
_WEIGHT_USERS = frozenset({*_PRODUCTS, "Conv", "Gather", "LayerNormalization", "RMSNormalization", "Einsum"})
_SHOWN = 8


def check_quantizable(model: ir.Model) -> None:
    """Check that a recipe can quantize a model: it is float throughout, has constant weights, and they are finite.

    All-zero rows and columns are fine, and so are infinities in what is no weight (the constant that a mask adds).
    Bodies of `If` and `Loop` are checked as the main graph is. The model is not changed.

    Args:
        model: The model, its tensors in memory.

    Raises:
        QuantizationError: It is quantized already, no MatMul or Gemm has a constant weight, or a weight has NaN or
            infinities.
    """
    nodes = list(model.graph.all_nodes())
    constants = dict(_constants(model))
    _check_float(nodes, constants.values())
    if not any(has_constant_weight(node) for node in nodes):
        products = sum(node.op_type in _PRODUCTS for node in nodes)
        raise QuantizationError(
            "no matrix product of the graph has a constant weight",
            expected="a MatMul or Gemm whose second input is an initializer",
            found=f"{products} MatMul or Gemm, all of computed matrices",
            hint="if weights are transposed or cast inside the graph, fold its constants first",
        )
    for name, value in constants.items():
        _check_finite(name, value)


def has_constant_weight(node: ir.Node) -> bool:
    """Whether a node is a matrix product whose second input is a float constant of two or more axes."""
    if node.domain or node.op_type not in _PRODUCTS or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    tensor = ir.convenience.get_const_tensor(node.inputs[1])
    return tensor is not None and tensor.dtype in _FLOATS and len(tensor.shape) >= 2


def _constants(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """Every initializer and every Constant node's output, in subgraphs too."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.items()
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and not node.domain:
            yield str(node.outputs[0].name), node.outputs[0]


def _check_float(nodes: list[ir.Node], constants: Iterable[ir.Value]) -> None:
    quantized = [
        f"{node.op_type} {node.name or 'without a name'}"
        for node in nodes
        if node.op_type in _QUANTIZED_OPERATORS or node.op_type.startswith(_QUANTIZED_PREFIXES)
    ]
    kind = "nodes"
    if not quantized:
        kind = "weights"
        for value in constants:
            tensor = ir.convenience.get_const_tensor(value)
            if tensor is not None and tensor.dtype in _INTEGER_WEIGHTS and len(tensor.shape) >= 2:
                quantized.append(f"{value.name} ({tensor.dtype.name.lower()})")
    if quantized:
        more = f" and {len(quantized) - _SHOWN} more" if len(quantized) > _SHOWN else ""
        raise QuantizationError(
            "the graph is quantized already",
            expected="float weights and float operators",
            found=f"{len(quantized)} quantized {kind}: {', '.join(quantized[:_SHOWN])}{more}",
            hint="hand in the model as it was before it was quantized",
        )


def _check_finite(name: str, value: ir.Value) -> None:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in _FLOATS:
        return
    array = tensor.numpy()
    finite = np.isfinite(array)
    if finite.all() or (not np.isnan(array).any() and not _is_weight(value, array)):
        return
    place = np.unravel_index(int(np.argmin(finite)), array.shape)
    raise QuantizationError(
        "a weight is not finite",
        where=f"{name}[{', '.join(str(int(index)) for index in place)}]",
        expected="finite numbers",
        found=f"{np.count_nonzero(np.isnan(array))} NaN and {np.count_nonzero(np.isinf(array))} infinities "
        f"in {array.size} elements",
        hint="the weights are damaged, or training diverged",
    )


def _is_weight(value: ir.Value, array: NDArray[np.generic]) -> bool:
    """Whether a constant is learned: a vector, or what an operator takes as its weight. Masks hold infinities."""
    return (array.ndim == 1 and array.size > 1) or any(node.op_type in _WEIGHT_USERS for node, _ in value.uses())
