from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.config import LogConfig
from device_agent.logs import (
    REQUEST_ID,
    JsonFormatter,
    RequestLog,
    TextFormatter,
    new_request_id,
    note,
    request_id,
    start_logging,
)

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?P<level>[A-Z]+) (?P<place>[^:]+): (?P<message>.*)")


@pytest.fixture
def clean_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str, error: BaseException | None = None, **extra: object) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("edgeonnx.x", logging.INFO, __file__, 1, message, None, exc_info)
    vars(made).update(extra)
    return made


def test_text_lines(clean_root: None) -> None:
    stream = io.StringIO()
    start_logging(LogConfig(level="info"), stream)
    logging.getLogger("edgeonnx.agent").info("ready at %s", "x")
    logging.getLogger("edgeonnx.agent").debug("not this")
    logging.getLogger("uvicorn.error").warning("nor this")
    found = LINE.fullmatch(stream.getvalue().rstrip("\n"))
    assert found is not None
    assert found.groupdict() == {"level": "INFO", "place": "edgeonnx.agent", "message": "ready at x"}


def test_json_lines(clean_root: None) -> None:
    stream = io.StringIO()
    start_logging(LogConfig(level="debug", format="json"), stream)
    logging.getLogger("edgeonnx.agent").debug("ready\n%s", "x")
    fields = json.loads(stream.getvalue())
    assert fields.pop("time").endswith("Z")
    assert fields == {"level": "debug", "logger": "edgeonnx.agent", "message": "ready\nx"}


@given(st.text())
def test_a_message_is_one_line_whatever_it_holds(message: str) -> None:
    text = TextFormatter().format(record(message))
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    line = JsonFormatter().format(record(message))
    assert "\n" not in line
    assert json.loads(line)["logger"] == "edgeonnx.x"


async def failing(message: str) -> None:
    raise ValueError(message)


def test_a_traceback_cannot_look_like_a_line_of_its_own() -> None:
    forged = "x\n2026-01-01T00:00:00.000Z INFO edgeonnx.agent: forged\x1b[2J"
    try:
        asyncio.run(failing(forged))
    except ValueError as error:
        text = TextFormatter().format(record("failed", error))
        fields = json.loads(JsonFormatter().format(record("failed", error)))
    first, *rest = text.splitlines()
    assert LINE.fullmatch(first)
    assert rest
    assert all(line.startswith("    ") and "\x1b" not in line for line in rest)
    assert fields["exception"].startswith("Traceback")


def test_a_value_that_json_does_not_have_is_still_logged() -> None:
    fields = json.loads(JsonFormatter().format(record("a\ud800", facts={"n": 2**70})))
    assert fields["message"] == "a\\ud800"
    assert fields["n"] == str(2**70)


@pytest.mark.parametrize("value", [b"a", b"abc-123_./+=", b"x" * 128, b'"quoted"'])
def test_a_sane_id_is_the_clients(value: bytes) -> None:
    assert request_id([(b"host", b"x"), (b"x-request-id", value)]) == value.decode()


@pytest.mark.parametrize("value", [b"", b"x" * 129, b"a b", b"a\n", b"\xe4", b"\x1b[31m"])
def test_any_other_id_is_replaced(value: bytes) -> None:
    found = request_id([(b"x-request-id", value)])
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", found)
    assert found != new_request_id()


def ask(config: LogConfig, headers: list[tuple[bytes, bytes]], path: str = "/v1/x", **facts: object) -> dict[str, Any]:
    """One request through the middleware; gives the response's headers, and the id that the application saw."""
    got: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got["seen"] = REQUEST_ID.get()
        note(scope, **facts)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        got.update(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    asyncio.run(RequestLog(app, config)(scope, None, send))  # type: ignore[arg-type]
    return got


def test_every_response_carries_the_id() -> None:
    got = ask(LogConfig(), [(b"x-request-id", b"mine")])
    assert got["headers"] == [(b"a", b"b"), (b"x-request-id", b"mine")]
    assert got["seen"] == "mine"
    made = dict(ask(LogConfig(), [])["headers"])[b"x-request-id"].decode()
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", made)
    assert REQUEST_ID.get() is None


def test_the_access_line(clean_root: None) -> None:
    stream = io.StringIO()
    start_logging(LogConfig(), stream)
    path = '/v1/x\n"y" z'
    ask(LogConfig(requests=True), [(b"x-request-id", b"mine")], path, model="tiny", tokens=5, queue_ms=0.12345)
    found = LINE.fullmatch(stream.getvalue().rstrip("\n"))
    assert found is not None
    assert found["place"] == "edgeonnx.requests [mine]"
    pattern = r'method=POST path="/v1/x\\n\\"y\\" z" status=201 ms=[0-9.]+ model=tiny tokens=5 queue_ms=0.123'
    assert re.fullmatch(pattern, found["message"])


def test_the_access_line_as_json(clean_root: None) -> None:
    stream = io.StringIO()
    start_logging(LogConfig(format="json"), stream)
    ask(LogConfig(requests=True), [(b"x-request-id", b"mine")], provider="CPU", run_ms=1.5)
    fields = json.loads(stream.getvalue())
    assert {name: fields[name] for name in ("request_id", "method", "path", "status", "provider", "run_ms")} == {
        "request_id": "mine",
        "method": "POST",
        "path": "/v1/x",
        "status": 201,
        "provider": "CPU",
        "run_ms": 1.5,
    }
    assert "model" not in fields


def test_no_line_unless_it_is_asked_for(clean_root: None) -> None:
    stream = io.StringIO()
    start_logging(LogConfig(), stream)
    ask(LogConfig(), [], model="tiny")
    assert stream.getvalue() == ""
