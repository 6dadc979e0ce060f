"""Row-wise int8: the formula in NumPy, rows that depend on no other row, and graphs with zeros, ties and NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.bundle.golden import MASK_INPUT
from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import StoredGraph, restore_graph
from edgeonnx.quantize.rowwise import SWITCH, RowwisePlan, plan_rowwise, quantize_rowwise, switchable
from tests.support.graphs import (
    HIDDEN,
    OPSET,
    OUTPUT,
    VOCABULARY,
    Weights,
    attention_of_three_axes,
    min_cosine,
    op_counts,
    run_graph,
    stored,
    tensor,
    tiny_batches,
    tiny_graph,
    tiny_proto,
    tiny_weights,
    to_proto,
    value_outlier,
)

ENTRIES = 600
"""Entries of an embedding table that is large enough to be quantized."""
CALIBRATION = tiny_batches(((4, 12), (3, 16)), seed=7)
BATCHES = tiny_batches()


def _large_table(weights: Weights) -> None:
    table = np.random.default_rng(5).standard_normal((ENTRIES, HIDDEN)) * 0.5
    table[: len(weights["words"])] = weights["words"]
    weights["words"] = table.astype(np.float32)


def _plan(graph: StoredGraph, **options: object) -> RowwisePlan:
    return plan_rowwise(graph, CALIBRATION, **options)  # type: ignore[arg-type]


def _quantized(graph: StoredGraph, **options: object) -> StoredGraph:
    return quantize_rowwise(graph, _plan(graph), **options)  # type: ignore[arg-type]


def _int8(graph: StoredGraph) -> dict[str, np.ndarray]:
    """The int8 tensors of a graph by name."""
    found = {}
    for name, value in restore_graph(graph).graph.initializers.items():
        array = value.const_value.numpy() if value.const_value is not None else np.zeros(0)
        if array.dtype == np.int8:
            found[name] = array
    return found


def _layer(weight: np.ndarray, bias: np.ndarray, *, before: str | None = None) -> StoredGraph:
    """One linear layer over a table: `answer` = [Gelu](words[input_ids]) @ weight + bias, a row each token."""
    rng = np.random.default_rng(3)
    words = (rng.standard_normal((VOCABULARY, len(weight))) * rng.uniform(0.1, 4, (VOCABULARY, 1))).astype(np.float32)
    words[0] = 0
    words[1] = 2.5
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"], "embed"),
        *([helper.make_node(before, ["embedded"], ["x"], "before")] if before else []),
        helper.make_node("MatMul", ["x" if before else "embedded", "w"], ["product"], "layer_matmul"),
        helper.make_node("Add", ["product", "b"], ["answer"], "layer_add"),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", MASK_INPUT)
    ]
    outputs = [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["batch", "sequence", weight.shape[1]])]
    weights = [numpy_helper.from_array(value, name) for name, value in (("words", words), ("w", weight), ("b", bias))]
    proto = helper.make_model(
        helper.make_graph(nodes, "main", inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=10,
    )
    return stored(onnx.shape_inference.infer_shapes(proto, strict_mode=True))


def _matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((rows, columns)).astype(np.float32)


LAYER_INPUT = {"input_ids": np.arange(40, dtype=np.int64).reshape(4, 10), MASK_INPUT: np.ones((4, 10), np.int64)}


def _run_layer(graph: StoredGraph) -> np.ndarray:
    return run_graph(graph, [LAYER_INPUT])[0]["answer"]


class TestFormula:
    def test_one_layer_is_what_numpy_computes(self) -> None:
        weight, bias = _matrix(16, 8), np.linspace(-1, 1, 8, dtype=np.float32)
        graph = _layer(weight, bias)
        found = _run_layer(quantize_rowwise(graph, _plan(graph, migrate=False)))
        x = tensor(graph, "words")[LAYER_INPUT["input_ids"]].astype(np.float32)
        scale = np.abs(x).max(axis=-1, keepdims=True) * np.float32(1 / 127)
        steps = np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0))
        step = (np.abs(weight).max(axis=0) / np.float32(127)).astype(np.float32)
        expected = scale * (steps @ (np.rint(weight / step) * step)) + bias
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
        assert np.abs(found - (x @ weight + bias)).max() > 1e-4, "it is quantized at all"

    def test_a_bounded_layer_is_what_numpy_computes(self) -> None:
        weight, bias = _matrix(16, 8), np.zeros(8, np.float32)
        graph = _layer(weight, bias, before="Gelu")
        plan = _plan(graph)
        (group,) = plan.groups.values()
        point = group.zero_point
        found = _run_layer(quantize_rowwise(graph, plan))
        kept = onnx.helper.make_model(
            helper.make_graph(
                [helper.make_node("Gelu", ["e"], ["x"])],
                "g",
                [helper.make_tensor_value_info("e", TensorProto.FLOAT, ["a", "b", 16])],
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", 16])],
            ),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=10,
        )
        embedded = {"e": tensor(graph, "words")[LAYER_INPUT["input_ids"]].astype(np.float32)}
        x = run_graph(stored(kept), [embedded])[0]["x"]  # type: ignore[list-item]
        scale = np.maximum(x.max(axis=-1, keepdims=True) * np.float32(1 / (255 - point)), np.float32(0.1701 / point))
        steps = np.clip(np.rint(x / scale), -point, 255 - point)
        step = (np.abs(weight).max(axis=0) / np.float32(127)).astype(np.float32)
        np.testing.assert_allclose(found, scale * (steps @ (np.rint(weight / step) * step)), atol=1e-5, rtol=1e-5)

    def test_the_two_forms_agree_and_one_is_standard_onnx(self) -> None:
        graph = tiny_graph(change=_large_table)
        plan = _plan(graph)
        fused, standard = quantize_rowwise(graph, plan), quantize_rowwise(graph, plan, fused=False)
        for one, other in zip(run_graph(fused, BATCHES), run_graph(standard, BATCHES), strict=True):
            np.testing.assert_allclose(one[OUTPUT], other[OUTPUT], atol=1e-5)
        proto = to_proto(standard)
        assert {item.domain for item in proto.opset_import} <= {"", "ai.onnx"}
        assert op_counts(standard)["MatMulInteger"] == op_counts(fused)["com.microsoft.MatMulIntegerToFloat"] == 6
        onnx.checker.check_model(proto)

    def test_the_answers_are_close_to_fp32(self) -> None:
        graph = tiny_graph(change=_large_table)
        assert 0.998 < min_cosine(run_graph(graph, BATCHES), run_graph(_quantized(graph), BATCHES)) < 1 - 1e-7


class TestRows:
    @pytest.mark.parametrize("fused", [True, False])
    def test_a_row_alone_is_that_row_in_any_batch(self, fused: bool) -> None:
        graph = _quantized(tiny_graph(change=_large_table), fused=fused)
        batch = tiny_batches(((6, 14),), seed=4)[0]
        extra = {name: np.repeat(value[:1], 3, axis=0) for name, value in batch.items()}
        mixed = {name: np.concatenate([extra[name], value]) for name, value in batch.items()}
        together, shifted = (run_graph(graph, [item])[0][OUTPUT] for item in (batch, mixed))
        np.testing.assert_allclose(shifted[3:], together, atol=1e-6)
        for row in range(6):
            length = int(batch[MASK_INPUT][row].sum())
            alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
            np.testing.assert_allclose(run_graph(graph, [alone])[0][OUTPUT][0], together[row], atol=1e-6)

    @pytest.mark.parametrize("fused", [True, False])
    def test_a_row_of_zeros_gives_the_bias_exactly(self, fused: bool) -> None:
        bias = np.linspace(-1, 1, 8, dtype=np.float32)
        found = _run_layer(_quantized(_layer(_matrix(16, 8), bias), fused=fused))
        np.testing.assert_array_equal(found[0, 0], bias)
        assert np.isfinite(found).all()

    def test_a_constant_row_loses_nothing_but_the_weights_rounding(self) -> None:
        weight = np.sign(_matrix(16, 8)).astype(np.float32)
        found = _run_layer(_quantized(_layer(weight, np.zeros(8, np.float32))))
        np.testing.assert_allclose(found[0, 1], 2.5 * weight.sum(axis=0), atol=1e-4)

    def test_zeros_in_embeddings_and_weights_make_no_nan(self) -> None:
        graph = tiny_graph(zero_rows=True, change=_large_table)
        batches = [*BATCHES, {"input_ids": np.zeros((2, 5), np.int64), MASK_INPUT: np.ones((2, 5), np.int64)}]
        expected, found = run_graph(graph, batches), run_graph(_quantized(graph), batches)
        assert all(np.isfinite(item[OUTPUT]).all() for item in found)
        assert min_cosine(expected, found) > 0.998


class TestWeights:
    @pytest.mark.parametrize(("bits", "limit"), [(7, 64), (8, 127)])
    def test_they_stay_within_their_bits(self, bits: int, limit: int) -> None:
        graph = tiny_graph()
        weights = _int8(quantize_rowwise(graph, _plan(graph, weight_bits=bits)))
        assert len(weights) == 6
        assert {int(np.abs(item.astype(np.int16)).max()) for item in weights.values()} == {limit}

    def test_tables_are_int8_and_the_float_ones_are_gone(self) -> None:
        graph = tiny_graph(change=_large_table)
        found = _quantized(graph)
        assert _plan(graph).tables == ("words",)
        assert any(item.shape == (ENTRIES, HIDDEN) for item in _int8(found).values())
        assert "words" not in restore_graph(found).graph.initializers
        assert found.tensor_bytes < 0.3 * graph.tensor_bytes

    def test_a_tied_weight_is_stored_once_and_never_migrated(self) -> None:
        tied, free = tiny_graph(tied=True), tiny_graph()
        found = _quantized(tied)
        assert len(_int8(found)) == 5
        assert len(_int8(_quantized(free))) == 6
        assert found.tensor_bytes <= _quantized(free).tensor_bytes - HIDDEN * HIDDEN
        assert min_cosine(run_graph(tied, BATCHES), run_graph(found, BATCHES)) > 0.998

    def test_layers_of_different_inputs_that_share_a_weight_are_not_migrated(self) -> None:
        """`query` reads the embeddings, `output` reads the attention; both are the same matrix."""
        proto = tiny_proto(tiny_weights())
        for node in proto.graph.node:
            if node.name == "output_matmul":
                node.input[1] = "query"
        kept = [item for item in proto.graph.initializer if item.name != "output"]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)
        graph = stored(proto)
        plan = _plan(graph)
        sharing = [plan.groups[name] for name in plan.groups if "query" in name or "output" in name]
        assert len(sharing) == 2
        assert all(group.smoothing is None for group in sharing)
        found = quantize_rowwise(graph, plan)
        assert len(_int8(found)) == 5
        assert min_cosine(run_graph(graph, BATCHES), run_graph(found, BATCHES)) > 0.998


class TestKeep:
    def test_all_kept_is_the_float_graph(self) -> None:
        graph = tiny_graph(change=_large_table)
        plan = _plan(graph)
        kept = quantize_rowwise(graph, plan, keep=plan.names)
        for one, other in zip(run_graph(graph, BATCHES), run_graph(kept, BATCHES), strict=True):
            np.testing.assert_array_equal(one[OUTPUT], other[OUTPUT])
        assert _int8(kept) == {}

    def test_a_kept_group_keeps_its_tensors(self) -> None:
        graph = tiny_graph(change=_large_table)
        plan = _plan(graph)
        (up,) = (name for name in plan.groups if name.startswith("up"))
        found = quantize_rowwise(graph, plan, keep=[up, "words"])
        for name in ("up", "words"):
            np.testing.assert_array_equal(tensor(found, name), tensor(graph, name))
        assert op_counts(found)["com.microsoft.MatMulIntegerToFloat"] == 5


class TestSwitchable:
    def test_off_is_fp32_and_on_is_the_quantized_graph(self) -> None:
        graph = tiny_graph(change=_large_table)
        plan = _plan(graph)
        switches = switchable(graph, plan)

        def run(value: float) -> list[dict[str, np.ndarray]]:
            flags = np.full(len(plan.names), value, np.float32)
            return run_graph(switches, [{**batch, SWITCH: flags} for batch in BATCHES])  # type: ignore[dict-item]

        exact, quantized = run_graph(graph, BATCHES), run_graph(quantize_rowwise(graph, plan), BATCHES)
        for one, off, other, on in zip(exact, run(0), quantized, run(1), strict=True):
            np.testing.assert_allclose(off[OUTPUT], one[OUTPUT], atol=1e-6)
            np.testing.assert_allclose(on[OUTPUT], other[OUTPUT], atol=1e-4)
            assert np.abs(other[OUTPUT] - one[OUTPUT]).max() > 1e-3

    def test_each_switch_moves_the_answer(self) -> None:
        graph = tiny_graph(change=_large_table)
        plan = _plan(graph)
        switches = switchable(graph, plan)
        exact = run_graph(graph, BATCHES[1:2])[0][OUTPUT]
        for flags in np.eye(len(plan.names), dtype=np.float32):
            found = run_graph(switches, [{**BATCHES[1], SWITCH: flags}])[0][OUTPUT]  # type: ignore[dict-item]
            assert 1e-5 < np.abs(found - exact).max() < 0.2


class TestFolding:
    def test_it_saves_a_product_and_changes_nothing(self) -> None:
        weights = tiny_weights()
        value_outlier(weights)
        graph = attention_of_three_axes(weights)
        plan = _plan(graph)
        assert plan.groups["output"].smoothing is not None
        folded = quantize_rowwise(graph, plan)
        (first,) = (name for name in plan.groups if "value" in name)
        # With the value projection in float there is nothing to fold into.
        beside = quantize_rowwise(graph, plan, keep=[first])
        assert any(name.startswith("output/smoothing") for name in restore_graph(beside).graph.initializers)
        assert not any(name.startswith("output/smoothing") for name in restore_graph(folded).graph.initializers)
        assert min_cosine(run_graph(graph, BATCHES), run_graph(folded, BATCHES)) > 0.998
        np.testing.assert_array_equal(tensor(graph, "value"), weights["value"])

    def test_the_products_of_the_folded_layer_are_the_same(self) -> None:
        weights = tiny_weights()
        value_outlier(weights)
        graph = attention_of_three_axes(weights)
        plan = _plan(graph)
        smoothing = plan.groups["output"].smoothing
        assert smoothing is not None
        folded = quantize_rowwise(graph, plan)
        np.testing.assert_allclose(tensor(folded, "value.bias"), weights["value.bias"] / smoothing, rtol=1e-6)
        output = tensor(folded, "output/int8") * tensor(folded, "output/scale")
        expected = weights["output"] * smoothing[:, None]
        np.testing.assert_allclose(output, expected, atol=np.abs(expected).max() / 127)
        one, other = op_counts(folded)["Mul"], op_counts(switchable(graph, plan))["Mul"]
        # A switchable graph multiplies by 1/s, and by its switch once a layer.
        assert one == other - 6 - 1


def test_the_bytes_are_the_same_each_time() -> None:
    first, second = (_quantized(tiny_graph(change=_large_table)) for _ in range(2))
    assert first.model == second.model
    assert list(first.tensors) == list(second.tensors)


def test_the_standard_attention_of_opset_23_loads() -> None:
    found = _quantized(tiny_graph())
    assert op_counts(found)["Attention"] == 1
    assert {item.version for item in to_proto(found).opset_import if item.domain == ""} == {OPSET}
    assert np.isfinite(run_graph(found, BATCHES)[0][OUTPUT]).all()


class TestRefused:
    def test_a_graph_that_is_quantized_already(self) -> None:
        with pytest.raises(QuantizationError, match="quantized already"):
            _plan(_quantized(tiny_graph()))

    def test_weights_that_are_not_constant(self) -> None:
        proto = tiny_proto(tiny_weights())
        del proto.graph.node[:], proto.graph.initializer[:], proto.graph.value_info[:]
        proto.graph.node.append(helper.make_node("Cast", [MASK_INPUT], ["m"], to=TensorProto.FLOAT))
        proto.graph.node.append(helper.make_node("Transpose", ["m"], ["t"]))
        proto.graph.node.append(helper.make_node("MatMul", ["m", "t"], [OUTPUT]))
        with pytest.raises(QuantizationError, match="constant weight"):
            _plan(stored(proto))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_are_not_finite(self, value: float) -> None:
        with pytest.raises(QuantizationError) as caught:
            _plan(tiny_graph(change=_setter("up", value)))
        assert caught.value.where == "up[2, 3]"


def _setter(name: str, value: float) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[name][2, 3] = value

    return change
