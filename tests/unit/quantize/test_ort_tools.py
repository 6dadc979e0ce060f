"""What all recipes that call ONNX Runtime's tools promise: quiet, clean, repeatable, and clear about bad input."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeonnx.errors import QuantizationError
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.quantize.half import emulate_bf16, to_half
from edgeonnx.quantize.ort_dynamic import quantize_ort_dynamic
from edgeonnx.quantize.ort_tools import find_targets, prepare, read_model, run_tool
from edgeonnx.quantize.static_qdq import quantize_static_qdq
from edgeonnx.quantize.weight_only import quantize_weight_only
from tests.support.agent import environment
from tests.support.graphs import min_cosine, run_graph, tiny_batches, tiny_graph

Recipe = Callable[..., StoredGraph]
CALIBRATION = tiny_batches([(16, 16), (4, 9), (1, 3)], seed=5)
RECIPES: dict[str, Recipe] = {
    "weight-only-4": lambda graph, **options: quantize_weight_only(graph, bits=4, **options),
    "weight-only-4-all": lambda graph, **options: quantize_weight_only(graph, bits=4, embeddings=True, **options),
    "weight-only-8": lambda graph, **options: quantize_weight_only(graph, bits=8, **options),
    "static": lambda graph, **options: quantize_static_qdq(graph, CALIBRATION, **options),
    "dynamic": quantize_ort_dynamic,
    "fp16": lambda graph, **options: to_half(graph, "fp16", **options),
    "bf16": lambda graph, **options: to_half(graph, "bf16", **options),
    "bf16-emulated": emulate_bf16,
}
MIN_COSINE = {"weight-only-4": 0.97, "weight-only-4-all": 0.96, "fp16": 0.999999, "bf16-emulated": 0.9999}
QUANTIZERS = [name for name in RECIPES if "16" not in name]
RUNNABLE = [name for name in RECIPES if name != "bf16"]


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return RECIPES[request.param]


def digest(graph: StoredGraph) -> str:
    return hashlib.sha256(graph.model + "".join(graph.tensors).encode()).hexdigest()


def digests() -> str:
    """A line for each recipe, for a process of its own."""
    return "\n".join(f"{name} {digest(recipe(tiny_graph()))}" for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("options", [{}, {"tied": True}, {"zero_rows": True}], ids=lambda options: "".join(options))
def test_the_answers_stay_close(name: str, options: dict[str, bool]) -> None:
    graph, batches = tiny_graph(**options), tiny_batches()
    found = min_cosine(run_graph(graph, batches), run_graph(RECIPES[name](graph), batches))
    assert found >= MIN_COSINE.get(name, 0.9995)
    assert found < 1 - 1e-9, "nothing was converted"


def test_names_types_and_shapes_stay_and_nothing_tells_of_the_build_host(recipe: Recipe) -> None:
    graph = tiny_graph()
    made = recipe(graph)
    assert made.signature == graph.signature
    proto = onnx.ModelProto.FromString(made.model)
    source = onnx.ModelProto.FromString(graph.model)
    assert (proto.producer_name, proto.producer_version, proto.graph.name) == (
        source.producer_name,
        source.producer_version,
        source.graph.name,
    )
    assert not proto.metadata_props
    assert not proto.doc_string
    assert not any(node.metadata_props or node.doc_string for node in proto.graph.node)
    assert tempfile.gettempdir().encode() not in made.model


def test_tied_weights_stay_tied_and_are_stored_once(recipe: Recipe) -> None:
    tied, loose = recipe(tiny_graph(tied=True)), recipe(tiny_graph())
    model = restore_graph(tied)
    users = {node.name: node for node in model.graph if node.name and node.name.startswith(("query_", "key_"))}
    products = [node for name, node in users.items() if "matmul" in name and node.op_type.startswith("MatMul")]
    assert len(products) == 2
    weights = [_weight(node) for node in products]
    assert weights[0] is weights[1]
    assert len(model.graph.initializers) < len(restore_graph(loose).graph.initializers)


def _weight(node: ir.Node) -> ir.Value | None:
    """The initializer behind a product's second input."""
    value = node.inputs[1]
    producer = None if value is None else value.producer()
    return producer.inputs[0] if producer is not None else value


@pytest.mark.slow
def test_the_same_graph_gives_the_same_bytes_in_another_process() -> None:
    code = "from tests.unit.quantize import test_ort_tools; print(test_ort_tools.digests())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment(), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop().splitlines()) == len(RECIPES)


