"""Making an exported graph fit to ship, without torch: a graph made by hand goes through."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.errors import ExportError, ValidationError
from edgeonnx.export.graph import finish_graph
from edgeonnx.model.graph import MIN_EXTERNAL_BYTES
from edgeonnx.spec.tensor import DType

AXES = ("batch", "sequence")
LARGE = np.arange(MIN_EXTERNAL_BYTES // 4, dtype=np.float32)
SMALL = np.ones(3, np.float32)


def exported(first: str | int = "s1", second: str | int = "s2") -> ir.Model:
    """What an exporter leaves: tracer's names, paths of the build host, one large tensor twice and a small one."""
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [first, second])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [first, second, len(LARGE)])
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT, doc_string="/home/me/build.py:3"),
        helper.make_node("Unsqueeze", ["f", "axis"], ["u"]),
        helper.make_node("Mul", ["u", "large"], ["m"]),
        helper.make_node("Add", ["m", "again"], ["y"]),
    ]
    weights = {"large": LARGE, "again": LARGE, "axis": np.array([2], np.int64)}
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "main_graph", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 18)]
    )
    proto.producer_name, proto.doc_string = "pytorch", "made in /home/me"
    entry = proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.stack_trace", "/home/me/build.py"
    return ir.from_proto(proto)


def test_large_tensors_become_files_named_by_their_content_each_once() -> None:
    graph = finish_graph(exported(), axes=AXES)
    assert graph.tensors == {hashlib.sha256(LARGE.tobytes()).hexdigest(): LARGE.tobytes()}
    proto = onnx.ModelProto.FromString(graph.model)
    held = {tensor.name: tensor for tensor in proto.graph.initializer}
    digest = next(iter(graph.tensors))
    for name in ("large", "again"):
        facts = {entry.key: entry.value for entry in held[name].external_data}
        assert facts == {"location": digest, "offset": "0", "length": str(LARGE.nbytes)}
    assert held["axis"].data_location == TensorProto.DEFAULT


def test_the_axes_are_named_everywhere() -> None:
    graph = finish_graph(exported(), axes=AXES)
    assert graph.signature.inputs[0].shape == AXES
    assert graph.signature.outputs[0].shape == (*AXES, len(LARGE))
    assert graph.signature.outputs[0].dtype is DType.FLOAT


def test_nothing_of_the_build_host_is_left() -> None:
    graph = finish_graph(exported(), axes=AXES)
    for trace in (b"/home/me", b"stack_trace", b"pytorch", b"s1", b"main_graph"):
        assert trace not in graph.model
    assert onnx.ModelProto.FromString(graph.model).producer_name == "edgeonnx"


def test_two_runs_give_the_same_bytes() -> None:
    assert finish_graph(exported(), axes=AXES) == finish_graph(exported(), axes=AXES)


def test_the_facts_are_those_of_the_graph() -> None:
    graph = finish_graph(exported(), axes=AXES)
    assert (graph.opset, graph.node_count, graph.domains) == (18, 4, ())


@pytest.mark.parametrize(("first", "second", "name"), [(3, "s2", "batch"), ("s1", 16, "sequence")])
def test_an_axis_that_the_exporter_fixed_is_refused(first: str | int, second: str | int, name: str) -> None:
    with pytest.raises(ExportError, match=f"fixed the {name} axis") as caught:
        finish_graph(exported(first, second), axes=AXES)
    assert caught.value.where == "x"
    assert caught.value.found == str(first if isinstance(first, int) else second)
    assert caught.value.hint is not None


def test_a_type_without_a_name_of_ours_is_refused() -> None:
    model = exported()
    model.graph.outputs[0].dtype = ir.DataType.COMPLEX64
    with pytest.raises(ValidationError, match="no type or shape that is supported") as caught:
        finish_graph(model, axes=AXES)
    assert caught.value.where == "y"
