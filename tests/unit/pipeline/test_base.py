"""A base is opened only if it is whole and of the same kind of model; what differs from it is counted, not guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import IntegrityError, NotABundleError, UsageError
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.pipeline.base import SHOWN_TENSORS, Base, Changes, compare, open_base
from edgeonnx.pipeline.names import keep_names
from edgeonnx.pipeline.recipe import RECIPES
from edgeonnx.quantize.earlier import read_constants
from edgeonnx.quantize.rowwise import plan_rowwise, quantize_rowwise
from edgeonnx.spec.manifest import Task
from tests.support.bundles import make_bundle
from tests.support.graphs import (
    Weights,
    run_graph,
    stored,
    tiny_batches,
    tiny_graph,
    tiny_proto,
    tiny_weights,
    to_proto,
)

CALIBRATION = tiny_batches(((4, 12), (3, 16)), seed=7)


class TestOpening:
    def test_a_bundle_of_another_task_is_refused(self, tmp_path: Path) -> None:
        bundle = make_bundle(tmp_path / "bundle")
        with pytest.raises(UsageError) as caught:
            open_base(bundle, task=Task.TEXT_RANKING, model_type="unknown")
        assert "task text-ranking" in str(caught.value.expected)
        assert "task embedding" in str(caught.value.found)
        assert "--base" in str(caught.value.hint)

    def test_a_bundle_of_another_family_is_refused(self, tmp_path: Path) -> None:
        bundle = make_bundle(tmp_path / "bundle")
        with pytest.raises(UsageError) as caught:
            open_base(bundle, task=Task.EMBEDDING, model_type="roberta")
        assert str(caught.value.expected).startswith("roberta")

    def test_a_bundle_without_the_float_variant_is_refused(self, tmp_path: Path) -> None:
        """The bundles of tests state no scheme: what cannot be told apart from another tool's is not read."""
        with pytest.raises(UsageError, match="cpu-fp32"):
            open_base(make_bundle(tmp_path / "bundle"), task=Task.EMBEDDING, model_type="unknown")

    def test_a_damaged_base_is_refused(self, tmp_path: Path) -> None:
        bundle = make_bundle(tmp_path / "bundle")
        model = next(bundle.rglob("model.onnx"))
        model.write_bytes(bytes([model.read_bytes()[0] ^ 1]) + model.read_bytes()[1:])
        with pytest.raises(IntegrityError):
            open_base(bundle, task=Task.EMBEDDING, model_type="unknown")

    def test_a_folder_that_is_no_bundle_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(NotABundleError):
            open_base(tmp_path, task=Task.EMBEDDING, model_type="bert")


def _changes(before: StoredGraph, after: StoredGraph) -> Changes:
    return compare(read_constants(before), read_constants(after), after, set(before.tensors))


class TestComparing:
    def test_equal_graphs_need_nothing(self) -> None:
        graph = tiny_graph()
        found = _changes(graph, graph)
        assert (found.changed, found.wire_bytes, found.scales) == ((), 0, 0)
        assert (found.tensors, found.tensor_bytes) == (len(graph.tensors), graph.tensor_bytes)

    def test_what_changed_is_named_and_takes_less_than_itself(self) -> None:
        def nudge(weights: Weights) -> None:
            weights["up"][0, 0] *= 2

        before, after = tiny_graph(), tiny_graph(change=nudge)
        found = _changes(before, after)
        assert found.changed == ("up",)
        assert 0 < found.wire_bytes < 200

    def test_a_tensor_of_another_shape_travels_whole(self) -> None:
        proto = tiny_proto(tiny_weights())
        words = next(item for item in proto.graph.initializer if item.name == "words")
        words.CopyFrom(numpy_helper.from_array(np.random.default_rng(1).random((200, 32), np.float32), "words"))
        found = _changes(tiny_graph(), stored(proto))
        assert found.changed == ("words",)
        assert found.wire_bytes > 15_000

    def test_new_scales_are_counted_by_channel(self) -> None:
        def grow(weights: Weights) -> None:
            weights["up"][:, :3] *= 2

        graph, other = tiny_graph(), tiny_graph(change=grow)
        plan = plan_rowwise(graph, CALIBRATION, migrate=False)
        before = quantize_rowwise(graph, plan)
        after = quantize_rowwise(other, plan_rowwise(other, CALIBRATION, migrate=False))
        found = _changes(before, after)
        assert found.new_scales == 3
        assert found.scales == sum(read_constants(after)[f"{name}/scale"].size for name in plan_names(after))

    def test_the_evidence_stays_small_where_everything_changed(self) -> None:
        names = tuple(f"tensor {index}" for index in range(SHOWN_TENSORS + 5))
        changes = Changes(tensors=99, tensor_bytes=9, changed=names, scales=0, new_scales=0, wire_bytes=1)
        told = changes.to_dict()["changed"]
        assert told == [*names[:SHOWN_TENSORS], "and 5 more"]
        assert changes.to_dict()["changed_tensors"] == SHOWN_TENSORS + 5
        assert "scales" not in str(changes)


