from __future__ import annotations

import base64

import numpy as np
import pytest

from device_agent.api.openai import seconds_to_wait
from tests.support import bundles


def embed(client, value: object, **fields: object):
    return client.post("/v1/embeddings", json={"model": "tiny", "input": value, **fields})


def vectors(response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.array([item["embedding"] for item in response.json()["data"]], dtype=np.float32)


def test_a_text_and_a_list_of_one_text_are_the_same(connect) -> None:
    client = connect()
    single, many = embed(client, "the cat"), embed(client, ["the cat"])
    assert single.json() == many.json()
    assert single.json()["data"][0]["object"] == "embedding"
    assert single.json()["model"] == "tiny"


def test_rows_are_the_reference_embeddings_in_order(connect) -> None:
    found = vectors(embed(connect(), list(bundles.TEXTS)))
    inputs = bundles.tokens_of(bundles.TEXTS, None)
    expected = bundles.reference(bundles.Task.EMBEDDING, inputs)["sentence_embedding"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_base64_is_little_endian_float32(connect) -> None:
    client = connect()
    plain = vectors(embed(client, ["the cat", "hello"]))
    encoded = embed(client, ["the cat", "hello"], encoding_format="base64").json()["data"]
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4") for item in encoded]
    np.testing.assert_array_equal(np.stack(decoded), plain)


def test_token_ids_are_taken_as_they_are(connect) -> None:
    client = connect()
    ids = bundles.tokens_of(("the cat",), None)["input_ids"][0].tolist()
    expected = vectors(embed(client, "the cat"))
    np.testing.assert_allclose(vectors(embed(client, ids)), expected, atol=1e-6)
    np.testing.assert_allclose(vectors(embed(client, [ids, [2, 3]]))[:1], expected, atol=1e-6)


def test_dimensions_keep_the_leading_ones_normalized(connect) -> None:
    client = connect()
    whole, short = vectors(embed(client, "the cat")), vectors(embed(client, "the cat", dimensions=3))
    np.testing.assert_allclose(short, whole[:, :3] / np.linalg.norm(whole[:, :3]), atol=1e-6)
    np.testing.assert_array_equal(vectors(embed(client, "the cat", dimensions=bundles.DIM)), whole)


def test_usage_counts_what_the_model_reads(connect) -> None:
    client = connect()
    assert embed(client, ["", "the cat"]).json()["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert embed(client, "cat " * 500).json()["usage"]["prompt_tokens"] == bundles.MAX_LENGTH


def test_user_is_tolerated(connect) -> None:
    assert embed(connect(), "a", user="somebody").status_code == 200


def test_null_is_as_good_as_absent(connect) -> None:
    client = connect()
    plain = embed(client, "a").json()
    assert embed(client, "a", user=None, dimensions=None, encoding_format=None).json() == plain


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 30.0),
        ({"x-stainless-read-timeout": "2.5"}, 2.5),
        ({"x-stainless-timeout": "7"}, 7.0),
        ({"x-stainless-read-timeout": "600"}, 30.0),
        ({"x-stainless-read-timeout": "inf"}, 30.0),
        ({"x-stainless-read-timeout": "nan"}, 30.0),
        ({"x-stainless-read-timeout": "-1"}, 30.0),
        ({"x-stainless-read-timeout": "0"}, 30.0),
        ({"x-stainless-read-timeout": "soon"}, 30.0),
    ],
)
def test_a_client_that_waits_shorter_shortens_the_deadline(headers: dict[str, str], seconds: float) -> None:
    assert seconds_to_wait(headers, 30.0) == seconds


def test_the_deadline_is_the_clients(connect) -> None:
    """A nanosecond is over before anything runs."""
    client = connect()
    late = client.post(
        "/v1/embeddings", json={"model": "tiny", "input": "a"}, headers={"X-Stainless-Read-Timeout": "1e-9"}
    )
    assert late.status_code in (429, 504)
    assert late.json()["error"]["code"] in ("overloaded", "deadline_exceeded")


def test_another_model(connect) -> None:
    response = connect().post("/v1/embeddings", json={"model": "text-embedding-3-small", "input": "a"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": ["a", None]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [[1], "a"]}, "input[1]"),
        ({"input": [[1], [2, None]]}, "input[1][1]"),
        ({"input": [-1]}, "input"),
        ({"input": [2**63]}, "input"),
        ({"input": [[5], [21]]}, "input[1]"),
        ({"input": [5] * 17}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"encoding_format": 1}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 9}, "dimensions"),
        ({"dimensions": 2.0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"user": 1}, "user"),
        ({"model": 1}, "model"),
        ({"truncate": True}, "truncate"),
    ],
)
def test_what_is_wrong_is_named(connect, fields: dict[str, object], param: str) -> None:
    response = connect().post("/v1/embeddings", json={"model": "tiny", "input": "a", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("missing", ["model", "input"])
def test_a_missing_field_is_named(connect, missing: str) -> None:
    body = {"model": "tiny", "input": "a"}
    del body[missing]
    response = connect().post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == missing


def test_limits(connect) -> None:
    client = connect(max_texts=2, max_text_characters=5, max_json_numbers=4)
    assert embed(client, ["a", "b"]).status_code == 200
    for value in (["a", "b", "c"], "abcdef", [[5, 5, 5], [5, 5]], [[5], [5], [5]]):
        assert embed(client, value).status_code == 413
