"""Bad requests against a live agent: each gets a clear 4xx in its protocol's form, and the agent serves on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent
from tests.support.hostile import Bystander

EMBEDDINGS = "/v1/embeddings"
INFER = "/v2/models/tiny/infer"
REFERENCE = bundles.reference(Task.EMBEDDING, bundles.tokens_of(("the cat",), None))["sentence_embedding"][0]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with Agent(bundle=bundles.make_bundle(tmp_path_factory.mktemp("attacks"))) as running:
        with Bystander(running, growth=256 << 20):
            yield running
        assert running.process.poll() is None, running.log
    assert "Traceback" not in running.log
    assert "onnxruntime" not in running.log


@pytest.fixture(scope="module")
def connected(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=30, verify=False) as made:
        yield made


@pytest.fixture
def client(connected: httpx.Client) -> Iterator[httpx.Client]:
    yield connected
    serves(connected)  # whatever the test sent, a good request is answered afterwards


def serves(client: httpx.Client) -> None:
    response = client.post(EMBEDDINGS, json={"model": "tiny", "input": "the cat"})
    assert response.status_code == 200
    np.testing.assert_allclose(response.json()["data"][0]["embedding"], REFERENCE, atol=1e-5)


def check_error(response: httpx.Response, status: int, message: str = "") -> None:
    """Status, JSON, the protocol's own form, no traceback."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    if response.request.url.path.startswith("/v1"):
        assert set(error) == {"message", "type", "param", "code"}
        error = error["message"]
    assert message in error, error
    assert "Traceback" not in error
    assert "\n" not in error


def body(path: str, text: object) -> dict[str, Any]:
    """A request for one text (or whatever stands in its place), in the protocol of the path."""
    if path == EMBEDDINGS:
        return {"model": "tiny", "input": text}
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}


def tensors(**data: list[Any]) -> dict[str, Any]:
    """A request with one row of three tokens; `data` replaces tensors by name."""
    rows: dict[str, list[Any]] = {"input_ids": [2, 6, 3], "attention_mask": [1, 1, 1], "token_type_ids": [0, 0, 0]}
    rows.update(data)
    return {"inputs": [{"name": n, "shape": [1, len(v)], "datatype": "INT64", "data": v} for n, v in rows.items()]}


both = pytest.mark.parametrize("path", [EMBEDDINGS, INFER])


@both
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b"\x00\x01\x02",
        b"\xff\xfe{}",
        b"[]",
        b"null",
        b'"text"',
        b"1",
        b"{'model': 'tiny'}",
        b'{"model": "tiny", "input": NaN}',
        b'{"model": "tiny", "input": Infinity}',
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"{}{}",
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_body_that_is_no_json_object(client: httpx.Client, path: str, content: bytes) -> None:
    check_error(client.post(path, content=content), 400, "body: ")


@both
@pytest.mark.parametrize("escape", [rb"\ud800", rb"\udfff", rb"x\ud800x", rb"\udc00\ud800"])
def test_a_lone_surrogate(client: httpx.Client, path: str, escape: bytes) -> None:
    content = httpx.Request("POST", "http://x", json=body(path, "HERE")).content.replace(b"HERE", escape)
    check_error(client.post(path, content=content), 400, "surrogate")


@both
def test_a_surrogate_in_bytes(client: httpx.Client, path: str) -> None:
    content = httpx.Request("POST", "http://x", json=body(path, "HERE")).content.replace(b"HERE", b"\xed\xa0\x80")
    check_error(client.post(path, content=content), 400, "not UTF-8")


