"""Requests to a running agent, over the standard library's HTTP client: one connection for each.

Whoever leaves a stream closes its connection, and so the agent stops to generate.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edgeonnx.cli.chat.events import error_of
from edgeonnx.errors import AgentError, UsageError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0
"""A long prompt on a small machine takes minutes until its first token."""
PIECE_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Client:
    """Talks to one agent.

    Attributes:
        url: Its address, as `parse_url` gives it.
        token: Bearer token; None: none is sent.
    """

    url: str
    token: str | None = field(default=None, repr=False)

    def models(self) -> list[str]:
        """Names of the models that the agent serves.

        Raises:
            AgentError: It does not answer, or not as an agent does.
        """
        with self._asked("GET", "/v1/models", None) as response:
            found = _parsed(self._read(response))
        try:
            return [str(model["id"]) for model in found["data"]]  # type: ignore[index]
        except (KeyError, TypeError):
            raise AgentError("this is no agent", where=f"{self.url}/v1/models", expected="a list of models") from None

    @contextmanager
    def stream(self, path: str, body: dict[str, object]) -> Iterator[Iterator[bytes]]:
        """Send a request; the bytes of its answer as they come. Leaving the block ends the answer.

        Raises:
            AgentError: The agent does not answer, refuses, or the connection breaks.
        """
        with self._asked("POST", path, json.dumps(body).encode()) as response:
            yield self._pieces(response)

    @contextmanager
    def _asked(self, method: str, path: str, body: bytes | None) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        connection = _connection(parts.scheme, parts.netloc)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            with self._reachable():
                connection.connect()
                connection.sock.settimeout(SILENCE_SECONDS)
                connection.request(method, parts.path + path, body, headers)
                response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise error_of(_parsed(self._read(response)), response.status)
            yield response
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        with self._reachable():
            return response.read(MAX_BODY_BYTES)

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while True:
            with self._reachable():
                piece = response.read1(PIECE_BYTES)
            if not piece:
                return
            yield piece

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Only what the network does counts as the agent's silence, not what the reader of an answer does."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise AgentError("the agent does not answer", where=self.url, found=_reason(error)) from None


def _connection(scheme: str, place: str) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(place, timeout=CONNECT_SECONDS, context=context)
    return http.client.HTTPConnection(place, timeout=CONNECT_SECONDS)


def _parsed(body: bytes) -> object:
    """A JSON document, or else its text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace").strip()


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)


def parse_url(text: str) -> str:
    """The address of an agent, from what people give: with a slash at the end, or `/v1` as OpenAI's clients want it.

    Raises:
        UsageError: It is no such address.
    """
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, brackets that do not close
        good = False
    if not good or parts.query or parts.fragment or parts.username is not None:
        raise UsageError("this is no agent's address", where="--url", expected="http://HOST:PORT", found=text[:200])
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"
