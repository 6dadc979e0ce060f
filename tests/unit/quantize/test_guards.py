"""What a recipe must not start from, and what is fine."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import restore_graph
from edgeonnx.quantize.guards import check_quantizable
from tests.support.graphs import OPSET, tiny_graph, tiny_proto, tiny_weights


def product(*nodes: onnx.NodeProto, **initializers: np.ndarray) -> ir.Model:
    """A model of `x @ w` (float 2-D `x`, output `y`) with further nodes and initializers."""
    weight = initializers.pop("w", np.ones((4, 4), np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product"), *nodes],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(value, name) for name, value in {"w": weight, **initializers}.items()],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10))


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"zero_rows": True}])
def test_a_float_graph_is_fine(options: dict[str, bool]) -> None:
    check_quantizable(restore_graph(tiny_graph(**options)))


def test_a_weight_in_a_constant_node_is_a_constant_weight() -> None:
    model = product()
    value = model.graph.initializers["w"]
    constant = ir.node("Constant", [], {"value": value.const_value})
    value.replace_all_uses_with(constant.outputs[0])
    model.graph.insert_before(model.graph[0], constant)
    del model.graph.initializers["w"]
    check_quantizable(model)


@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("QuantizeLinear", ""),
        ("DequantizeLinear", ""),
        ("DynamicQuantizeLinear", ""),
        ("MatMulInteger", ""),
        ("ConvInteger", ""),
        ("QLinearMatMul", ""),
        ("MatMulNBits", "com.microsoft"),
        ("QAttention", "com.microsoft"),
        ("DynamicQuantizeMatMul", "com.microsoft"),
        ("GatherBlockQuantized", "com.microsoft"),
    ],
)
def test_a_quantized_node_is_found(operator: str, domain: str) -> None:
    model = product(helper.make_node(operator, ["x"], ["q"], "culprit", domain=domain))
    with pytest.raises(QuantizationError, match="quantized already") as raised:
        check_quantizable(model)
    assert raised.value.found == f"1 quantized nodes: {operator} culprit"


def test_many_quantized_nodes_are_counted_and_the_first_named() -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x"], [f"q{index}"], f"node{index}") for index in range(11)]
    with pytest.raises(QuantizationError) as raised:
        check_quantizable(product(*nodes))
    assert str(raised.value.found).startswith("11 quantized nodes: QuantizeLinear node0, ")
    assert str(raised.value.found).endswith("QuantizeLinear node7 and 3 more")


def test_integer_weights_are_found() -> None:
    model = product(helper.make_node("Cast", ["w8"], ["wide"], "cast", to=1), w8=np.ones((2, 2), np.int8))
    with pytest.raises(QuantizationError, match="quantized already") as raised:
        check_quantizable(model)
    assert raised.value.found == "1 quantized weights: w8 (int8)"


def test_a_quantized_node_in_a_branch_is_found() -> None:
    branch = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "b", "c"], "inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("If", ["flag"], ["z"], "choice", then_branch=branch, else_branch=branch)
    with pytest.raises(QuantizationError, match="DynamicQuantizeLinear inner"):
        check_quantizable(product(node, flag=np.array(True)))


def test_products_of_computed_matrices_are_not_enough() -> None:
    model = product(helper.make_node("MatMul", ["y", "x"], ["z"], "second"))
    model.graph[0].replace_input_with(1, model.graph.inputs[0])
    with pytest.raises(QuantizationError, match="no matrix product") as raised:
        check_quantizable(model)
    assert raised.value.found == "2 MatMul or Gemm, all of computed matrices"


@pytest.mark.parametrize(("number", "found"), [(np.nan, "1 NaN and 0 inf"), (-np.inf, "0 NaN and 1 inf")])
def test_a_weight_that_is_not_finite_is_located(number: float, found: str) -> None:
    weights = tiny_weights()
    weights["up"][7, 11] = number
    with pytest.raises(QuantizationError, match="not finite") as raised:
        check_quantizable(ir.from_proto(tiny_proto(weights)))
    assert raised.value.where == "up[7, 11]"
    assert str(raised.value.found).startswith(found)


def test_a_bias_that_is_not_finite_is_found() -> None:
    weights = tiny_weights()
    weights["down.bias"][2] = np.inf
    with pytest.raises(QuantizationError) as raised:
        check_quantizable(ir.from_proto(tiny_proto(weights)))
    assert raised.value.where == "down.bias[2]"


def test_infinities_of_a_mask_are_fine_but_not_nan() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    nodes = [helper.make_node("Add", ["y", "mask"], ["z"]), helper.make_node("Add", ["z", "fill"], ["u"])]
    fill = np.array(-np.inf, np.float32)
    check_quantizable(product(*nodes, mask=mask, fill=fill))
    mask[0, 1] = np.nan
    with pytest.raises(QuantizationError, match="not finite"):
        check_quantizable(product(*nodes, mask=mask, fill=fill))
