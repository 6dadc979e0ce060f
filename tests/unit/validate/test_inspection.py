"""What `inspect` tells of a graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.spec.manifest import Task
from edgeonnx.validate.inspection import GraphFacts, inspect_graph
from tests.support.bundles import DIM, VOCABULARY, graph


def facts(tmp_path: Path, model: onnx.ModelProto | bytes) -> GraphFacts:
    file = tmp_path / "m.onnx"
    file.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return inspect_graph(file)


def identity(**options: object) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, "n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, "n", 3])
    return helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y], **options))


def test_a_real_graph_is_counted(tmp_path: Path) -> None:
    found = facts(tmp_path, graph(Task.EMBEDDING)[0])
    assert found.inputs[0] == ("input_ids", "int64", "[batch, sequence]")
    assert found.outputs == (("sentence_embedding", "float", f"[batch, {DIM}]"),)
    assert found.opsets == {"ai.onnx": 18}
    assert found.operators["ai.onnx", "Gather"] == 2
    assert sum(found.operators.values()) == 11
    assert found.weights["float"] == (3, len(VOCABULARY) * DIM + 2 * DIM + 1, (len(VOCABULARY) + 2) * DIM * 4 + 4)
    assert found.external_files == 1
    assert found.largest[0].name == "words"
    assert found.largest[0].file is not None
    assert found.largest[1].file is None
    assert found.parameters == sum(elements for _, elements, _ in found.weights.values())
    json.dumps(found.to_dict())


def test_unnamed_dimensions_are_question_marks(tmp_path: Path) -> None:
    assert facts(tmp_path, identity()).inputs == (("x", "float", "[?, n, 3]"),)


def test_operators_of_branches_and_functions_count(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Mine", ["x"], ["z"], domain="my.ops"),
    ]
    body = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    function = helper.make_function(
        "my.ops", "Mine", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    model = helper.make_model(
        body, functions=[function], opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]
    )
    assert facts(tmp_path, model).operators == {
        ("ai.onnx", "Neg"): 2,
        ("ai.onnx", "Abs"): 1,
        ("ai.onnx", "If"): 1,
        ("my.ops", "Mine"): 1,
    }


@pytest.mark.parametrize(
    ("dtype", "elements", "size"),
    [(TensorProto.INT4, 3, 2), (TensorProto.UINT4, 4, 2), (TensorProto.FLOAT16, 3, 6), (TensorProto.BFLOAT16, 3, 6)],
)
def test_packed_types_take_the_bytes_they_take(tmp_path: Path, dtype: int, elements: int, size: int) -> None:
    tensor = TensorProto(name="w", data_type=dtype, dims=[elements], raw_data=b"\0" * size)
    found = facts(tmp_path, identity(initializer=[tensor]))
    assert found.weight_bytes == size


@pytest.mark.parametrize("dtype", [0, 99, -1], ids=["undefined", "of a newer ONNX", "negative"])
def test_a_type_that_this_onnx_does_not_know_is_a_number(tmp_path: Path, dtype: int) -> None:
    model = identity(initializer=[TensorProto(name="w", data_type=dtype, dims=[2])])
    model.graph.input[0].type.tensor_type.elem_type = dtype
    found = facts(tmp_path, model)
    assert found.weights == {"undefined" if dtype == 0 else f"type {dtype}": (1, 2, 0)}


def test_ports_that_are_no_tensors_are_told_by_their_kind(tmp_path: Path) -> None:
    model = identity()
    model.graph.output.append(
        helper.make_value_info(
            "s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        )
    )
    assert facts(tmp_path, model).outputs[-1] == ("s", "sequence_type", "")


def test_an_input_with_a_default_is_a_weight(tmp_path: Path) -> None:
    model = identity(initializer=[numpy_helper.from_array(np.zeros(2, np.float32), "w")])
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    assert [name for name, _, _ in facts(tmp_path, model).inputs] == ["x"]
