from __future__ import annotations

import asyncio
import logging
import math

import httpx
import orjson
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

import edgeonnx.errors
from device_agent.api.edge.errors import (
    INTERNAL,
    INTERNAL_MESSAGE,
    KINDS,
    TEI_ROUTES,
    answer,
    answer_error,
    kind_of,
    on_error,
    on_http_exception,
    retry_after_seconds,
)
from edgeonnx.errors import (
    BundleError,
    ClientGoneError,
    DeadlineExceededError,
    EdgeOnnxError,
    ForbiddenError,
    GoldenSetError,
    InferenceError,
    IntegrityError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    ProviderLostError,
    RequestTooLargeError,
    ServingError,
    SlowClientError,
    UnauthorizedError,
    UnsupportedEncodingError,
)

GRPC_CODES = {  # grpc/status.h
    "CANCELLED",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "UNAUTHENTICATED",
}


@pytest.mark.parametrize(
    ("error", "status", "grpc_code"),
    [
        (InvalidRequestError("x"), 400, "INVALID_ARGUMENT"),
        (UnauthorizedError("x"), 401, "UNAUTHENTICATED"),
        (ForbiddenError("x"), 403, "PERMISSION_DENIED"),
        (ModelNotFoundError("x"), 404, "NOT_FOUND"),
        (SlowClientError("x"), 408, "DEADLINE_EXCEEDED"),
        (RequestTooLargeError("x"), 413, "INVALID_ARGUMENT"),
        (UnsupportedEncodingError("x"), 415, "UNIMPLEMENTED"),
        (BundleError("x"), 422, "FAILED_PRECONDITION"),
        (IntegrityError("x"), 422, "FAILED_PRECONDITION"),
        (GoldenSetError("x"), 422, "FAILED_PRECONDITION"),
        (OverloadedError("x", retry_after=1.5), 429, "RESOURCE_EXHAUSTED"),
        (ClientGoneError("x"), 499, "CANCELLED"),
        (ClientDisconnect(), 499, "CANCELLED"),
        (InferenceError("x"), 500, "INTERNAL"),
        (ProviderLostError("x"), 500, "INTERNAL"),
        (NotReadyError("x"), 503, "UNAVAILABLE"),
        (DeadlineExceededError("x"), 504, "DEADLINE_EXCEEDED"),
        (MemoryBudgetError("x"), 507, "RESOURCE_EXHAUSTED"),
        (EdgeOnnxError("x"), 500, "INTERNAL"),
        (ValueError("x"), 500, "INTERNAL"),
    ],
)
def test_statuses(error: Exception, status: int, grpc_code: str) -> None:
    assert kind_of(error).status == status
    assert kind_of(error).grpc_code == grpc_code


def test_every_serving_error_has_a_row() -> None:
    assert set(ServingError.__subclasses__()) <= set(KINDS)
    known = {value for value in vars(edgeonnx.errors).values() if isinstance(value, type)}
    assert set(KINDS) <= known


def test_every_row_is_complete() -> None:
    for kind in (*KINDS.values(), INTERNAL):
        assert kind.grpc_code in GRPC_CODES
        assert kind.tei_type in {"Validation", "Overloaded", "Unhealthy", "Backend", "Tokenizer", "Empty"}
        assert (kind.status >= 500) == (kind.openai_type == "server_error")


def test_the_form_of_the_open_inference_protocol() -> None:
    response = answer("/v2/models/x", "wrong", KINDS[InvalidRequestError], "inputs")
    assert response.status_code == 400
    assert orjson.loads(response.body) == {"error": "wrong"}


@pytest.mark.parametrize("path", ["/v1", "/v1/embeddings"])
def test_the_form_of_openai(path: str) -> None:
    response = answer(path, "wrong", KINDS[ModelNotFoundError], "model")
    expected = {"message": "wrong", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    assert orjson.loads(response.body) == {"error": expected}


@pytest.mark.parametrize("path", sorted(TEI_ROUTES))
def test_the_form_of_text_embeddings_inference(path: str) -> None:
    response = answer_error(path, OverloadedError("busy", retry_after=1))
    assert orjson.loads(response.body) == {"error": "busy", "error_type": "Overloaded"}
    assert orjson.loads(answer_error(path, InvalidRequestError("x")).body)["error_type"] == "Validation"
    assert orjson.loads(answer_error(path, NotReadyError("x")).body)["error_type"] == "Unhealthy"
    assert orjson.loads(answer_error(path, InferenceError("x")).body)["error_type"] == "Backend"


@pytest.mark.parametrize("path", ["/", "/v11", "/metrics", "/rerank/x"])
def test_other_paths_answer_as_v2_does(path: str) -> None:
    assert orjson.loads(answer(path, "wrong", INTERNAL).body) == {"error": "wrong"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2", "/rerank"])
def test_a_message_is_one_printable_line(path: str) -> None:
    error = InvalidRequestError("bad\r\n\x1b[31m\u202e", where="a\nb")
    text = answer_error(path, error).body.decode()
    message = orjson.loads(text)["error"]
    message = message["message"] if isinstance(message, dict) else message
    assert message == "a\\nb: bad\\r\\n\\x1b[31m\\u202e"


@pytest.mark.parametrize(
    ("seconds", "header"),
    [(0, 1), (0.001, 1), (1, 1), (1.01, 2), (59.5, 60), (-3, 1), (math.inf, 1), (math.nan, 1)],
)
def test_retry_after_is_rounded_up(seconds: float, header: int) -> None:
    assert retry_after_seconds(seconds) == header
    assert answer_error("/", OverloadedError("x", retry_after=seconds)).headers["retry-after"] == str(header)


def test_headers_that_go_with_an_error() -> None:
    assert answer_error("/", NotReadyError("x")).headers["retry-after"] == "1"
    assert answer_error("/", UnauthorizedError("x")).headers["www-authenticate"] == "Bearer"
    assert answer_error("/", SlowClientError("x")).headers["connection"] == "close"
    for error in (InvalidRequestError("x"), InferenceError("x"), DeadlineExceededError("x")):
        assert not {"retry-after", "www-authenticate", "connection"} & set(answer_error("/", error).headers)


def request(path: str = "/v2") -> Request:
    return Request({"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "server": None})


@pytest.mark.parametrize("error", [ValueError("secret"), EdgeOnnxError("secret"), KeyError("secret")])
def test_what_is_not_ours_is_logged_and_not_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    response = asyncio.run(on_error(request(), error))
    assert response.status_code == 500
    assert orjson.loads(response.body) == {"error": INTERNAL_MESSAGE}
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].levelno == logging.ERROR


@pytest.mark.parametrize("error", [InferenceError("x"), BundleError("x")])
def test_faults_of_the_agent_are_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    assert orjson.loads(asyncio.run(on_error(request(), error)).body) == {"error": "x"}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(
    "error", [InvalidRequestError("x"), NotReadyError("x"), ClientGoneError("x"), ClientDisconnect()]
)
def test_faults_of_the_client_are_not_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(on_error(request(), error))
    assert caplog.records == []


def test_what_the_router_refuses() -> None:
    response = asyncio.run(on_http_exception(request("/v1/x"), HTTPException(404)))
    assert orjson.loads(response.body)["error"]["code"] == "unknown_url"
    response = asyncio.run(on_http_exception(request("/rerank"), HTTPException(405, headers={"Allow": "POST"})))
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert orjson.loads(response.body)["error_type"] == "Validation"
    assert httpx.codes.is_error(response.status_code)
