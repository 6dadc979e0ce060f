"""Storing a graph and getting it back."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.model.graph import MIN_EXTERNAL_BYTES, restore_graph, store_graph

if TYPE_CHECKING:
    from pathlib import Path

import onnx_ir as ir

WEIGHT = np.arange(32 * 16, dtype=np.float32).reshape(32, 16) / 100
SMALL = np.arange(16, dtype=np.float32)


def model() -> ir.Model:
    shape = ["rows", 32]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("MatMul", ["x", "same"], ["other"]),
        helper.make_node("Add", ["product", "other"], ["sum"]),
        helper.make_node("Add", ["sum", "small"], ["y"]),
    ]
    values = {"weight": WEIGHT, "same": WEIGHT, "small": SMALL}
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 16])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return ir.from_proto(proto)


def test_equal_tensors_are_kept_once_and_named_by_their_content() -> None:
    stored = store_graph(model())
    assert stored.tensors == {hashlib.sha256(WEIGHT.tobytes()).hexdigest(): WEIGHT.tobytes()}
    assert stored.tensor_bytes == WEIGHT.nbytes
    assert SMALL.nbytes < MIN_EXTERNAL_BYTES
    assert (stored.node_count, stored.opset, stored.domains) == (4, 23, ())


def test_a_restored_graph_stores_to_the_same_bytes() -> None:
    stored = store_graph(model())
    assert store_graph(restore_graph(stored)) == stored


def test_a_restored_graph_has_its_numbers_in_memory() -> None:
    weights = restore_graph(store_graph(model())).graph.initializers
    assert all(not isinstance(value.const_value, ir.ExternalTensor) for value in weights.values())
    np.testing.assert_array_equal(weights["same"].const_value.numpy(), WEIGHT)


def test_two_graphs_share_a_folder_and_run(tmp_path: Path) -> None:
    stored = store_graph(model())
    first, second = stored.write(tmp_path / "new"), stored.write(tmp_path / "new", "second.onnx")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        ["model.onnx", "second.onnx", *stored.tensors]
    )
    x = np.ones((2, 32), np.float32)
    for path in (first, second):
        onnx.checker.check_model(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ WEIGHT * 2 + SMALL, rtol=1e-6)
