"""Graphs that try to read files of the machine through external data, wherever ONNX lets a tensor stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from edgeonnx.errors import UnsafePathError, ValidationError
from edgeonnx.pipeline.verify import verify
from edgeonnx.validate.checker import check_locations, external_locations
from edgeonnx.validate.inspection import inspect_graph
from tests.support.bundles import make_bundle
from tests.support.tamper import relist

LOCATIONS = {
    "absolute": "/etc/passwd",
    "the parent": "../secret",
    "the parent, deep": "a/../../secret",
    "a backslash": "..\\secret",
    "a drive letter": "C:\\secret",
    "a URL": "file:///etc/passwd",
    "a NUL": "a\0b",
    "memory of the process": "*/_ORT_MEM_ADDR_/*",
    "a home folder": "~/secret",
    "empty": "",
    "very long": "x" * 5000,
}


def external(*locations: str) -> TensorProto:
    """A float tensor of four elements in a file; several locations stand in it one after the other."""
    tensor = TensorProto(name="secret", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for location in locations:
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
    return tensor


def model(*nodes: onnx.NodeProto, **parts: object) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    all_nodes = [*nodes, helper.make_node("Identity", ["x"], ["y"])]
    return helper.make_model(helper.make_graph(all_nodes, "g", [x], [y], **parts))


def subgraph(tensor: TensorProto) -> onnx.GraphProto:
    return helper.make_graph([], "sub", [], [], [tensor])


def sparse(tensor: TensorProto) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=tensor, indices=numpy_helper.from_array(np.zeros(4, np.int64)), dims=[4])


def constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=tensor)


def in_function_body(tensor: TensorProto) -> onnx.ModelProto:
    made = model()
    made.functions.append(helper.make_function("d", "F", [], ["c"], [constant(tensor)], []))
    return made


def in_function_default(tensor: TensorProto) -> onnx.ModelProto:
    made = model()
    function = helper.make_function("d", "F", [], [], [], [])
    function.attribute_proto.append(helper.make_attribute("value", tensor))
    made.functions.append(function)
    return made


def in_training(tensor: TensorProto) -> onnx.ModelProto:
    made = model()
    made.training_info.add().algorithm.initializer.append(tensor)
    return made


def in_graph_list(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("If", ["x"], ["c"])
    attribute = node.attribute.add()
    attribute.name, attribute.type = "branches", onnx.AttributeProto.GRAPHS
    attribute.graphs.append(subgraph(tensor))
    return model(node)


def in_sparse_attribute(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["c"])
    attribute = node.attribute.add()
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.CopyFrom(sparse(tensor))
    return model(node)


PLACES: dict[str, Callable[[TensorProto], onnx.ModelProto]] = {
    "an initializer": lambda t: model(initializer=[t]),
    "a sparse initializer": lambda t: model(sparse_initializer=[sparse(t)]),
    "an attribute": lambda t: model(constant(t)),
    "a list of tensors": lambda t: model(helper.make_node("X", [], ["c"], values=[t])),
    "a sparse attribute": in_sparse_attribute,
    "a branch": lambda t: model(helper.make_node("If", ["x"], ["c"], then_branch=subgraph(t))),
    "an attribute in a branch": lambda t: model(
        helper.make_node("If", ["x"], ["c"], then_branch=helper.make_graph([constant(t)], "s", [], []))
    ),
    "a list of branches": in_graph_list,
    "a function's body": in_function_body,
    "a function's default": in_function_default,
    "a training graph": in_training,
}


def written(folder: Path, made: onnx.ModelProto) -> Path:
    file = folder / "model.onnx"
    file.write_bytes(made.SerializeToString())
    return file


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_a_tensor_is_looked_at(tmp_path: Path, place: str) -> None:
    made = PLACES[place](external("plain"))
    assert list(external_locations(made)) == [("secret", "plain")]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", LOCATIONS)
def test_a_location_outside(tmp_path: Path, place: str, case: str) -> None:
    file = written(tmp_path, PLACES[place](external(LOCATIONS[case])))
    for check in (lambda: check_locations(file, None), lambda: inspect_graph(file)):
        with pytest.raises(UnsafePathError) as caught:
            check()
        assert caught.value.where == "tensor secret"
        assert caught.value.message == "external data points outside the model's folder"
        assert caught.value.expected
        assert len(caught.value.found or "") < 200


@pytest.mark.parametrize("order", [("plain", "/etc/passwd"), ("/etc/passwd", "plain")], ids=["last", "first"])
def test_a_second_location_of_the_same_tensor(tmp_path: Path, order: tuple[str, str]) -> None:
    (tmp_path / "plain").write_bytes(bytes(16))
    with pytest.raises(UnsafePathError):
        check_locations(written(tmp_path, model(initializer=[external(*order)])), None)


def test_no_location(tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError):
        check_locations(written(tmp_path, model(initializer=[external()])), None)


@pytest.mark.parametrize("linked", ["the file", "its folder"])
def test_a_symbolic_link(tmp_path: Path, linked: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(bytes(16))
    inside = tmp_path / "model"
    inside.mkdir()
    if linked == "the file":
        (inside / "data").mkdir()
        (inside / "data" / "secret").symlink_to(outside / "secret")
    else:
        (inside / "data").symlink_to(outside)
    with pytest.raises(UnsafePathError, match="behind a symbolic link") as caught:
        check_locations(written(inside, model(initializer=[external("data/secret")])), None)
    assert caught.value.where == "tensor secret"


@pytest.mark.parametrize("present", ["nothing", "a folder"])
def test_a_missing_file(tmp_path: Path, present: str) -> None:
    if present == "a folder":
        (tmp_path / "plain").mkdir()
    with pytest.raises(ValidationError, match="an external tensor is missing") as caught:
        check_locations(written(tmp_path, model(initializer=[external("plain")])), None)
    assert caught.value.where == "tensor secret"
    assert "plain" in (caught.value.expected or "")


@pytest.mark.parametrize("case", ["absolute", "the parent", "memory of the process"])
def test_a_bundle_with_such_a_graph_is_refused_before_it_is_opened(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path)
    file = bundle / "encoder/cpu-fp32/model.onnx"
    made = onnx.ModelProto.FromString(file.read_bytes())
    made.graph.initializer.append(external(LOCATIONS[case]))
    file.write_bytes(made.SerializeToString())
    relist(bundle)
    opened: list[object] = []
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *arguments, **_: opened.append(arguments))
    with pytest.raises(UnsafePathError):
        verify(bundle)
    assert opened == []
    for verb in ("verify", "inspect"):
        done = CliRunner().invoke(app, [verb, str(bundle)])
        assert done.exit_code == 5
        assert "tensor secret" in done.stderr


def test_a_location_that_is_no_text(tmp_path: Path) -> None:
    data = model(initializer=[external("../secret")]).SerializeToString().replace(b"../secret", b"../secre\xff")
    (tmp_path / "model.onnx").write_bytes(data)
    for check in (
        lambda: check_locations(tmp_path / "model.onnx", None),
        lambda: inspect_graph(tmp_path / "model.onnx"),
    ):
        with pytest.raises(ValidationError, match="not UTF-8"):
            check()


@pytest.mark.parametrize("code", [b"", b"PK\x03\x04", b"\x80\x04.", b"GGUF", b"#!/bin/sh\n", b"{}", b"\xff" * 4096])
def test_a_file_that_is_not_onnx(tmp_path: Path, code: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(code)
    with pytest.raises(ValidationError, match="is not an ONNX model"):
        inspect_graph(tmp_path / "model.onnx")
    done = CliRunner().invoke(app, ["inspect", str(tmp_path / "model.onnx")])
    assert done.exit_code == 4
    assert done.stderr.startswith(f"error: {tmp_path / 'model.onnx'}: is not an ONNX model")


def test_names_in_a_graph_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    made = model(initializer=[numpy_helper.from_array(np.zeros(2, np.float32), "w\x1b[31m")])
    made.graph.node[0].domain = "d\x1b[31m"
    made.producer_name = "p\x1b[31m\n"
    done = CliRunner().invoke(app, ["inspect", str(written(tmp_path, made))])
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.count("\\x1b[31m") == 3


@pytest.mark.parametrize("dims", [[-1], [0], [1 << 62, 1 << 62], [-(1 << 63)]])
def test_dimensions_that_no_tensor_has(tmp_path: Path, dims: list[int]) -> None:
    made = model(initializer=[TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT)])
    done = CliRunner().invoke(app, ["inspect", str(written(tmp_path, made))])
    assert done.exit_code in (0, 4), done.exception
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


def test_branches_nested_deep_are_looked_at(tmp_path: Path) -> None:
    graph = subgraph(external("../secret"))
    for _ in range(20):
        graph = helper.make_graph([helper.make_node("If", ["x"], ["c"], then_branch=graph)], "s", [], [])
    with pytest.raises(UnsafePathError):
        check_locations(written(tmp_path, model(helper.make_node("If", ["x"], ["c"], then_branch=graph))), None)


def test_branches_nested_deeper_than_protobuf_reads_are_no_model(tmp_path: Path) -> None:
    inner = b""
    for _ in range(200):  # each level: graph -> node -> attribute -> graph, by their field numbers
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            inner = tag + _varint(len(inner)) + inner
    (tmp_path / "model.onnx").write_bytes(b"\x3a" + _varint(len(inner)) + inner)
    with pytest.raises(ValidationError, match="is not an ONNX model"):
        inspect_graph(tmp_path / "model.onnx")


def _varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])
