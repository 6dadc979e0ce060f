"""What there is to quantize in a graph, and what is not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.special import erf

from edgeonnx.model.graph import restore_graph
from edgeonnx.optimize.passes import optimize_for_cpu
from edgeonnx.quantize.linears import (
    LOWER_BOUNDS,
    MIN_TABLE_BYTES,
    find_groups,
    find_tables,
    join_names,
    linear_bias,
)
from tests.support.graphs import tiny_graph, tiny_weights

WIDTH = 8
TABLE = np.ones((MIN_TABLE_BYTES // 4 // WIDTH, WIDTH), np.float32)
MATRIX = np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)
VECTOR = np.ones(WIDTH, np.float32)


def build(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], outputs: tuple[str, ...] = ("y",), rank: int = 3
) -> ir.Graph:
    """A graph of `x`, float32 of `rank` axes, and `ids`, int64 (batch, tokens)."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", WIDTH][-rank:]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "tokens"]),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True)).graph


def matmul(weight: str, source: str = "x", target: str = "y") -> onnx.NodeProto:
    return helper.make_node("MatMul", [source, weight], [target], f"{target}_node")


def test_layers_that_read_the_same_tensor_are_one_group() -> None:
    graph = restore_graph(tiny_graph()).graph
    groups = find_groups(graph)
    assert [group.name for group in groups] == ["query+key+value", "output", "up", "down"]
    assert [group.source.name for group in groups] == ["embedded", "joined", "hidden", "active"]
    assert groups[0].weight_names == ("query", "key", "value")
    assert groups[0].node_names == ("query_matmul", "key_matmul", "value_matmul")
    assert [group.lower_bound for group in groups] == [None, None, None, LOWER_BOUNDS["Gelu"]]
    expected = tiny_weights()
    for found, name in zip(groups[0].weights(), ("query", "key", "value"), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected[name])


def test_the_optimized_graph_has_the_same_groups() -> None:
    """There the biases are added in a `Sum`, and the attention reads the layers directly."""
    plain = find_groups(restore_graph(tiny_graph()).graph)
    optimized = find_groups(restore_graph(optimize_for_cpu(tiny_graph()).graph).graph)
    assert [(group.name, group.lower_bound) for group in optimized] == [
        (group.name, group.lower_bound) for group in plain
    ]


@pytest.mark.parametrize("op", ["Add", "Sum"])
def test_a_layer_is_named_after_its_bias(op: str) -> None:
    nodes = [matmul("val_7", target="product"), helper.make_node(op, ["product", "model.layer.0.dense.bias"], ["y"])]
    graph = build(nodes, {"val_7": MATRIX, "model.layer.0.dense.bias": VECTOR})
    (group,) = find_groups(graph)
    assert group.name == "layer.0.dense"
    bias = linear_bias(group.nodes[0])
    assert bias is not None
    assert (bias[0].op_type, bias[1].name) == (op, "model.layer.0.dense.bias")


def test_a_layer_without_a_bias_is_named_after_its_weight_or_its_node() -> None:
    named, unnamed = (
        build([matmul("model.up.weight")], {"model.up.weight": MATRIX}),
        build([matmul("w")], {"w": MATRIX}),
    )
    assert [group.name for group in find_groups(named)] == ["up"]
    assert [group.name for group in find_groups(unnamed)] == ["y_node"]
    assert linear_bias(find_groups(named)[0].nodes[0]) is None


def test_a_product_that_is_read_twice_or_put_out_has_no_bias() -> None:
    add = helper.make_node("Add", ["product", "up.bias"], ["y"])
    constants = {"w": MATRIX, "up.bias": VECTOR}
    neg = helper.make_node("Neg", ["product"], ["z"])
    twice = build([matmul("w", target="product"), add, neg], constants, ("y", "z"))
    output = build([matmul("w", target="product"), add], constants, ("y", "product"))
    for graph in (twice, output):
        assert linear_bias(find_groups(graph)[0].nodes[0]) is None


def test_equal_names_are_told_apart_and_shared_weights_seen() -> None:
    nodes = [matmul("shared.weight", target="h"), helper.make_node("Relu", ["h"], ["r"])]
    nodes += [matmul("shared.weight", "r", "g"), helper.make_node("Neg", ["g"], ["n"]), matmul("shared.weight", "n")]
    groups = find_groups(build(nodes, {"shared.weight": MATRIX}))
    assert [group.name for group in groups] == ["shared", "shared#2", "shared#3"]
    assert {group.weight_names for group in groups} == {("shared.weight",)}


