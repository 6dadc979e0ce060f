"""The passes: what they find, what they must leave alone, and that the answers stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.export.encoder import load_encoder
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.model.graph import StoredGraph
from edgeonnx.model.runtime import open_graph
from edgeonnx.optimize.passes import CPU_PASSES, fold_heads, optimize_for_cpu, sum_before_gelu, sum_residuals
from tests.support.graphs import op_counts, run_graph, stored, tiny_batches, tiny_graph, to_proto
from tests.support.models import tiny_model

WIDTH = 8
FOLD, RESIDUAL, GELU = CPU_PASSES
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    """A BERT of two layers as the exporter writes it."""
    source = locate(str(tiny_model(tmp_path_factory.mktemp("bert"))))
    return load_encoder(source, plan_task(source, None), max_length=None).export()


def padded_batches(graph: StoredGraph) -> list[Arrays]:
    """Batches of several shapes, padded, with every input that the graph takes."""
    batches = []
    for batch in tiny_batches(((1, 3), (4, 9), (3, 17))):
        more = {spec.name: np.zeros_like(batch["input_ids"]) for spec in graph.signature.inputs}
        batches.append({**more, **batch})
    return batches


def fused_counts(graph: StoredGraph, folder: Path) -> dict[str, int]:
    """The operators of the graph as ONNX Runtime runs it."""
    path = folder / "fused.onnx"
    open_graph(graph.write(folder / "graph"), None, threads=1, optimized=path)
    names = [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize("which", [pytest.param("exported", marks=pytest.mark.slow), "tiny"])
def test_the_answers_stay_over_batches_and_padding(which: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue("exported") if which == "exported" else tiny_graph()
    optimized = optimize_for_cpu(graph)
    layers = 2 if which == "exported" else 1
    # A layer has two residuals; the embeddings of BERT are a sum before a LayerNormalization too.
    assert optimized.applied == {FOLD: layers, RESIDUAL: 2 * layers + (which == "exported"), GELU: layers}
    assert optimized.graph.signature == graph.signature
    batches = padded_batches(graph)
    for expected, found in zip(run_graph(graph, batches), run_graph(optimized.graph, batches), strict=True):
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert np.abs(value).max() > 0.1
            # Relative to the largest output: LayerNormalization of random weights goes beyond 1.
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6 * max(1.0, float(np.abs(value).max())))


@pytest.mark.slow
def test_the_data_movements_are_gone(exported: StoredGraph) -> None:
    before, after = op_counts(exported), op_counts(optimize_for_cpu(exported).graph)
    assert before["Transpose"] - after.get("Transpose", 0) == 8
    assert before["Reshape"] - after.get("Reshape", 0) == 8
    assert after["Attention"] == before["Attention"] == 2


@pytest.mark.slow
def test_onnxruntime_finds_nothing_to_fuse_in_what_is_left(exported: StoredGraph, tmp_path: Path) -> None:
    before = fused_counts(exported, tmp_path / "before")
    assert before["SkipLayerNormalization"] > 0
    assert before["BiasGelu"] > 0
    after = fused_counts(optimize_for_cpu(exported).graph, tmp_path / "after")
    assert "SkipLayerNormalization" not in after
    assert "BiasGelu" not in after


@pytest.mark.slow
def test_the_same_graph_gives_the_same_bytes_and_a_second_time_changes_nothing(exported: StoredGraph) -> None:
    first = optimize_for_cpu(exported)
    assert optimize_for_cpu(exported) == first
    again = optimize_for_cpu(first.graph)
    assert again.applied == {FOLD: 0, RESIDUAL: 0, GELU: 0}
    assert again.graph == first.graph


def build(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, int],
    outputs: tuple[str, ...],
    constants: Arrays | None = None,
) -> StoredGraph:
    """A graph of float32 inputs (batch, tokens, width) and one constant per name."""
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "main",
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "tokens", n]) for x, n in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=10,
    )
    return stored(onnx.shape_inference.infer_shapes(proto, strict_mode=True))


def attention(
    *,
    kv_heads: int = 4,
    perms: tuple[int, ...] = (0, 2, 1, 3),
    back: tuple[int, ...] = (0, 2, 1, 3),
    cache: bool = False,
    outputs: tuple[str, ...] = ("y",),
    twice: bool = False,
    raw_value: bool = False,
) -> StoredGraph:
    """An attention of four query heads of width 2, split and merged around it."""
    shape = np.array([0, 0, 4, 2], np.int64)
    small = np.array([0, 0, kv_heads, 2], np.int64)
    nodes = []
    for name, cut in (("q", "cut"), ("k", "cut_kv"), ("v", "cut_kv")):
        nodes.append(helper.make_node("Reshape", [name, cut], [f"{name}_cut"]))
        nodes.append(helper.make_node("Transpose", [f"{name}_cut"], [f"{name}4"], perm=perms))
    value = "v4"
    if raw_value:
        nodes.append(helper.make_node("Neg", ["v4"], ["negated"]))
        value = "negated"
    given = ["q4", "k4", value, *(["", "k4", "v4"] if cache else [])]
    made = ["c4", *(["present_k", "present_v"] if cache else [])]
    nodes.append(helper.make_node("Attention", given, made, "attention"))
    nodes.append(helper.make_node("Transpose", ["c4"], ["c"], perm=back))
    nodes.append(helper.make_node("Reshape", ["c", "joined"], ["y"]))
    if twice:
        nodes.append(helper.make_node("Neg", ["c4"], ["other"]))
    constants = {"cut": shape, "cut_kv": small, "joined": np.array([0, 0, -1], np.int64)}
    inputs = {"q": WIDTH, "k": 2 * kv_heads, "v": 2 * kv_heads}
    return build(nodes, inputs, outputs, constants)


def arrays(graph: StoredGraph, sizes: tuple[tuple[int, int], ...] = ((1, 4), (3, 4), (2, 7))) -> list[Arrays]:
    rng = np.random.default_rng(0)
    widths = {spec.name: int(spec.shape[2]) for spec in graph.signature.inputs}
    return [
        {name: rng.standard_normal((rows, tokens, width)).astype(np.float32) for name, width in widths.items()}
        for rows, tokens in sizes
    ]


def same_answers(first: StoredGraph, second: StoredGraph) -> bool:
    batches = arrays(first)
    pairs = zip(run_graph(first, batches), run_graph(second, batches), strict=True)  # type: ignore[arg-type]
    return all(np.abs(one[name] - other[name]).max() <= 1e-6 for one, other in pairs for name in one)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_key_and_value_may_have_fewer_heads_than_the_query(kv_heads: int) -> None:
    graph = attention(kv_heads=kv_heads)
    optimized = optimize_for_cpu(graph)
    assert optimized.applied[FOLD] == 1
    assert op_counts(optimized.graph) == {"Attention": 1}
    (node,) = to_proto(optimized.graph).graph.node
    heads = {item.name: item.i for item in node.attribute}
    assert (heads["q_num_heads"], heads["kv_num_heads"]) == (4, kv_heads)
    assert same_answers(graph, optimized.graph)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(lambda: attention(cache=True), id="a cache"),
        pytest.param(lambda: attention(perms=(0, 1, 2, 3)), id="heads are split otherwise"),
        pytest.param(lambda: attention(back=(0, 1, 2, 3)), id="heads are merged otherwise"),
        pytest.param(lambda: attention(twice=True, outputs=("y", "other")), id="two nodes read the attention"),
        pytest.param(lambda: attention(outputs=("y", "c4")), id="the attention is an output"),
        pytest.param(lambda: attention(outputs=("y", "c")), id="the heads are an output"),
        pytest.param(lambda: attention(raw_value=True), id="something lies between the value and its heads"),
    ],
)
def test_another_attention_stays_as_it_is(graph: Callable[[], StoredGraph]) -> None:
    made = graph()
    optimized = optimize_for_cpu(made)
    assert optimized.applied[FOLD] == 0
    assert op_counts(optimized.graph) == op_counts(made)


def normed(
    op: str = "Add", *, outputs: tuple[str, ...] = ("y",), bias: bool = True, twice: bool = False
) -> StoredGraph:
    """LayerNormalization of what `op` makes of an input and a second one, to which a bias was added."""
    nodes = [
        *([helper.make_node("Add", ["x", "bias"], ["biased"])] if bias else []),
        helper.make_node(op, ["biased" if bias else "x", "z"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale"], ["y"], axis=-1),
        *([helper.make_node("Neg", ["biased"], ["other"])] if twice else []),
    ]
    values = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    return build(nodes, {"x": WIDTH, "z": WIDTH}, outputs, {"bias": values, "scale": values})


@pytest.mark.parametrize(
    ("graph", "counts"),
    [
        (lambda: normed(), {"Sum": 1, "LayerNormalization": 1}),
        (lambda: normed(bias=False), {"Sum": 1, "LayerNormalization": 1}),
        (lambda: normed(outputs=("y", "sum")), {"Sum": 1, "LayerNormalization": 1}),
        # Read by two, or an output: the biased tensor must stay, and the sum takes it whole.
        (lambda: normed(twice=True, outputs=("y", "other")), {"Add": 1, "Sum": 1, "LayerNormalization": 1, "Neg": 1}),
        (lambda: normed(outputs=("y", "biased")), {"Add": 1, "Sum": 1, "LayerNormalization": 1}),
    ],
)
def test_a_bias_joins_the_residual_if_nothing_else_reads_it(
    graph: Callable[[], StoredGraph], counts: dict[str, int]
) -> None:
    made = graph()
    optimized = optimize_for_cpu(made)
    assert optimized.applied[RESIDUAL] == 1
    assert op_counts(optimized.graph) == counts
    assert [spec.name for spec in optimized.graph.signature.outputs] == [spec.name for spec in made.signature.outputs]
    assert same_answers(made, optimized.graph)


@pytest.mark.parametrize("op", ["Mul", "Sub", "Max"])
def test_the_norm_of_something_else_than_a_sum_stays(op: str) -> None:
    made = normed(op)
    optimized = optimize_for_cpu(made)
    assert optimized.applied == {FOLD: 0, RESIDUAL: 0, GELU: 0}
    assert op_counts(optimized.graph) == op_counts(made)


def test_an_addition_that_two_norms_read_is_changed_once() -> None:
    nodes = [
        helper.make_node("Add", ["x", "z"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale"], ["y"], axis=-1),
        helper.make_node("LayerNormalization", ["sum", "scale"], ["w"], axis=-1),
    ]
    made = build(nodes, {"x": WIDTH, "z": WIDTH}, ("y", "w"), {"scale": np.ones(WIDTH, np.float32)})
    optimized = optimize_for_cpu(made)
    assert (optimized.applied[RESIDUAL], op_counts(optimized.graph)) == (1, {"Sum": 1, "LayerNormalization": 2})
    assert same_answers(made, optimized.graph)


def gelu(
    second: str = "bias", *, op: str = "Add", outputs: tuple[str, ...] = ("y",), twice: bool = False
) -> StoredGraph:
    nodes = [
        helper.make_node(op, ["x", second], ["biased"]),
        helper.make_node("Gelu", ["biased"], ["y"]),
        *([helper.make_node("Neg", ["biased"], ["other"])] if twice else []),
    ]
    return build(nodes, {"x": WIDTH, "z": WIDTH}, outputs, {"bias": np.linspace(-1, 1, WIDTH, dtype=np.float32)})


def test_the_bias_before_a_gelu_is_a_sum() -> None:
    optimized = optimize_for_cpu(gelu())
    assert (optimized.applied[GELU], op_counts(optimized.graph)) == (1, {"Sum": 1, "Gelu": 1})
    assert same_answers(gelu(), optimized.graph)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(lambda: gelu("z"), id="no constant"),
        pytest.param(lambda: gelu(op="Mul"), id="no sum"),
        pytest.param(lambda: gelu(twice=True, outputs=("y", "other")), id="read twice"),
        pytest.param(lambda: gelu(outputs=("y", "biased")), id="an output"),
    ],
)
def test_another_gelu_stays_as_it_is(graph: Callable[[], StoredGraph]) -> None:
    made = graph()
    optimized = optimize_for_cpu(made)
    assert optimized.applied[GELU] == 0
    assert op_counts(optimized.graph) == op_counts(made)


def test_each_pass_alone_counts_what_it_changed() -> None:
    for run, expected in ((fold_heads, 1), (sum_residuals, 2), (sum_before_gelu, 1)):
        model = ir.from_proto(to_proto(tiny_graph()))
        assert (run(model.graph), run(model.graph)) == (expected, 0)
