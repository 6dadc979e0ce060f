from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from starlette.datastructures import Headers

from device_agent.api.open_inference.binary import HEADER_LENGTH, BinaryParts, split_body
from device_agent.api.open_inference.datatypes import strings_from_binary, strings_to_binary
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import Task
from tests.support import bundles

URL = "/v2/models/tiny/infer"
TEXTS = ("the cat", "hello world !")


def body_of(inputs: list[tuple[str, str, list[int], bytes]], **fields: object) -> tuple[bytes, dict[str, str]]:
    """A request in binary form, and its headers."""
    header = json.dumps(
        {
            "inputs": [
                {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(data)}}
                for name, kind, shape, data in inputs
            ],
            **fields,
        }
    ).encode()
    return header + b"".join(data for *_, data in inputs), {HEADER_LENGTH: str(len(header))}


def texts_binary(texts: tuple[str, ...] = TEXTS) -> tuple[str, str, list[int], bytes]:
    return "text", "BYTES", [len(texts)], strings_to_binary([text.encode() for text in texts])


def tensors_binary() -> list[tuple[str, str, list[int], bytes]]:
    return [
        (name, "INT64", list(value.shape), value.tobytes()) for name, value in bundles.tokens_of(TEXTS, None).items()
    ]


def outputs_of(response) -> dict[str, np.ndarray]:
    """The outputs of an answer, FP32, each in the form that it has."""
    assert response.status_code == 200, response.text
    length = int(response.headers.get(HEADER_LENGTH, len(response.content)))
    header = json.loads(response.content[:length])
    at = length
    found = {}
    for item in header["outputs"]:
        size = item.get("parameters", {}).get("binary_data_size")
        if size is None:
            value = np.array(item["data"], dtype=np.float32)
        else:
            value = np.frombuffer(response.content[at : at + size], dtype="<f4")
            at += size
        found[item["name"]] = value.reshape(item["shape"])
    assert at == len(response.content)
    return found


@pytest.mark.parametrize("inputs", [[texts_binary()], tensors_binary()], ids=["texts", "tensors"])
@pytest.mark.parametrize("binary", [True, False])
def test_both_ways(connect, inputs: list[Any], binary: bool) -> None:
    data, headers = body_of(inputs, parameters={"binary_data_output": binary})
    response = connect().post(URL, content=data, headers=headers)
    want = bundles.reference(Task.EMBEDDING, bundles.tokens_of(TEXTS, None))["sentence_embedding"]
    np.testing.assert_allclose(outputs_of(response)["sentence_embedding"], want, atol=1e-5)
    media_type = "application/octet-stream" if binary else "application/json"
    assert response.headers["content-type"] == media_type
    assert (HEADER_LENGTH in response.headers) is binary


def test_an_output_says_for_itself_which_form_it_has(connect) -> None:
    asked = [{"name": "scores", "parameters": {"binary_data": False}}, {"name": "logits"}]
    data, headers = body_of([texts_binary()], outputs=asked, parameters={"binary_data_output": True})
    response = connect(Task.TEXT_CLASSIFICATION).post(URL, content=data, headers=headers)
    header = json.loads(response.content[: int(response.headers[HEADER_LENGTH])])
    assert "data" in header["outputs"][0]
    assert header["outputs"][1]["parameters"] == {"binary_data_size": 2 * 3 * 4}
    assert list(outputs_of(response)) == ["scores", "logits"]


def test_classes_in_binary_form(connect) -> None:
    asked = [{"name": "scores", "parameters": {"binary_data": True, "classification": 1}}]
    data, headers = body_of([texts_binary()], outputs=asked)
    response = connect(Task.TEXT_CLASSIFICATION).post(URL, content=data, headers=headers)
    at = int(response.headers[HEADER_LENGTH])
    (item,) = json.loads(response.content[:at])["outputs"]
    assert (item["datatype"], item["shape"]) == ("BYTES", [2, 1])
    found = strings_from_binary(memoryview(response.content)[at:], 2, "scores")
    assert all(value.split(b":")[2].decode() in bundles.LABELS for value in found)


def test_forms_may_be_mixed(connect) -> None:
    """One input in JSON, the others behind it."""
    values = bundles.tokens_of(TEXTS, None)
    first, *rest = tensors_binary()
    inputs: list[dict[str, Any]] = [
        {"name": first[0], "datatype": first[1], "shape": first[2], "data": values[first[0]].tolist()}
    ]
    inputs += [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, kind, shape, data in rest
    ]
    header = json.dumps({"inputs": inputs}).encode()
    data = header + b"".join(data for *_, data in rest)
    response = connect().post(URL, content=data, headers={HEADER_LENGTH: str(len(header))})
    want = bundles.reference(Task.EMBEDDING, values)["sentence_embedding"]
    np.testing.assert_allclose(outputs_of(response)["sentence_embedding"], want, atol=1e-5)


@pytest.mark.parametrize("value", ["", "x", "-1", "+3", "1.0", "0x2", "11", "\xb2", "9" * 5000, "1 2"])
def test_a_length_that_is_none(value: str) -> None:
    with pytest.raises(InvalidRequestError, match=HEADER_LENGTH):
        split_body(b"0123456789", Headers({HEADER_LENGTH: value}))


def test_two_lengths() -> None:
    raw = [(HEADER_LENGTH.lower().encode(), b"2")] * 2
    with pytest.raises(InvalidRequestError, match="one number"):
        split_body(b"0123456789", Headers(raw=raw))


def test_split() -> None:
    header, parts = split_body(b"0123456789", Headers({HEADER_LENGTH: "4"}))
    assert header == b"0123"
    assert bytes(parts.take(2, "a")) == b"45"
    assert bytes(parts.take(4, "b")) == b"6789"
    parts.finish()


def test_parts_that_do_not_add_up() -> None:
    parts = BinaryParts(memoryview(b"012"))
    with pytest.raises(InvalidRequestError, match="0 to 3 bytes, which are left; found 4"):
        parts.take(4, "inputs[0]")
    with pytest.raises(InvalidRequestError, match="found -1"):
        parts.take(-1, "inputs[0]")
    parts.take(2, "inputs[0]")
    with pytest.raises(InvalidRequestError, match="goes on after the last tensor"):
        parts.finish()


def test_binary_sizes_without_the_header_say_what_is_missing(connect) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
    response = connect().post(URL, json={"inputs": [tensor]})
    assert response.status_code == 400
    assert f"does the request have the header {HEADER_LENGTH}?" in response.json()["error"]


def test_bytes_that_belong_to_no_tensor(connect) -> None:
    data, headers = body_of([texts_binary()])
    response = connect().post(URL, content=data + b"\x00", headers=headers)
    assert response.status_code == 400
    assert "goes on after the last tensor" in response.json()["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_answers_are_compressed_for_a_client_that_asks(connect, encoding: str) -> None:
    """The header's length is that of the JSON before compression."""
    texts = TEXTS * 100
    data, headers = body_of([texts_binary(texts)], parameters={"binary_data_output": True})
    response = connect().post(URL, content=data, headers={**headers, "Accept-Encoding": encoding})
    assert response.headers["content-encoding"] == encoding
    assert int(response.headers["content-length"]) < len(response.content)
    want = bundles.reference(Task.EMBEDDING, bundles.tokens_of(texts, None))["sentence_embedding"]
    np.testing.assert_allclose(outputs_of(response)["sentence_embedding"], want, atol=1e-5)
