"""Static int8 for GPUs and TensorRT: every scale is fixed at build time and stands in the graph as Q/DQ pairs.

TensorRT wants symmetric int8 for activations and weights, with a scale for each output channel of a weight. Only matrix
products are quantized; embeddings, attention, normalization, biases and what lies between them stay float.

Ranges of activations are the smallest and largest value seen. The graph itself reduces each batch to them, so batches
may differ in shape, which ONNX Runtime's percentile calibration does not survive. Cutting outliers off would not help
either: in a transformer they carry the answer, and a cut at the 99.99th percentile is far worse than none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.errors import QuantizationError
from edgeonnx.quantize.ort_tools import PRODUCTS, check_loads, find_targets, prepare, read_model, run_tool

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.model.ports import IntTensors

_OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    # TensorRT adds a float bias; it has no int32 one.
    "QuantizeBias": False,
    # The sum after a product stays float: pairs around it would only lose precision.
    "OpTypesToExcludeOutputQuantization": list(PRODUCTS),
}


def quantize_static_qdq(
    graph: StoredGraph, calibration: Sequence[IntTensors], *, keep: Collection[str] = ()
) -> StoredGraph:
    """Quantize the matrix products of the main graph to int8 with fixed scales, as `QuantizeLinear`/`DequantizeLinear`.

    Weights become int8 with a scale for each output channel, and a `DequantizeLinear` after them. One scale serves all
    rows, so an answer does not depend on its neighbours.

    Args:
        graph: The float graph.
        calibration: Batches of real inputs, int64 (rows, tokens) by input name; shapes may differ.
        keep: Names of nodes or weights that stay float.

    Returns:
        A graph of standard operators. ONNX Runtime runs it on the CPU too, where its fidelity can be measured.

    Raises:
        QuantizationError: The graph cannot be quantized, or there is nothing to calibrate with.
    """
    model = prepare(graph)
    targets = find_targets(model, PRODUCTS, keep)
    _check_calibration(graph, calibration)

    def tool(path: Path, scratch: Path) -> ir.Model:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        made = scratch / "quantized.onnx"
        quantize_static(
            path,
            made,
            _Batches(calibration),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(PRODUCTS),
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=targets,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options=dict(_OPTIONS),
        )
        return _only_to(set(targets), read_model(made))

    return check_loads(run_tool(model, graph, tool, name="quantize_static"), name="quantize_static")


def _only_to(targets: Collection[str], model: ir.Model) -> ir.Model:
    """Let products alone read rounded activations: the tool gives them to every reader, the residual sum for one."""
    for node in model.graph:
        source = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        rounding = None if source is None else source.producer()
        if rounding is None or rounding.inputs[0] is None:
            continue  # no pair, or that of a weight
        exact, rounded = rounding.inputs[0], node.outputs[0]
        for user, index in list(rounded.uses()):
            if user.name not in targets:
                user.replace_input_with(index, exact)
        if rounded.is_graph_output():
            exact.type, exact.shape = rounded.type, rounded.shape
            exact.name, rounded.name = rounded.name, f"{rounded.name}_rounded"
            outputs = model.graph.outputs
            outputs[:] = [exact if output is rounded else output for output in outputs]
    return model


def _check_calibration(graph: StoredGraph, calibration: Sequence[IntTensors]) -> None:
    expected = {spec.name for spec in graph.signature.inputs}
    if not calibration:
        raise QuantizationError(
            "there is nothing to calibrate with", where="calibration", expected="at least one batch", found="none"
        )
    for index, batch in enumerate(calibration):
        if set(batch) != expected:
            raise QuantizationError(
                "a batch has other inputs than the graph",
                where=f"calibration[{index}]",
                expected=", ".join(sorted(expected)),
                found=", ".join(sorted(batch)),
            )


class _Batches:
    """Batches in the form that the tool reads (`onnxruntime.quantization.CalibrationDataReader`)."""

    def __init__(self, batches: Sequence[IntTensors]) -> None:
        self._rest = iter(batches)

    def get_next(self) -> IntTensors | None:
        batch = next(self._rest, None)
        return None if batch is None else {name: np.asarray(value, np.int64) for name, value in batch.items()}
