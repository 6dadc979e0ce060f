"""Is a graph valid, complete, and the one that was promised? Hostile external data stands in tests/attacks."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from edgeonnx.errors import ValidationError
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec
from edgeonnx.validate.checker import check_graph, check_signature, load_graph
from tests.support.bundles import OUTPUTS, graph, signature

TASK = Task.TEXT_CLASSIFICATION


@pytest.fixture
def model() -> bytes:
    return graph(TASK)[0]


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    folder = tmp_path / "tensors"
    folder.mkdir()
    for name, data in graph(TASK)[1].items():
        (folder / name).write_bytes(data)
    return folder


def changed(model: bytes, change: object) -> bytes:
    proto = onnx.ModelProto.FromString(model)
    change(proto)  # type: ignore[operator]
    return proto.SerializeToString()


def test_a_right_graph_passes(model: bytes, tensors: Path) -> None:
    check_graph(model, tensors, signature(TASK), OUTPUTS[TASK])


def test_an_output_that_the_task_lacks_is_named(model: bytes, tensors: Path) -> None:
    with pytest.raises(ValidationError, match="has other outputs than its task") as caught:
        check_graph(model, tensors, signature(TASK), ("sentence_embedding",))
    assert (caught.value.expected, caught.value.found) == ("['sentence_embedding']", "['logits', 'scores']")


def test_an_input_that_the_exporter_dropped_is_named(model: bytes, tensors: Path) -> None:
    promised = signature(TASK)
    more = TensorSpec(name="position_ids", dtype=DType.INT64, shape=("batch", "sequence"))
    with pytest.raises(ValidationError, match="dropped or renamed an input") as caught:
        check_graph(
            model,
            tensors,
            ModelSignature(inputs=(*promised.inputs, more), outputs=promised.outputs),
            OUTPUTS[TASK],
        )
    assert "position_ids" in (caught.value.expected or "")


def test_an_unknown_operator_is_not_valid(model: bytes, tensors: Path) -> None:
    def rename(proto: onnx.ModelProto) -> None:
        proto.graph.node[0].op_type = "Gahter"

    with pytest.raises(ValidationError, match="is not valid ONNX") as caught:
        check_graph(changed(model, rename), tensors, signature(TASK), OUTPUTS[TASK])
    assert "Gahter" in (caught.value.found or "")


def test_a_value_that_nobody_makes_is_not_valid(model: bytes, tensors: Path) -> None:
    def cut(proto: onnx.ModelProto) -> None:
        del proto.graph.node[2]

    with pytest.raises(ValidationError, match="is not valid ONNX"):
        check_graph(changed(model, cut), tensors, signature(TASK), OUTPUTS[TASK])


def test_a_missing_tensor_is_named(model: bytes, tensors: Path) -> None:
    missing = next(tensors.iterdir())
    missing.unlink()
    with pytest.raises(ValidationError, match="an external tensor is missing") as caught:
        check_graph(model, tensors, signature(TASK), OUTPUTS[TASK])
    assert caught.value.where == "tensor words"
    assert missing.name in (caught.value.expected or "")


@pytest.mark.parametrize(
    ("task", "message", "expected"),
    [
        (Task.EMBEDDING, "has other outputs", "sentence_embedding float32 of rank 2"),
        (Task.TOKEN_CLASSIFICATION, "has other outputs", "logits float32 of rank 3, scores float32 of rank 3"),
    ],
)
def test_a_graph_of_another_task_is_refused(
    model: bytes, tmp_path: Path, task: Task, message: str, expected: str
) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(model)
    check_signature(file, signature(TASK))
    with pytest.raises(ValidationError, match=message) as caught:
        check_signature(file, signature(task))
    assert caught.value.where == str(file)
    assert caught.value.expected == expected
    assert caught.value.found == "logits float32 of rank 2, scores float32 of rank 2"


def test_inputs_of_another_type_are_refused(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )
    file = tmp_path / "model.onnx"
    file.write_bytes(helper.make_model(body).SerializeToString())
    spec = TensorSpec(name="x", dtype=DType.INT64, shape=("n",))
    with pytest.raises(ValidationError, match="has other inputs") as caught:
        check_signature(file, ModelSignature(inputs=(spec,), outputs=(spec,)))
    assert (caught.value.expected, caught.value.found) == ("x int64 of rank 1", "x string of rank 1")


@pytest.mark.parametrize("name", ["model.onnx", "model.json", "model.txt", "model.pb"])
def test_a_graph_is_read_whatever_the_file_is_called(model: bytes, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(model)
    assert len(load_graph(tmp_path / name).graph.output) == 2


@pytest.mark.parametrize("data", [b"", b"not onnx", b"{}", b"\x00" * 64, b"\xff" * 64, b"\x08\x0a"])
@pytest.mark.parametrize("name", ["model.onnx", "model.json", "model.onnxtxt", "model.textproto"])
def test_what_is_no_graph_is_refused(tmp_path: Path, data: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValidationError, match="is not an ONNX model") as caught:
        load_graph(tmp_path / name)
    assert caught.value.where == str(tmp_path / name)
    assert caught.value.found is not None
