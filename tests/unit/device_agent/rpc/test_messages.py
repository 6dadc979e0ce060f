from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("google.protobuf")

from device_agent.api.open_inference.datatypes import NUMPY_TYPES, strings_to_binary
from device_agent.api.open_inference.request import InferRequest, Output
from device_agent.inference.rows import Answer
from device_agent.rpc.descriptors import message_types
from device_agent.rpc.messages import (
    CONTENTS,
    TypedData,
    parameters_of,
    parse,
    read_request,
    render_response,
)
from edgeonnx.errors import InferenceError, InvalidRequestError
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.tensor import DType


def request(**fields: object):
    return message_types()["ModelInferRequest"](model_name="tiny", **fields)


def typed(**contents: object) -> TypedData:
    return TypedData(contents=message_types()["InferTensorContents"](**contents), where="inputs[0].contents")


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(InvalidRequestError, match="expected ModelInferRequest"):
        parse("ModelInferRequest", b"\xff\xff\xff")


def test_parameters() -> None:
    message = request()
    message.parameters["a"].bool_param = False
    message.parameters["b"].int64_param = 7
    message.parameters["c"].string_param = ""
    message.parameters["d"].double_param = 0.5
    message.parameters["e"].uint64_param = 2**63
    message.parameters["f"].SetInParent()
    assert parameters_of(message.parameters) == {"a": False, "b": 7, "c": "", "d": 0.5, "e": 2**63, "f": None}


@pytest.mark.parametrize("dtype", CONTENTS)
def test_typed_contents(dtype: DType) -> None:
    values = [b"a", b""] if dtype is DType.STRING else [1, 0]
    data = typed(**{CONTENTS[dtype]: values})
    if dtype is DType.STRING:
        assert data.texts([2]) == ["a", ""]
        return
    found = data.array(dtype, [2, 1])
    assert (found.dtype, found.shape, found.reshape(-1).tolist()) == (NUMPY_TYPES[dtype], (2, 1), values)


@pytest.mark.parametrize(
    ("contents", "dtype", "shape", "message"),
    [
        ({"int64_contents": [1]}, DType.INT64, [2], "has another number of elements; expected 2"),
        ({"int64_contents": [1]}, DType.INT32, [1], "contents.int64_contents: holds no INT32; expected int_contents"),
        ({"int64_contents": [1], "bool_contents": [True]}, DType.INT64, [1], "bool_contents: holds no INT64"),
        ({"int_contents": [128]}, DType.INT8, [1], "does not fit; expected numbers of the datatype INT8"),
        ({"uint_contents": [70000]}, DType.UINT16, [1], "does not fit"),
        ({"fp32_contents": [1.0]}, DType.FLOAT16, [1], "holds no FP16; expected raw_input_contents"),
        ({"fp32_contents": [float("inf")]}, DType.FLOAT, [1], "does not fit"),
        ({}, DType.INT64, [1], "has another number of elements"),
        ({}, DType.INT64, [1] * 100, "has too many dimensions"),
    ],
)
def test_typed_contents_that_do_not_fit(
    contents: dict[str, object], dtype: DType, shape: list[int], message: str
) -> None:
    pattern = message.replace("has another number of elements; ", "has another number of elements.*")
    with pytest.raises(InvalidRequestError, match=pattern):
        typed(**contents).array(dtype, shape)


def test_texts_that_are_none() -> None:
    with pytest.raises(InvalidRequestError, match="element 1: is no text; expected UTF-8"):
        typed(bytes_contents=[b"a", b"\xff"]).texts([2])


def test_raw_contents_belong_to_inputs_in_order() -> None:
    message = request(id="seven")
    message.inputs.add(name="a", datatype="BYTES", shape=[1])
    message.inputs.add(name="b", datatype="INT64", shape=[1, 1])
    message.raw_input_contents.extend([strings_to_binary([b"x"]), np.array([5], dtype="<i8").tobytes()])
    asked = read_request(message)
    assert asked.id == "seven"
    assert asked.tensors["a"].data.texts([1]) == ["x"]
    assert asked.tensors["b"].data.array(DType.INT64, asked.tensors["b"].shape).tolist() == [[5]]


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_raw_contents(count: int) -> None:
    message = request(raw_input_contents=[b""] * count)
    message.inputs.add(name="a", datatype="BYTES", shape=[1])
    message.inputs.add(name="b", datatype="BYTES", shape=[1])
    with pytest.raises(InvalidRequestError, match=f"raw_input_contents: .*expected 2, or none; found {count}"):
        read_request(message)


def test_forms_may_not_be_mixed_in_one_input() -> None:
    message = request(raw_input_contents=[b""])
    message.inputs.add(name="a", datatype="INT64", shape=[1]).contents.int64_contents.append(1)
    with pytest.raises(InvalidRequestError, match="has contents as well as raw contents"):
        read_request(message)


def test_an_input_twice_and_shared_memory() -> None:
    message = request()
    message.inputs.add(name="a", datatype="INT64", shape=[1])
    message.inputs.add(name="a", datatype="INT64", shape=[1])
    with pytest.raises(InvalidRequestError, match=r"inputs\[1\].name: occurs twice"):
        read_request(message)
    message = request()
    message.inputs.add(name="a").parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(InvalidRequestError, match="shared memory is not supported"):
        read_request(message)


def test_an_answer_per_token(loaded_models) -> None:
    loaded = loaded_models(Task.TOKEN_CLASSIFICATION)
    values = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    answer = Answer(outputs={"scores": values}, lengths=np.array([3, 2]))
    asked = InferRequest(id="x", seconds=None, outputs=(Output(name="scores"),), texts=["a", "b"])
    found = message_types()["ModelInferResponse"].FromString(render_response(answer, asked, loaded.manifest).data)
    assert (found.model_name, found.model_version, found.id) == ("tiny", "1.0.0", "x")
    assert found.parameters["token_counts"].string_param == "[3,2]"
    assert (found.outputs[0].datatype, list(found.outputs[0].shape)) == ("FP32", [2, 3, 3])
    assert found.raw_output_contents[0] == values.tobytes()
    values[0, 0, 0] = np.nan
    with pytest.raises(InferenceError, match="NaN"):
        render_response(answer, asked, loaded.manifest)
