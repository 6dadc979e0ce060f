"""Why a connection ends, and with which answer: what is refused below the application.

The answers have the form of the protocol that the path belongs to, as those of the application have
(`device_agent.api.edge.errors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from device_agent.api.edge.errors import Kind, error_body
from device_agent.logs import new_request_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_HEADERS = 100
MAX_PIPELINED = 32


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a connection ends, and how that is answered.

    Attributes:
        kind: Status, and the names of the error.
        message: What was wrong, expected and found.
    """

    kind: Kind
    message: str


BAD_REQUEST = Kind(status=400, openai_code="bad_request")
SLOW_HEAD = Kind(status=408, openai_code="request_timeout")
HEAD_TOO_LARGE = Kind(status=431, openai_code="headers_too_large")
NOT_IMPLEMENTED = Kind(status=501, openai_code="not_implemented")
TOO_MANY_CONNECTIONS = Refusal(
    kind=Kind(status=503, openai_type="server_error", openai_code="too_many_connections", tei_type="Overloaded"),
    message="too many connections are open; close those that are idle, or try again later",
)
TOO_MANY_HEADERS = Refusal(
    kind=HEAD_TOO_LARGE, message=f"the request has too many headers; expected at most {MAX_HEADERS}"
)
TOO_MANY_PIPELINED = Refusal(kind=BAD_REQUEST, message=f"more than {MAX_PIPELINED} requests wait on this connection")
NO_PROXY = Refusal(kind=NOT_IMPLEMENTED, message="the method CONNECT is not supported: this is no proxy")
CUT_SHORT = Refusal(kind=BAD_REQUEST, message="the connection ended before the request was complete")


class RefusedError(Exception):
    """Raised inside the parser's callbacks to stop it; it never leaves the protocol."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def head_size(target: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """Bytes of a request's target and headers, nearly as they arrived."""
    return len(target) + 4 * len(headers) + sum([len(name) + len(value) for name, value in headers])


def fault_in_head(headers: list[tuple[bytes, bytes]], version: Callable[[], str]) -> Refusal | None:
    """What makes a request unsafe to read although llhttp takes it; None: nothing.

    Args:
        headers: Names, in lower case, and values.
        version: Gives "1.1", "1.0" or another version that the parser read; called only where it matters.
    """
    if len(headers) > MAX_HEADERS:
        return TOO_MANY_HEADERS
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or version() != "1.1"):
            found = f"{value[:40].decode('latin-1')!r} in HTTP/{version()}"
            message = f"Transfer-Encoding: is not supported; expected 'chunked' in HTTP/1.1; found {found}"
            return Refusal(kind=NOT_IMPLEMENTED, message=message)
    if hosts == 1 or (hosts == 0 and version() == "1.0"):
        return None
    if version() not in ("1.0", "1.1"):
        message = f"the HTTP version is not supported; expected 1.0 or 1.1; found {version()}"
        return Refusal(kind=BAD_REQUEST, message=message)
    return Refusal(kind=BAD_REQUEST, message=f"Host: expected exactly one; found {hosts}")


def render(refusal: Refusal, path: str, default_headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The answer as bytes.

    Args:
        refusal: What is wrong.
        path: The request's path, as far as it has arrived.
        default_headers: The server's headers (`date`).
    """
    body = error_body(path, refusal.message, refusal.kind)
    head = [
        STATUS_LINE[refusal.kind.status],
        *(b"%s: %s\r\n" % header for header in default_headers),
        b"content-type: application/json\r\n",
        b"content-length: %d\r\n" % len(body),
        b"x-request-id: %s\r\n" % new_request_id().encode(),
        b"retry-after: 1\r\n" if refusal.kind.status == HTTPStatus.SERVICE_UNAVAILABLE else b"",
        b"connection: close\r\n\r\n",
    ]
    return b"".join([*head, body])
