"""Structured logs on stderr: text for people or JSON lines for machines, each line with the id of its request.

One record is one line (or one JSON object), whatever was logged: control characters, line ends and escape sequences
in a message are written as escapes, and the lines of a traceback are indented, so that nothing a client sends can
look like a line of the agent's own.

A request's id is the client's `X-Request-Id` where that is a sane token, else a new one. Every response carries it,
and every line that is logged while the request is answered.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from device_agent.config import LogConfig


REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that the running task answers."""

FACTS = "edgeonnx.facts"
"""Key of the ASGI scope: what the access line says besides method, path, status and time (`note`)."""

logger = logging.getLogger("edgeonnx.requests")

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_ID_PREFIX = secrets.token_hex(4)
_ID_NUMBERS = itertools.count(1)
_QUIET = {"uvicorn": logging.ERROR, "uvicorn.error": logging.ERROR, "asyncio": logging.WARNING}
"""uvicorn tells the story of its own start and stop; ours is told by the agent."""


def start_logging(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send all logs of this process to one stream.

    Args:
        config: Level and format.
        stream: Where to write; None: stderr.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger [request]: message`; a traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        request = REQUEST_ID.get()
        place = record.name if request is None else f"{record.name} [{request}]"
        line = f"{_time_of(record)} {record.levelname} {place}: {printable(record.getMessage())}"
        trace = _traceback(record)
        if trace:
            line += "".join(f"\n    {printable(part)}" for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, and `request_id`, `exception`, facts if any."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        fields: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request = REQUEST_ID.get()
        if request is not None:
            fields["request_id"] = request
        fields.update(getattr(record, "facts", ()))
        trace = _traceback(record)
        if trace:
            fields["exception"] = trace
        try:
            return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        except (orjson.JSONEncodeError, TypeError):
            # A lone surrogate (a file name, say), or a value that JSON does not have.
            return orjson.dumps({key: printable(value) for key, value in fields.items()}).decode()


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return logging.Formatter().formatException(record.exc_info)


def new_request_id() -> str:
    """An id that no other request of this process, and hardly one of another process, has."""
    return f"{_ID_PREFIX}-{next(_ID_NUMBERS):x}"


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id of a request: the client's, if it is 1 to 128 visible ASCII characters; else a new one.

    Args:
        headers: Names, in lower case, and values.
    """
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _SANE_ID.fullmatch(value) else new_request_id()
    return new_request_id()


@dataclass(slots=True)
class RequestFacts:
    """What the access line tells of an inference request; None: it does not apply."""

    model: str | None = None
    provider: str | None = None
    tokens: int | None = None
    queue_ms: float | None = None
    run_ms: float | None = None


def note(scope: Scope, **facts: object) -> None:
    """Give facts of `RequestFacts` to the access line; nothing happens where none is written."""
    record = scope.get(FACTS)
    if record is not None:
        for name, value in facts.items():
            setattr(record, name, value)


class RequestLog:
    """ASGI middleware: gives every request its id and, if asked, writes its access line.

    Args:
        app: The application.
        config: Whether to write a line for each request.
    """

    def __init__(self, app: ASGIApp, config: LogConfig) -> None:
        self._app = app
        self._lines = config.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        identity = request_id(scope["headers"])
        # Every request is a task of its own with a context of its own, so nothing has to be reset afterwards.
        REQUEST_ID.set(identity)
        header = (b"x-request-id", identity.encode("ascii"))
        status = 0

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        if not self._lines:
            await self._app(scope, receive, identified)
            return
        facts = scope[FACTS] = RequestFacts()
        try:
            await self._app(scope, receive, identified)
        finally:
            _write_line(scope, status, (time.perf_counter() - started) * 1e3, facts)


def _write_line(scope: Scope, status: int, milliseconds: float, facts: RequestFacts) -> None:
    """The access line. Its path is without the query, which may hold what is nobody's business."""
    fields: dict[str, object] = {
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "ms": round(milliseconds, 3),
    }
    for name in RequestFacts.__slots__:
        value = getattr(facts, name)
        if value is not None:
            fields[name] = round(value, 3) if isinstance(value, float) else value
    text = " ".join(_pair(name, value) for name, value in fields.items())
    logger.info("%s", text, extra={"facts": fields})


def _pair(name: str, value: object) -> str:
    """`name=value`; a text with a space, a quote or an equals sign is quoted, so that it is one word."""
    text = str(value)
    if isinstance(value, str) and re.search(r'[\s"=\\]', text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}={text}"