@both
@pytest.mark.parametrize("text", ["", " ", "\x00", "a\x00b", "\u200b", "\U0001f600", "\ufffd", "e\u0301", "\r\n\t"])
def test_odd_texts_have_the_answer_that_their_tokens_have(client: httpx.Client, path: str, text: str) -> None:
    response = client.post(path, json=body(path, text))
    assert response.status_code == 200
    found = response.json()["data"][0]["embedding"] if path == EMBEDDINGS else response.json()["outputs"][0]["data"]
    expected = bundles.reference(Task.EMBEDDING, bundles.tokens_of((text,), None))["sentence_embedding"][0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@both
@pytest.mark.parametrize("pattern", ["a", "cat ", "\U0001f600", "é", "!"])
def test_a_megabyte_of_text_is_cut_and_answered(client: httpx.Client, path: str, pattern: str) -> None:
    text = (pattern * (1 << 20))[: (1 << 20) // len(pattern.encode())]
    response = client.post(path, json=body(path, text))
    assert response.status_code == 200


@both
def test_a_text_beyond_the_limit(client: httpx.Client, path: str) -> None:
    check_error(client.post(path, json=body(path, "a" * ((1 << 20) + 1))), 413, "the text is too long")


@both
@pytest.mark.parametrize("value", [None, 1.5, True, {}, {"text": "a"}])
def test_something_else_than_a_text(client: httpx.Client, path: str, value: object) -> None:
    check_error(client.post(path, json=body(path, value)), 400)


def test_an_empty_list(client: httpx.Client) -> None:
    check_error(client.post(EMBEDDINGS, json=body(EMBEDDINGS, [])), 400, "input: is empty")
    empty = {"inputs": [{"name": "text", "shape": [0], "datatype": "BYTES", "data": []}]}
    check_error(client.post(INFER, json=empty), 400, "is empty")
    check_error(client.post(INFER, json={"inputs": []}), 400, "is missing")


def test_too_many_texts(client: httpx.Client) -> None:
    check_error(client.post(EMBEDDINGS, json=body(EMBEDDINGS, ["a"] * 10_000)), 413, "at most 2,048")
    many = {"inputs": [{"name": "text", "shape": [10_000], "datatype": "BYTES", "data": ["a"] * 10_000}]}
    check_error(client.post(INFER, json=many), 413, "at most 2,048")


def test_as_many_texts_as_allowed(client: httpx.Client) -> None:
    response = client.post(EMBEDDINGS, json=body(EMBEDDINGS, ["the cat", "", "hello world ! " * 30, "a"] * 512))
    assert response.status_code == 200
    assert len(response.json()["data"]) == 2048


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (tensors(input_ids=[2, 21, 3]), "is not a token id of this model"),
        (tensors(input_ids=[2, -1, 3]), "is not a token id of this model"),
        (tensors(input_ids=[2, 10**18, 3]), "is not a token id of this model"),
        (tensors(input_ids=[2, 10**19, 3]), "does not fit"),
        (tensors(input_ids=[2, 10**30, 3]), "found a number"),
        (tensors(input_ids=[2, 6.0, 3]), "found a number"),
        (tensors(input_ids=[2, None, 3]), "found null"),
        (tensors(input_ids=[2, "6", 3]), "found a string"),
        (tensors(input_ids=[2, False, 3]), "found true or false"),
        (tensors(token_type_ids=[0, 2, 0]), "the model does not take these inputs"),
        (tensors(token_type_ids=[0, -1, 0]), "is not a token id"),
        (tensors(attention_mask=[1, 2, 1]), "is no attention mask"),
        (tensors(attention_mask=[0, 0, 0]), "masks a whole row"),
        (tensors(attention_mask=[1, 1]), "wrong shape"),
        (tensors(**{name: [1] * 17 for name in bundles.INPUTS}), "longer than the model reads"),
        (tensors(position_ids=[0, 1, 2]), "no such input"),
        ({"inputs": tensors()["inputs"][:1]}, "is missing"),
        ({"inputs": [{**item, "datatype": "FP32"} for item in tensors()["inputs"]]}, "expected INT64; found 'FP32'"),
        ({"inputs": [{**item, "datatype": "BYTES"} for item in tensors()["inputs"]]}, "expected INT64"),
        ({"inputs": [{**item, "datatype": "QUBIT"} for item in tensors()["inputs"]]}, "found 'QUBIT'"),
        ({"inputs": [{**item, "shape": [3]} for item in tensors()["inputs"]]}, "wrong shape"),
        ({"inputs": [{**item, "shape": [1, 3, 1]} for item in tensors()["inputs"]]}, "wrong shape"),
        ({"inputs": [{**item, "shape": [1, 4]} for item in tensors()["inputs"]]}, "another number of elements"),
        ({"inputs": [{**item, "shape": [-1, -3]} for item in tensors()["inputs"]]}, "wrong shape"),
        ({"inputs": [{**item, "shape": [0, 3]} for item in tensors()["inputs"]]}, "wrong shape"),
        ({"inputs": [{**item, "shape": []} for item in tensors()["inputs"]]}, "wrong shape"),
        ({"inputs": [{**item, "data": [[[2, 6, 3]]]} for item in tensors()["inputs"]]}, "nested deeper"),
        ({"inputs": [{**item, "data": [[2], [6, 3]]} for item in tensors()["inputs"]]}, ""),
        ({"inputs": [{**item, "data": [[2, 6], 3]} for item in tensors()["inputs"]]}, "another number of elements"),
    ],
)
def test_tensors_that_the_model_does_not_take(client: httpx.Client, request_body: Any, message: str) -> None:
    response = client.post(INFER, json=request_body)
    if not message:  # nesting carries no meaning in the protocol: the shape decides
        assert response.status_code == 400 or "outputs" in response.json()
        return
    check_error(response, 400, message)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_ids_that_are_no_numbers(client: httpx.Client, value: str) -> None:
    content = httpx.Request("POST", "http://x", json=tensors(input_ids=[2, 777, 3])).content
    check_error(client.post(INFER, content=content.replace(b"777", value.encode())), 400, "the body is not JSON")