@pytest.mark.parametrize(
    ("op", "bound"), [("Relu", 0.0), ("Sigmoid", 0.0), ("Softmax", 0.0), ("Gelu", -0.1701), ("Tanh", None)]
)
def test_the_bound_is_that_of_the_activation_function(op: str, bound: float | None) -> None:
    (group,) = find_groups(build([helper.make_node(op, ["x"], ["a"]), matmul("w", "a")], {"w": MATRIX}))
    assert group.lower_bound == bound


def test_no_gelu_gives_less_than_its_bound() -> None:
    x = np.linspace(-4, 1, 100_001)
    exact = x * (1 + erf(x / np.sqrt(2))) / 2
    tanh = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    assert LOWER_BOUNDS["Gelu"] <= min(exact.min(), tanh.min()) < LOWER_BOUNDS["Gelu"] + 2e-4


def test_a_head_that_runs_once_a_text_is_no_group() -> None:
    assert find_groups(build([matmul("w")], {"w": MATRIX}, rank=2)) == ()
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    assert find_groups(build([gemm], {"w": MATRIX, "b": VECTOR}, rank=2)) == ()


def test_products_without_a_constant_float_matrix_are_no_groups() -> None:
    stacked = build([matmul("w")], {"w": np.ones((1, WIDTH, WIDTH), np.float32)})
    turned = helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1])
    data = build([turned, helper.make_node("MatMul", ["x", "t"], ["y"])], {})
    left = build([helper.make_node("MatMul", ["w", "turned"], ["y"]), turned_as("turned")], {"w": MATRIX})
    assert find_groups(stacked) == find_groups(data) == find_groups(left) == ()


def turned_as(name: str) -> onnx.NodeProto:
    return helper.make_node("Transpose", ["x"], [name], perm=[0, 2, 1])


def gather(table: str = "words.weight", target: str = "y", axis: int | None = 0) -> onnx.NodeProto:
    return helper.make_node("Gather", [table, "ids"], [target], **({} if axis is None else {"axis": axis}))


@pytest.mark.parametrize("axis", [0, None])
def test_a_large_table_is_found(axis: int | None) -> None:
    (table,) = find_tables(build([gather("model.words.weight", axis=axis)], {"model.words.weight": TABLE}))
    assert (table.name, table.value.name, len(table.nodes)) == ("words", "model.words.weight", 1)


def test_a_table_may_be_read_by_several_lookups() -> None:
    (table,) = find_tables(build([gather(), gather(target="z")], {"words.weight": TABLE}, ("y", "z")))
    assert [node.outputs[0].name for node in table.nodes] == ["y", "z"]


@pytest.mark.parametrize(
    ("nodes", "table"),
    [
        pytest.param([gather()], TABLE[:-1], id="small"),
        pytest.param([gather(axis=1)], TABLE, id="another axis"),
        pytest.param([gather(), helper.make_node("Neg", ["words.weight"], ["z"])], TABLE, id="read by another node"),
        pytest.param([gather()], TABLE.astype(np.float16).repeat(2, axis=0), id="not float32"),
        pytest.param([helper.make_node("Neg", ["words.weight"], ["y"])], TABLE, id="never looked up"),
    ],
)
def test_other_constants_are_no_tables(nodes: list[onnx.NodeProto], table: np.ndarray) -> None:
    outputs = tuple(name for node in nodes for name in node.output)
    proto_nodes = nodes
    if table.dtype != np.float32:  # the graph's output is float32
        proto_nodes = [gather(target="h"), helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)]
    assert find_tables(build(proto_nodes, {"words.weight": table}, outputs)) == ()


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["a.b.query", "a.b.key"], "a.b.query+key"),
        (["a.self.query", "a.out.dense"], "a.self.query+out.dense"),
        (["query", "key"], "query+key"),
        (["x.query", "y.key"], "x.query+y.key"),
        (["a.query", "a.query"], "a.query+query"),
        (["a.b"], "a.b"),
    ],
)
def test_names_are_joined_after_their_common_beginning(names: list[str], joined: str) -> None:
    assert join_names(names) == joined
