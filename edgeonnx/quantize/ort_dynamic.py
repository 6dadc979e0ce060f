"""ONNX Runtime's `quantize_dynamic`, which every tool ships: here to be compared with.

It takes one scale for a whole batch of activations, so an answer depends on its neighbours. The recipe of choice for
CPUs is the row-wise one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from edgeonnx.quantize.ort_tools import check_loads, find_targets, prepare, read_model, run_tool

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import onnx_ir as ir

    from edgeonnx.model.graph import StoredGraph

# Named, because by default the tool also converts `Attention`, and takes the standard operator of opset 23 for its own
# contrib operator of the same name: the model that it writes then does not load.
_OPERATORS = ("MatMul", "Gather")


def quantize_ort_dynamic(
    graph: StoredGraph, *, per_channel: bool = True, reduce_range: bool = False, keep: Collection[str] = ()
) -> StoredGraph:
    """Quantize MatMuls and embedding tables of the main graph to int8, activations dynamically to uint8 a batch.

    Args:
        graph: The float graph.
        per_channel: A scale for each output channel of a weight, instead of one for all of it.
        reduce_range: Weights of 7 bits, for CPUs whose int8 products saturate.
        keep: Names of nodes or weights that stay float.

    Raises:
        QuantizationError: The graph cannot be quantized.
    """
    model = prepare(graph)
    targets = find_targets(model, _OPERATORS, keep)

    def tool(path: Path, scratch: Path) -> ir.Model:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        made = scratch / "quantized.onnx"
        quantize_dynamic(
            path,
            made,
            op_types_to_quantize=list(_OPERATORS),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=targets,
            # Types that ONNX cannot infer (behind a contrib operator) are float.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
        return read_model(made)

    return check_loads(run_tool(model, graph, tool, name="quantize_dynamic"), name="quantize_dynamic")
