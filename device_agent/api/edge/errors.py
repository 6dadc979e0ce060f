"""One table from exceptions to HTTP statuses, and the three forms in which clients expect an error.

- `/v1` answers as OpenAI does: `{"error": {"message", "type", "param", "code"}}`.
- `/rerank`, `/classify` and the other routes of text-embeddings-inference answer as that does:
  `{"error": "<message>", "error_type": "<type>"}`. The types are its own ("Validation", "Overloaded", "Unhealthy",
  "Backend", "Tokenizer", "Empty"; its documentation shows some of them in lower case). The statuses are those of the
  table, because one error has one status on every path: it answers 413 to every bad value and 424 to a failed run.
- Every other path answers as the Open Inference Protocol v2 does: `{"error": "<message>"}`.

A client never sees a traceback, nor the text of an exception that is not ours: those are logged, and answered with
status 500 and a fixed message. Every message is one line without control characters, whatever the request held.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from edgeonnx.errors import (
    BundleError,
    ClientGoneError,
    ContextLengthError,
    DeadlineExceededError,
    EdgeOnnxError,
    ForbiddenError,
    GoldenSetError,
    InferenceError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    RequestTooLargeError,
    RuntimeUnavailableError,
    SelectionError,
    SlowClientError,
    UnauthorizedError,
    UnsupportedEncodingError,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

logger = logging.getLogger("edgeonnx.agent")

INTERNAL_MESSAGE = "internal error; the agent's log has the details"
NOT_READY_RETRY_SECONDS = 1
"""`Retry-After` of 503: a model loads in about that time, and an agent that stops leaves its clients to another one."""
CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left. Nobody reads the answer, but logs and metrics show it."""
TEI_ROUTES = frozenset(
    {
        "/rerank",
        "/classify",
        "/predict",
        "/embed",
        "/embed_all",
        "/embed_sparse",
        "/similarity",
        "/tokenize",
        "/decode",
        "/info",
        "/health",
    }
)
"""Routes of text-embeddings-inference, also those that this agent does not have: a 404 has its form too."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of error is answered.

    Attributes:
        status: HTTP status.
        openai_type: OpenAI's `type`.
        openai_code: OpenAI's `code`.
        tei_type: text-embeddings-inference's `error_type`.
        grpc_code: Name of the gRPC status.
        fault: It is the agent's fault, so the log has it.
        closes: The connection ends with the answer, because the rest of the request is not waited for.
    """

    status: int
    openai_type: str = "invalid_request_error"
    openai_code: str | None = None
    tei_type: str = "Validation"
    grpc_code: str = "INVALID_ARGUMENT"
    fault: bool = False
    closes: bool = False


KINDS: dict[type[EdgeOnnxError], Kind] = {
    InvalidRequestError: Kind(status=400),
    ContextLengthError: Kind(status=400, openai_code="context_length_exceeded"),
    UnauthorizedError: Kind(status=401, openai_code="invalid_api_key", grpc_code="UNAUTHENTICATED"),
    ForbiddenError: Kind(status=403, openai_code="permission_denied", grpc_code="PERMISSION_DENIED"),
    ModelNotFoundError: Kind(status=404, openai_code="model_not_found", grpc_code="NOT_FOUND"),
    SlowClientError: Kind(status=408, openai_code="request_timeout", grpc_code="DEADLINE_EXCEEDED", closes=True),
    RequestTooLargeError: Kind(status=413, openai_code="request_too_large"),
    UnsupportedEncodingError: Kind(status=415, openai_code="unsupported_encoding", grpc_code="UNIMPLEMENTED"),
    # Raised where a model is loaded by name: the request is right, but what it names cannot be served here.
    BundleError: Kind(status=422, openai_code="bundle_unusable", grpc_code="FAILED_PRECONDITION", fault=True),
    GoldenSetError: Kind(status=422, openai_code="bundle_unusable", grpc_code="FAILED_PRECONDITION", fault=True),
    SelectionError: Kind(status=422, openai_code="bundle_unusable", grpc_code="FAILED_PRECONDITION", fault=True),
    RuntimeUnavailableError: Kind(
        status=422, openai_code="runtime_unavailable", grpc_code="FAILED_PRECONDITION", fault=True
    ),
    OverloadedError: Kind(
        status=429,
        openai_type="rate_limit_error",
        openai_code="overloaded",
        tei_type="Overloaded",
        grpc_code="RESOURCE_EXHAUSTED",
    ),
    ClientGoneError: Kind(
        status=CLIENT_CLOSED_REQUEST, openai_code="client_closed_request", grpc_code="CANCELLED", closes=True
    ),
    InferenceError: Kind(status=500, openai_type="server_error", tei_type="Backend", grpc_code="INTERNAL", fault=True),
    NotReadyError: Kind(
        status=503,
        openai_type="server_error",
        openai_code="not_ready",
        tei_type="Unhealthy",
        grpc_code="UNAVAILABLE",
    ),
    DeadlineExceededError: Kind(
        status=504,
        openai_type="server_error",
        openai_code="deadline_exceeded",
        tei_type="Overloaded",
        grpc_code="DEADLINE_EXCEEDED",
    ),
    MemoryBudgetError: Kind(
        status=507,
        openai_type="server_error",
        openai_code="insufficient_memory",
        tei_type="Backend",
        grpc_code="RESOURCE_EXHAUSTED",
    ),
}
"""Every error that answers a request. Any other exception is a fault of the agent: `INTERNAL`."""

