"""fp16 and bf16: what becomes half, what must not, and what half precision cannot hold."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import StoredGraph, restore_graph
from edgeonnx.quantize.half import FP16_MAX, _to_bf16, beyond_half_range, emulate_bf16, to_half
from tests.support.graphs import (
    OUTPUT,
    Weights,
    min_cosine,
    op_counts,
    run_graph,
    tensor,
    tiny_batches,
    tiny_graph,
    tiny_weights,
)


def types_around(graph: StoredGraph, operator: str) -> set[str]:
    """Element types of float values that an operator reads or writes, by type inference of the whole graph."""
    proto = onnx.shape_inference.infer_shapes(onnx.ModelProto.FromString(graph.model), strict_mode=True)
    values = (*proto.graph.value_info, *proto.graph.output, *proto.graph.input)
    types = {info.name: info.type.tensor_type.elem_type for info in values}
    types |= {item.name: item.data_type for item in proto.graph.initializer}
    found = set()
    for node in proto.graph.node:
        if node.op_type == operator:
            found |= {onnx.TensorProto.DataType.Name(types[name]) for name in (*node.input, *node.output)}
    return found - {"INT64", "BOOL"}


@pytest.mark.parametrize(("dtype", "name"), [("fp16", "FLOAT16"), ("bf16", "BFLOAT16")])
def test_products_are_half_and_sums_are_not(dtype: str, name: str) -> None:
    made = to_half(tiny_graph(), dtype)
    for operator in ("MatMul", "Gelu", "LayerNormalization", "Attention", "Gather"):
        assert types_around(made, operator) == {name}, operator
    for operator in ("ReduceSum", "Div", "Max"):
        assert types_around(made, operator) == {"FLOAT"}, operator


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_half_the_bytes(dtype: str, tied: bool) -> None:
    graph = tiny_graph(tied=tied)
    assert to_half(graph, dtype).tensor_bytes * 2 == graph.tensor_bytes


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_no_value_becomes_half_between_two_fp32_nodes(dtype: str) -> None:
    for node in restore_graph(to_half(tiny_graph(), dtype)).graph:
        maker = None if not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
        assert not (node.op_type == "Cast" and maker is not None and maker.op_type == "Cast"), node.name


def test_a_sum_that_fp16_cannot_hold_is_divided_before_it_is_rounded() -> None:
    def loud(weights: Weights) -> None:
        weights["norm2.bias"][:] = 30_000  # the sum over 16 tokens is far beyond 65504, their mean is not

    graph, batches = tiny_graph(change=loud), tiny_batches([(3, 16)])
    (want,), (have,) = run_graph(graph, batches), run_graph(to_half(graph, "fp16"), batches)
    np.testing.assert_allclose(have[OUTPUT], want[OUTPUT], rtol=2e-3)


def test_fp16_weights_are_rounded_to_the_nearest_and_subnormals_stay() -> None:
    def small(weights: Weights) -> None:
        weights["up"][0, :4] = (3e-6, 1e-9, -1e-9, 0)

    made = tensor(to_half(tiny_graph(change=small), "fp16"), "up")
    assert made.dtype == np.float16
    np.testing.assert_array_equal(made[1:], tiny_weights()["up"][1:].astype(np.float16))
    smallest = np.finfo(np.float16).smallest_subnormal
    np.testing.assert_array_equal(made[0, :4], [np.float16(3e-6), smallest, -smallest, 0])


def test_weights_that_fp16_cannot_hold_stay_fp32_and_are_named() -> None:
    def large(weights: Weights) -> None:
        weights["up"] *= 1e-6
        weights["up"][3, 4] = -70_000
        weights["down"] *= 1e-4

    graph = tiny_graph(change=large)
    assert beyond_half_range(graph) == {"up": 70_000}
    assert beyond_half_range(tiny_graph(change=lambda weights: np.put(weights["up"], 0, FP16_MAX))) == {}
    made = to_half(graph, "fp16")
    assert tensor(made, "up").dtype == np.float32
    assert tensor(made, "up")[3, 4] == -70_000
    assert tensor(made, "down").dtype == np.float16
    assert tensor(to_half(graph, "bf16"), "up").dtype == ml_dtypes.bfloat16


def test_a_kept_node_keeps_a_tied_weight_for_all_its_users() -> None:
    made = to_half(tiny_graph(tied=True), "fp16", keep=["key_matmul"])
    assert tensor(made, "query").dtype == np.float32
    assert types_around(made, "MatMul") == {"FLOAT", "FLOAT16"}
    assert tensor(made, "value").dtype == np.float16


def test_bf16_is_rounded_to_the_nearest_from_fp32() -> None:
    made = tensor(to_half(tiny_graph(), "bf16"), "down")
    np.testing.assert_array_equal(made, tiny_weights()["down"].astype(ml_dtypes.bfloat16))
    extremes = np.array([np.finfo(np.float32).max, np.finfo(np.float32).min, np.inf, 1 + 2**-8 + 2**-20], np.float32)
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    np.testing.assert_array_equal(_to_bf16(extremes).astype(np.float64), [largest, -largest, np.inf, 1 + 2**-7])


def test_emulated_bf16_rounds_weights_and_results() -> None:
    graph, batches = tiny_graph(), tiny_batches()
    made = emulate_bf16(graph)
    weight = tiny_weights()["down"].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(tensor(made, "down"), weight)

    def rounded(weights: Weights) -> None:
        for name, value in weights.items():
            weights[name] = value.astype(ml_dtypes.bfloat16).astype(np.float32)

    want = run_graph(graph, batches)
    only_weights = min_cosine(want, run_graph(tiny_graph(change=rounded), batches))
    everything = min_cosine(want, run_graph(made, batches))
    assert 0.9999 < everything < only_weights < 1


def test_emulated_bf16_is_fp32_in_what_stays_fp32() -> None:
    made = emulate_bf16(tiny_graph(), keep=["up"])
    np.testing.assert_array_equal(tensor(made, "up"), tiny_weights()["up"])
    assert all(value.dtype is not ir.DataType.BFLOAT16 for value in restore_graph(made).graph.initializers.values())


def test_a_mask_filler_is_limited_to_what_fp16_holds() -> None:
    model = restore_graph(tiny_graph())
    filler = ir.tensor(np.array(np.finfo(np.float32).min, np.float32), name="filler")
    value = ir.Value(name="filler", const_value=filler, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    model.graph.register_initializer(value)
    gelu = next(node for node in model.graph if node.op_type == "Gelu")
    limited = ir.node("Max", [gelu.outputs[0], value], name="limit")
    limited.outputs[0].name = "limited"
    model.graph.insert_after(gelu, limited)
    next(node for node in model.graph if node.name == "down_matmul").replace_input_with(0, limited.outputs[0])
    from edgeonnx.model.graph import store_graph

    assert tensor(to_half(store_graph(model), "fp16"), "filler").item() == -FP16_MAX


def test_a_graph_that_is_half_already_is_refused() -> None:
    with pytest.raises(QuantizationError, match="half precision already"):
        to_half(to_half(tiny_graph(), "fp16"), "fp16")


def test_few_casts_are_added() -> None:
    """Each costs a pass over memory: one at the weights' way in, none between fp32 nodes."""
    graph = tiny_graph()
    assert op_counts(to_half(graph, "fp16"))["Cast"] - op_counts(graph)["Cast"] <= 3
    assert "Identity" not in op_counts(to_half(graph, "fp16"))