def test_no_file_line_or_handler_is_left(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    recipe(tiny_graph())
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert (list(root.handlers), root.level) == before
    assert root.filters == []
    assert logging.getLogger("onnxruntime").level == logging.NOTSET


def test_log_lines_of_tools_are_kept_away_but_not_ours(caplog: pytest.LogCaptureFixture) -> None:
    def tool(path: Path, _: Path) -> ir.Model:
        logging.getLogger("edgeonnx").warning("ours")
        return read_model(path)

    graph = tiny_graph()
    run_tool(prepare(graph), graph, tool, name="a tool")
    quantize_ort_dynamic(graph)  # logs that the model was not pre-processed
    assert [record.getMessage() for record in caplog.records] == ["ours"]


@pytest.mark.parametrize("bad", ["nan", "quantized", "no-weights"])
def test_bad_graphs_are_refused_and_leave_nothing(
    recipe: Recipe, bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    graph, message = _bad(bad)
    with pytest.raises(QuantizationError, match=message):
        recipe(graph)
    assert list(tmp_path.iterdir()) == []


def _bad(kind: str) -> tuple[StoredGraph, str]:
    if kind == "nan":
        return tiny_graph(change=lambda weights: np.put(weights["value"], 3, np.nan)), "not finite"
    if kind == "quantized":
        return quantize_weight_only(tiny_graph(), bits=8), "quantized already"
    model = restore_graph(tiny_graph())
    for node in model.graph:
        if node.op_type == "MatMul":
            node.op_type = "Add"
    return store_graph(model), "no matrix product"


def test_a_failing_tool_is_told_by_its_first_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tool(path: Path, scratch: Path) -> ir.Model:
        (scratch / "half-written").write_bytes(b"x")
        raise RuntimeError("the first line\nand a page more")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    graph = tiny_graph()
    with pytest.raises(QuantizationError, match="a tool failed") as raised:
        run_tool(prepare(graph), graph, tool, name="a tool")
    assert raised.value.found == "the first line"
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_changes_the_outputs_is_refused() -> None:
    def tool(path: Path, _: Path) -> ir.Model:
        model = read_model(path)
        model.graph.outputs[0].shape = ir.Shape([7, 32])
        return model

    graph = tiny_graph()
    with pytest.raises(QuantizationError, match="changed the inputs or outputs"):
        run_tool(prepare(graph), graph, tool, name="a tool")


def test_traces_of_a_tool_are_removed() -> None:
    def leave_traces(path: Path, _: Path) -> ir.Model:
        model = read_model(path)
        model.producer_name, model.doc_string, model.graph.doc_string = "a tool", "/home/builder", "/home/builder"
        for part in (model, model.graph, model.graph[0], model.graph[0].outputs[0]):
            part.metadata_props["path"] = "/home/builder"
        model.graph[0].doc_string = "/home/builder"
        model.opset_imports["never.used"] = 1
        return model

    graph = tiny_graph()
    model = prepare(graph)
    clean = run_tool(model, graph, lambda path, _: read_model(path), name="a tool")
    assert run_tool(prepare(graph), graph, leave_traces, name="a tool") == clean


def test_an_unknown_name_to_keep_is_refused(recipe: Recipe) -> None:
    with pytest.raises(QuantizationError, match="to be kept") as raised:
        recipe(tiny_graph(), keep=["up", "missing"])
    assert raised.value.found == "missing"


@pytest.mark.parametrize("name", QUANTIZERS)
def test_keeping_everything_is_refused(name: str) -> None:
    weights = ["words", "query", "key", "value", "output", "up", "down"]
    with pytest.raises(QuantizationError, match="nothing to quantize"):
        RECIPES[name](tiny_graph(), keep=weights)


@pytest.mark.parametrize("keep", ["down", "down_matmul"], ids=["weight", "node"])
def test_what_is_kept_stays_float_to_the_bit(recipe: Recipe, keep: str) -> None:
    graph = tiny_graph()
    kept = restore_graph(recipe(graph, keep=[keep])).graph.initializers
    before = restore_graph(graph).graph.initializers["down"].const_value
    after = kept["down"].const_value
    assert before is not None
    assert after is not None
    assert after.dtype == ir.DataType.FLOAT
    assert after.tobytes() == before.tobytes()
    assert "up" not in kept or recipe is emulate_bf16 or kept["up"].dtype != ir.DataType.FLOAT


def test_nodes_without_names_and_of_one_name_get_their_own() -> None:
    model = restore_graph(tiny_graph())
    for node in model.graph:
        if node.op_type == "MatMul":
            node.name = "same"
        elif node.op_type == "Add":
            node.name = None
    prepared = prepare(store_graph(model))
    names = [node.name for node in prepared.graph]
    assert all(names)
    assert len(set(names)) == len(names)
    assert len(find_targets(prepared, ["MatMul"], [])) == 6
