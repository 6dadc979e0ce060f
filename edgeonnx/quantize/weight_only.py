"""Weights of 8 or 4 bits, activations float: ONNX Runtime's own `MatMulNBits`.

Each output channel's weights are cut into blocks along the input axis, each with a scale of its own. ONNX Runtime
multiplies them without making float weights first, so reading weights costs a quarter or an eighth: what language
models that generate one token at a time are bound by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.ort_tools import check_loads, find_targets, prepare, run_tool

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from edgeonnx.model.graph import StoredGraph

_BITS = (4, 8)
_ACCURACY_LEVELS = (0, 1, 2, 3, 4)
_MIN_BLOCK = 16


def quantize_weight_only(
    graph: StoredGraph,
    *,
    bits: int,
    block_size: int = 32,
    accuracy_level: int = 4,
    symmetric: bool = True,
    embeddings: bool = False,
    keep: Collection[str] = (),
) -> StoredGraph:
    """Quantize the constant weights of MatMuls of the main graph, block by block, with `MatMulNBits`.

    An answer does not depend on its neighbours: at accuracy level 4 activations become int8 for each row and block.

    Args:
        graph: The float graph.
        bits: 4 or 8, of a weight.
        block_size: Weights that share a scale: a power of two, at least 16.
        accuracy_level: Of `MatMulNBits`: the least precise type in which ONNX Runtime may multiply. 0 is unset, 1 is
            fp32, 2 fp16, 3 bf16, 4 int8 (the fastest).
        symmetric: False stores a zero point for each block.
        embeddings: Tables of 2-D Gathers become 4 bits as well (`GatherBlockQuantized`). ONNX Runtime's tool offers no
            8 bits for them.
        keep: Names of nodes or weights that stay float.

    Returns:
        A graph that needs the operator set `com.microsoft`.

    Raises:
        QuantizationError: The graph cannot be quantized, or an argument is out of its range.
    """
    _check_arguments(bits, block_size, accuracy_level, embeddings)
    model = prepare(graph)
    operators = ("MatMul", "Gather") if embeddings else ("MatMul",)
    targets = set(find_targets(model, operators, keep))
    _check_apart(model, targets)
    others = [str(node.name) for node in model.graph.all_nodes() if node.name not in targets]

    def tool(path: Path, _: Path) -> ir.Model:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(str(path)),
            bits=bits,
            block_size=block_size,
            is_symmetric=symmetric,
            accuracy_level=accuracy_level,
            nodes_to_exclude=others,
            op_types_to_quantize=operators,
        )
        quantizer.process()
        made: ir.Model = ir.from_proto(quantizer.model.model)
        return made

    return check_loads(run_tool(model, graph, tool, name="MatMulNBitsQuantizer"), name="MatMulNBitsQuantizer")


def _check_arguments(bits: int, block_size: int, accuracy_level: int, embeddings: bool) -> None:
    for name, value, right, expected in (
        ("bits", bits, bits in _BITS, "4 or 8"),
        (
            "block_size",
            block_size,
            block_size >= _MIN_BLOCK and block_size & (block_size - 1) == 0,
            "a power of two, at least 16",
        ),
        ("accuracy_level", accuracy_level, accuracy_level in _ACCURACY_LEVELS, "0 to 4"),
        ("embeddings", embeddings, not embeddings or bits == 4, "False unless bits is 4"),
    ):
        if not right:
            raise QuantizationError("an argument is out of its range", where=name, expected=expected, found=str(value))


def _check_apart(model: ir.Model, targets: Collection[str]) -> None:
    """The tool packs a looked-up table in another way than a multiplied matrix, but gives both the same name."""
    nodes = [node for node in model.graph if node.name in targets]
    multiplied = {node.inputs[1] for node in nodes if node.op_type == "MatMul"}
    for node in nodes:
        if node.op_type == "Gather" and node.inputs[0] in multiplied:
            raise QuantizationError(
                "a matrix is both multiplied and looked up, which cannot share one quantized form",
                where=str(node.inputs[0].name if node.inputs[0] is not None else None),
                hint=f"keep the node {node.name}, or leave embeddings as they are",
            )
