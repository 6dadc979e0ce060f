"""One table from exceptions to HTTP statuses, and the two forms in which clients expect an error.

`/v1` answers as OpenAI does, `{"error": {"message", "type", "param", "code"}}`; every other path as the Open Inference
Protocol v2 does, `{"error": "<message>"}`. A client never sees a traceback, nor the text of an exception that is not
ours: those are logged, and answered with status 500 and a fixed message.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from edgeonnx.errors import (
    EdgeOnnxError,
    InferenceError,
    InvalidRequestError,
    ModelNotFoundError,
    NotReadyError,
    RequestTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

logger = logging.getLogger("edgeonnx.agent")

INTERNAL_MESSAGE = "internal error; the agent's log has the details"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of error is answered: HTTP status, and OpenAI's `type` and `code`."""

    status: int
    openai_type: str
    openai_code: str | None = None


KINDS: dict[type[EdgeOnnxError], Kind] = {
    InvalidRequestError: Kind(status=400, openai_type="invalid_request_error"),
    ModelNotFoundError: Kind(status=404, openai_type="invalid_request_error", openai_code="model_not_found"),
    RequestTooLargeError: Kind(status=413, openai_type="invalid_request_error", openai_code="request_too_large"),
    InferenceError: Kind(status=500, openai_type="server_error"),
    NotReadyError: Kind(status=503, openai_type="server_error", openai_code="not_ready"),
}
"""Every error that answers a request. Any other exception is a fault of the agent: `INTERNAL`."""

INTERNAL = Kind(status=500, openai_type="server_error", openai_code="internal_error")


def kind_of(error: Exception) -> Kind:
    """The row of the table for an exception."""
    for known, kind in KINDS.items():
        if isinstance(error, known):
            return kind
    return INTERNAL


def is_openai(path: str) -> bool:
    """Whether errors on this path take OpenAI's form."""
    return path == "/v1" or path.startswith("/v1/")


def error_body(path: str, message: str, kind: Kind, param: str | None = None) -> bytes:
    """The JSON body of an error, in the form of the protocol that `path` belongs to."""
    if not is_openai(path):
        return orjson.dumps({"error": message})
    error = {"message": message, "type": kind.openai_type, "param": param, "code": kind.openai_code}
    return orjson.dumps({"error": error})


def answer(
    path: str, message: str, kind: Kind, param: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a response."""
    body = error_body(path, message, kind, param)
    return Response(body, status_code=kind.status, media_type="application/json", headers=headers)


async def on_error(request: Request, error: Exception) -> Response:
    """Answer any exception that a handler raised."""
    kind = kind_of(error)
    if kind is INTERNAL or not isinstance(error, EdgeOnnxError):
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(request.url.path, INTERNAL_MESSAGE, INTERNAL)
    if kind.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, NotReadyError):
        logger.error("%s %s: %s", request.method, request.url.path, error)
    return answer(request.url.path, str(error), kind, error.where)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: an unknown route (404) or a wrong method (405)."""
    if not isinstance(error, HTTPException):
        return await on_error(request, error)
    path = request.url.path
    message, code = str(error.detail), None
    if error.status_code == HTTPStatus.NOT_FOUND:
        message, code = f"no such route: {request.method} {path[:200]}", "unknown_url"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message, code = f"{path[:200]} does not take the method {request.method}", "method_not_allowed"
    kind = Kind(status=error.status_code, openai_type="invalid_request_error", openai_code=code)
    return answer(path, message, kind, headers=error.headers)