def plan_names(graph: StoredGraph) -> list[str]:
    """Names of the quantized weights of a graph."""
    return [name.removesuffix("/int8") for name in read_constants(graph) if name.endswith("/int8")]


def _renamed(graph: StoredGraph) -> StoredGraph:
    """The graph as another release of an exporter would write it: other numbers for what has no name."""
    model = restore_graph(graph)
    for index, value in enumerate(list(model.graph.initializers.values())):
        value.name = f"val_{index}"
    for index, node in enumerate(model.graph):
        for output in node.outputs:
            if not output.is_graph_output():
                output.name = f"node_{index}"
    return store_graph(model)


def _with_an_operator_more(graph: StoredGraph) -> StoredGraph:
    model = restore_graph(graph)
    (gelu,) = (node for node in model.graph if node.op_type == "Gelu")
    readers = list(gelu.outputs[0].uses())
    identity = ir.node("Identity", [gelu.outputs[0]])
    model.graph.insert_after(gelu, identity)
    for use in readers:
        use.node.replace_input_with(use.idx, identity.outputs[0])
    return store_graph(model)


def _with_positions(graph: StoredGraph, table: str) -> StoredGraph:
    """The graph with a matrix of integers, and a node that reads it and a table, to no end."""
    model = restore_graph(graph)
    positions = ir.tensor(np.arange(64, dtype=np.int64).reshape(1, 64), name="position_ids")
    value = ir.Value(name="position_ids", shape=ir.Shape([1, 64]), type=ir.TensorType(positions.dtype))
    value.const_value = positions
    model.graph.register_initializer(value)
    model.graph.append(ir.node("Gather", [model.graph.initializers[table], value]))
    return store_graph(model)


class TestNames:
    def test_they_are_found_again(self) -> None:
        graph = tiny_graph()
        other = _renamed(graph)
        assert set(read_constants(other)).isdisjoint(read_constants(graph))
        found = keep_names(other, graph)
        assert set(read_constants(found)) == set(read_constants(graph))
        for name, array in read_constants(graph).items():
            np.testing.assert_array_equal(read_constants(found)[name], array)
        onnx.checker.check_model(to_proto(found))
        batches = tiny_batches()
        for one, two in zip(run_graph(graph, batches), run_graph(found, batches), strict=True):
            np.testing.assert_array_equal(*(outputs["sentence_embedding"] for outputs in (one, two)))

    def test_names_that_went_round_are_put_right(self) -> None:
        graph = tiny_graph()
        model = restore_graph(graph)
        up, down = (model.graph.initializers[name] for name in ("norm1.scale", "norm2.scale"))
        up.name = "elsewhere"
        down.name = "norm1.scale"
        up.name = "norm2.scale"
        found = keep_names(store_graph(model), graph)
        np.testing.assert_array_equal(read_constants(found)["norm1.scale"], read_constants(graph)["norm1.scale"])

    def test_equal_names_change_nothing(self) -> None:
        graph = tiny_graph()
        assert keep_names(graph, tiny_graph(seed=4)) is graph

    def test_graphs_with_other_operators_keep_their_own(self) -> None:
        graph = _with_an_operator_more(_renamed(tiny_graph()))
        assert keep_names(graph, tiny_graph()) is graph


def test_variants_that_follow_from_the_weights_say_so(tmp_path: Path) -> None:
    base = Base(bundle=open_bundle(make_bundle(tmp_path / "bundle")))
    assert "no such variant" in base.expected(RECIPES["cpu-int8"])
    assert base.plan_of(RECIPES["cpu-int8"]) is None


class _Base(Base):
    """A base of which there is only the float graph; it has a matrix of integers, as exporters store positions."""

    exact = _with_positions(tiny_graph(), "words")  # type: ignore[assignment]


class TestNaming:
    def test_a_model_with_weights_of_the_base_is_taken(self, tmp_path: Path) -> None:
        base = _Base(bundle=open_bundle(make_bundle(tmp_path / "bundle")))
        graph = tiny_graph(seed=5)
        assert base.name(graph) is graph

    def test_a_model_with_nothing_but_positions_in_common_is_refused(self, tmp_path: Path) -> None:
        base = _Base(bundle=open_bundle(make_bundle(tmp_path / "bundle")))
        with pytest.raises(UsageError, match="no weight in common"):
            base.name(_with_an_operator_more(_with_positions(_renamed(tiny_graph()), "val_0")))