@pytest.mark.parametrize("tokens", [[21], [-1], [10**19], [[5], [99]], [1] * 17, [2.5], [[[1]]], [[1], []]])
def test_token_lists_that_the_model_does_not_take(client: httpx.Client, tokens: list[Any]) -> None:
    check_error(client.post(EMBEDDINGS, json=body(EMBEDDINGS, tokens)), 400, "input")


def test_a_shape_beyond_any_number_of_rows(client: httpx.Client) -> None:
    inputs = [{**item, "shape": [1 << 62, 3]} for item in tensors()["inputs"]]
    check_error(client.post(INFER, json={"inputs": inputs}), 413, "has too many")
    inputs = [{**item, "shape": [1 << 70, 3]} for item in tensors()["inputs"]]
    check_error(client.post(INFER, json={"inputs": inputs}), 400, "shape")


BINARY = orjson.dumps(
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}}]}
)


@pytest.mark.parametrize(
    ("length", "tail"),
    [
        (str(len(BINARY)), b""),
        (str(len(BINARY)), b"\x03\0\0\0ca"),
        (str(len(BINARY)), b"\x03\0\0\0cat!"),
        (str(len(BINARY)), b"\x04\0\0\0cat"),
        (str(len(BINARY)), b"\xff\xff\xff\xffcat"),
        (str(len(BINARY)), b"\x03\0\0\0\xff\xfe\xfd"),
        (str(len(BINARY) + 100), b"\x03\0\0\0cat"),
        (str(len(BINARY) - 1), b"\x03\0\0\0cat"),
        ("-1", b"\x03\0\0\0cat"),
        ("1e3", b"\x03\0\0\0cat"),
        ("9" * 50, b"\x03\0\0\0cat"),
        ("", b"\x03\0\0\0cat"),
    ],
)
def test_binary_sizes_that_do_not_add_up(client: httpx.Client, length: str, tail: bytes) -> None:
    headers = {"Inference-Header-Content-Length": length}
    check_error(client.post(INFER, content=BINARY + tail, headers=headers), 400)


def test_binary_sizes_that_add_up(client: httpx.Client) -> None:
    headers = {"Inference-Header-Content-Length": str(len(BINARY))}
    assert client.post(INFER, content=BINARY + b"\x03\0\0\0cat", headers=headers).status_code == 200


@both
@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1" * 400, "1." + "1" * 10_000, "-0", "0x10", "1_000", "+1", "1."]
)
def test_numbers_that_json_does_not_have_or_that_mean_nothing_here(
    client: httpx.Client, path: str, number: str
) -> None:
    content = httpx.Request("POST", "http://x", json=body(path, 777)).content.replace(b"777", number.encode())
    check_error(client.post(path, content=content), 400)


@pytest.mark.parametrize("name", ["dimensions", "encoding_format", "model", "user", "input"])
@pytest.mark.parametrize("value", [-1, 0, 1 << 64, 1e308, True, [[]], {"a": {}}, "\x1b[31m\r\nX-Bad: 1"])
def test_odd_values_of_every_member(client: httpx.Client, name: str, value: object) -> None:
    response = client.post(EMBEDDINGS, json={"model": "tiny", "input": "the cat", name: value})
    assert "x-bad" not in response.headers
    if response.status_code == 200:  # `user` is not looked at, and any text is an input
        assert name == "user" or (name == "input" and isinstance(value, str))
        return
    check_error(response, 404 if name == "model" and isinstance(value, str) else 400)


@pytest.mark.parametrize(
    ("text", "size"),
    [(b"[],", 7 << 20), (b"0,", 1 << 20), (b'"a",', 1 << 20), (b'{"a":0},', 1 << 20), (b"null,", 1 << 20)],
)
def test_large_bodies_of_many_small_things(client: httpx.Client, text: bytes, size: int) -> None:
    content = b'{"model": "tiny", "input": [' + text * (size // len(text)) + text[:-1] + b"]}"
    response = client.post(EMBEDDINGS, content=content)
    assert response.status_code in (400, 413), response.text[:200]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
@both
def test_wrong_methods(client: httpx.Client, method: str, path: str) -> None:
    check_error(client.request(method, path), 405, method)


def test_a_method_that_http_does_not_know(client: httpx.Client) -> None:
    check_error(client.request("BREW", "/v2"), 400, "Invalid method")


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v3",
        "/v2/models//infer",
        "/v2/models/../../etc/passwd",
        "/v2/%00",
        "/v1/%2e%2e/x",
        "/" + "a" * 8000,
    ],
)
def test_unknown_routes(client: httpx.Client, path: str) -> None:
    check_error(client.get(path), 404)


@pytest.mark.parametrize("name", ["other", "Tiny", "tiny%00", "%F0%9F%98%80", "tiny'--", "a" * 2000])
def test_unknown_models(client: httpx.Client, name: str) -> None:
    check_error(client.post(f"/v2/models/{name}/infer", json=tensors()), 404, "no such model")
    check_error(client.get(f"/v1/models/{name}"), 404, "no such model")