INTERNAL = Kind(
    status=500,
    openai_type="server_error",
    openai_code="internal_error",
    tei_type="Backend",
    grpc_code="INTERNAL",
    fault=True,
)


def kind_of(error: BaseException) -> Kind:
    """The row of the table for an exception."""
    if isinstance(error, ClientDisconnect):
        return KINDS[ClientGoneError]
    for known in type(error).__mro__:
        kind = KINDS.get(known)
        if kind is not None:
            return kind
    return INTERNAL


def is_openai(path: str) -> bool:
    """Whether errors on this path take OpenAI's form."""
    return path == "/v1" or path.startswith("/v1/")


def error_body(path: str, message: str, kind: Kind, param: str | None = None) -> bytes:
    """The JSON body of an error, in the form of the protocol that `path` belongs to."""
    message = printable(message)
    if path in TEI_ROUTES:
        return orjson.dumps({"error": message, "error_type": kind.tei_type})
    if not is_openai(path):
        return orjson.dumps({"error": message})
    param = None if param is None else printable(param)
    error = {"message": message, "type": kind.openai_type, "param": param, "code": kind.openai_code}
    return orjson.dumps({"error": error})


def error_headers(error: BaseException, kind: Kind) -> dict[str, str]:
    """The headers that go with an error: when to try again, how to authenticate, and that the connection ends."""
    headers: dict[str, str] = {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(retry_after_seconds(error.retry_after))
    elif isinstance(error, NotReadyError):
        headers["Retry-After"] = str(NOT_READY_RETRY_SECONDS)
    elif isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    if kind.closes:
        headers["Connection"] = "close"
    return headers


def retry_after_seconds(seconds: float) -> int:
    """Whole seconds for `Retry-After`, rounded up and at least 1, so that nobody comes back too early.

    Args:
        seconds: Seconds until it is worth trying again; what is no number counts as 1.
    """
    return max(1, math.ceil(seconds)) if math.isfinite(seconds) else 1


def answer(
    path: str, message: str, kind: Kind, param: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a response."""
    body = error_body(path, message, kind, param)
    return Response(body, status_code=kind.status, media_type="application/json", headers=headers)


def answer_error(path: str, error: Exception) -> Response:
    """Any exception as a response; only the text of our own errors is shown."""
    kind = kind_of(error)
    headers = error_headers(error, kind)
    return Response(error_event(path, error), status_code=kind.status, media_type="application/json", headers=headers)


def error_event(path: str, error: Exception) -> bytes:
    """Any exception as the JSON body of an error, also where the answer has begun; as `answer_error` shows it."""
    kind = kind_of(error)
    if isinstance(error, EdgeOnnxError) and kind is not INTERNAL:
        return error_body(path, str(error), kind, error.where)
    return error_body(path, "the client left" if kind is not INTERNAL else INTERNAL_MESSAGE, kind)


async def on_error(request: Request, error: Exception) -> Response:
    """Answer any exception that a handler raised, and log those that are the agent's fault."""
    log_fault(request.scope, error)
    return answer_error(request.url.path, error)


def log_fault(scope: Mapping[str, Any], error: Exception) -> None:
    """Log an exception if it is the agent's fault."""
    kind = kind_of(error)
    if kind is INTERNAL:
        logger.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    elif kind.fault:
        logger.error("%s %s: %s", scope["method"], scope["path"], error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: an unknown route (404) or a wrong method (405)."""
    if not isinstance(error, HTTPException):
        return await on_error(request, error)
    path = request.url.path
    message, code, grpc_code = str(error.detail), None, "INVALID_ARGUMENT"
    if error.status_code == HTTPStatus.NOT_FOUND:
        message, code, grpc_code = f"no such route: {request.method} {path[:200]}", "unknown_url", "UNIMPLEMENTED"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message, code = f"{path[:200]} does not take the method {request.method}", "method_not_allowed"
    kind = Kind(status=error.status_code, openai_code=code, grpc_code=grpc_code)
    return answer(path, message, kind, headers=error.headers)
