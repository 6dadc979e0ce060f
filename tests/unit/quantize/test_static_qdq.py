"""Static quantization: what TensorRT wants of the graph, and calibration over batches of any shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import CalibrationMethod, quantize_static

from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import restore_graph
from edgeonnx.quantize.static_qdq import _Batches, quantize_static_qdq
from tests.support.graphs import (
    OUTPUT,
    min_cosine,
    op_counts,
    run_graph,
    stored,
    tensor,
    tiny_batches,
    tiny_graph,
    tiny_weights,
    to_proto,
)

CALIBRATION = tiny_batches([(4, 5), (2, 16), (8, 3), (1, 9)], seed=5)


def test_the_trap_of_percentile_calibration_is_still_there(tmp_path: Path) -> None:
    """It fails on batches of different shapes, which is why ranges are the extremes. If this fails, it was mended."""
    with pytest.raises(ValueError, match="inhomogeneous"):
        quantize_static(
            tiny_graph().write(tmp_path),
            tmp_path / "made.onnx",
            _Batches(CALIBRATION),
            calibrate_method=CalibrationMethod.Percentile,
            op_types_to_quantize=["MatMul"],
        )


def test_pairs_stand_before_products_and_nowhere_else() -> None:
    made = quantize_static_qdq(tiny_graph(), CALIBRATION)
    counts = op_counts(made)
    # Query, key and value read the same tensor: one pair for the three.
    assert counts["QuantizeLinear"] == 4
    assert counts["DequantizeLinear"] == 4 + 6
    assert "DynamicQuantizeLinear" not in counts
    assert made.domains == ()
    for node in restore_graph(made).graph:
        made_by = {producer.op_type for value in node.inputs if value is not None and (producer := value.producer())}
        if node.op_type == "MatMul":
            assert made_by == {"DequantizeLinear"}
        elif node.op_type != "DequantizeLinear":
            assert "DequantizeLinear" not in made_by


def test_everything_is_symmetric_int8_with_a_scale_a_channel() -> None:
    made = quantize_static_qdq(tiny_graph(), CALIBRATION)
    model = restore_graph(made)
    zeros = [v.const_value for name, v in model.graph.initializers.items() if name.endswith("_zero_point")]
    assert zeros
    for zero in zeros:
        assert zero is not None
        assert zero.dtype == ir.DataType.INT8
        assert not zero.numpy().any()
    for name, columns in (("query", 32), ("up", 128), ("down", 32)):
        assert tensor(made, f"{name}_quantized").dtype == np.int8
        assert tensor(made, f"{name}_scale").shape == (columns,)
    assert tensor(made, "words").dtype == np.float32
    assert tensor(made, "up.bias").dtype == np.float32


def test_weights_are_a_quarter_and_embeddings_stay() -> None:
    graph = tiny_graph()
    table = 96 * 32 * 4
    made = quantize_static_qdq(graph, CALIBRATION)
    assert made.tensor_bytes - table == (graph.tensor_bytes - table) // 4


def test_the_scale_is_that_of_the_largest_value_seen_in_any_batch() -> None:
    graph = tiny_graph()
    made = quantize_static_qdq(graph, CALIBRATION)
    words = tensor(graph, "words")
    largest = max(np.abs(words[batch["input_ids"]]).max() for batch in CALIBRATION)
    assert tensor(made, "embedded_scale").item() == pytest.approx(largest / 127, rel=1e-3)


def test_the_shape_of_batches_does_not_matter() -> None:
    (batch,) = tiny_batches([(8, 7)], seed=9)
    rows = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(8)]
    together, apart = (quantize_static_qdq(tiny_graph(), batches) for batches in ([batch], rows))
    for name in ("embedded_scale", "active_scale"):
        np.testing.assert_allclose(tensor(together, name), tensor(apart, name), rtol=1e-5)


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    made = quantize_static_qdq(tiny_graph(), CALIBRATION)
    (batch,) = tiny_batches([(8, 12)])
    alone = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(8)]
    (together,) = run_graph(made, [batch])
    separate = np.concatenate([found[OUTPUT] for found in run_graph(made, alone)])
    np.testing.assert_allclose(separate, together[OUTPUT], atol=1e-5)


def test_a_constant_input_divides_nothing_by_zero() -> None:
    graph = tiny_graph(change=lambda weights: weights["words"].fill(0))
    made = quantize_static_qdq(graph, CALIBRATION)
    batches = tiny_batches()
    found = run_graph(made, batches)
    assert all(np.isfinite(answer[OUTPUT]).all() for answer in found)
    assert min_cosine(run_graph(graph, batches), found) > 0.999


def test_a_gemm_is_quantized_and_its_bias_stays_float() -> None:
    proto = to_proto(tiny_graph())
    inputs = [OUTPUT, "head.weight", "output.bias"]
    proto.graph.node.append(onnx.helper.make_node("Gemm", inputs, ["head"], "head", transB=1))
    weight = np.ascontiguousarray(tiny_weights(seed=3)["output"].T)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "head.weight"))
    proto.graph.output[0].name = "head"
    graph = stored(proto)
    made = quantize_static_qdq(graph, CALIBRATION)
    assert op_counts(made)["DequantizeLinear"] == 4 + 6 + 2
    assert tensor(made, "head.weight_quantized").dtype == np.int8
    assert tensor(made, "head.weight_scale").shape == (32,)
    assert tensor(made, "output.bias").dtype == np.float32
    batches = tiny_batches()
    assert min_cosine(run_graph(graph, batches), run_graph(made, batches), "head") > 0.999


def test_an_output_that_a_product_reads_is_given_out_unrounded() -> None:
    proto = to_proto(tiny_graph())
    hidden = next(info for info in proto.graph.value_info if info.name == "hidden")
    proto.graph.output.append(hidden)
    graph, batches = stored(proto), tiny_batches()
    made = quantize_static_qdq(graph, CALIBRATION, keep=["query", "key", "value", "output"])
    assert made.signature == graph.signature
    for want, have in zip(run_graph(graph, batches), run_graph(made, batches), strict=True):
        np.testing.assert_allclose(have["hidden"], want["hidden"], atol=1e-5)
        assert np.abs(have[OUTPUT] - want[OUTPUT]).max() > 1e-3


def test_nothing_to_calibrate_with_is_refused() -> None:
    with pytest.raises(QuantizationError, match="nothing to calibrate"):
        quantize_static_qdq(tiny_graph(), [])


def test_a_batch_of_other_inputs_is_refused() -> None:
    other = [*CALIBRATION, {"input_ids": CALIBRATION[0]["input_ids"]}]
    with pytest.raises(QuantizationError, match="other inputs") as raised:
        quantize_static_qdq(tiny_graph(), other)
    assert raised.value.where == "calibration[4]"
