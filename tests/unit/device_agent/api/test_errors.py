from __future__ import annotations

import orjson
import pytest

from device_agent.api.errors import INTERNAL, KINDS, answer, kind_of
from edgeonnx.errors import (
    EdgeOnnxError,
    InferenceError,
    InvalidRequestError,
    ModelNotFoundError,
    NotReadyError,
    RequestTooLargeError,
    ServingError,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError, 400),
        (ModelNotFoundError, 404),
        (RequestTooLargeError, 413),
        (InferenceError, 500),
        (NotReadyError, 503),
        (EdgeOnnxError, 500),
        (ValueError, 500),
    ],
)
def test_statuses(error: type[Exception], status: int) -> None:
    assert kind_of(error("x")).status == status


def test_every_serving_error_has_a_row() -> None:
    assert set(ServingError.__subclasses__()) == set(KINDS)


def test_the_form_of_the_open_inference_protocol() -> None:
    response = answer("/v2/models/x", "wrong", KINDS[InvalidRequestError], "inputs")
    assert response.status_code == 400
    assert orjson.loads(response.body) == {"error": "wrong"}


@pytest.mark.parametrize("path", ["/v1", "/v1/embeddings"])
def test_the_form_of_openai(path: str) -> None:
    response = answer(path, "wrong", KINDS[ModelNotFoundError], "model")
    expected = {"message": "wrong", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    assert orjson.loads(response.body) == {"error": expected}


@pytest.mark.parametrize("path", ["/", "/v11", "/metrics"])
def test_other_paths_answer_as_v2_does(path: str) -> None:
    assert orjson.loads(answer(path, "wrong", INTERNAL).body) == {"error": "wrong"}
