from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from device_agent.api.monitoring.telemetry import (
    SPAN,
    Telemetry,
    annotate,
    stage,
    start_telemetry,
    traced,
    wanted_exporters,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("environment", "exporters"),
    [
        ({}, ()),
        ({"OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp_proto_http",)),
        ({"OTEL_TRACES_EXPORTER": " console , otlp"}, ("console", "otlp_proto_http")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, ("otlp_proto_http",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318/v1/traces"}, ("otlp_proto_http",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("otlp_proto_grpc",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_SDK_DISABLED": "true"}, ()),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, ()),
    ],
)
def test_when_traces_are_wanted(environment: dict[str, str], exporters: tuple[str, ...]) -> None:
    assert wanted_exporters(environment) == exporters


def test_nothing_is_imported_and_nothing_wrapped_unless_traces_are_wanted() -> None:
    code = (
        "import sys; from device_agent.api.monitoring.telemetry import start_telemetry, traced;"
        "app = object(); assert traced(app, start_telemetry({})) is app;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_an_agent_that_cannot_trace_still_serves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="edgeonnx.agent"):
        assert start_telemetry({"OTEL_TRACES_EXPORTER": "no_such_exporter"}) is None
    assert "no traces are written" in caplog.text


def test_helpers_do_nothing_without_a_trace() -> None:
    stage({}, "run", 0.0, 1.0, rows=1)
    annotate({}, model="tiny")


class Collected:
    """A request through the middleware, and the spans that it left."""

    def __init__(self, app: Any, headers: list[tuple[bytes, bytes]]) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter = InMemorySpanExporter()
        provider = sdk.TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/v1/embeddings",
            "scheme": "http",
            "http_version": "1.1",
            "client": ("127.0.0.1", 5),
            "headers": headers,
        }

        async def send(message: Any) -> None:
            pass

        telemetry = Telemetry(provider)
        try:
            asyncio.run(traced(app, telemetry)(self.scope, None, send))  # type: ignore[arg-type]
        except ValueError as error:
            self.error = error
        telemetry.close()
        self.spans = {span.name: span for span in exporter.get_finished_spans()}


class Route:
    path = "/v1/embeddings"


async def answering(scope: Any, receive: Any, send: Any) -> None:
    now = time.perf_counter()
    scope["route"] = Route()
    annotate(scope, model="tiny", tokens=5, nothing=None)
    stage(scope, "tokenize", now - 0.5, now - 0.4)
    stage(scope, "run", now - 0.3, now, batch__rows=4)
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_a_request_is_a_span_that_continues_the_clients_trace() -> None:
    header = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())
    before = time.time_ns()
    spans = Collected(answering, [(b"host", b"x"), header]).spans
    request = spans["POST /v1/embeddings"]
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.kind.name == "SERVER"
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v1/embeddings",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "edgeonnx.model": "tiny",
        "edgeonnx.tokens": 5,
    }
    assert set(spans) == {"POST /v1/embeddings", "tokenize", "run"}
    for name, seconds in (("tokenize", 0.1), ("run", 0.3)):
        child = spans[name]
        assert child.parent.span_id == request.context.span_id
        assert (child.end_time - child.start_time) / 1e9 == pytest.approx(seconds, abs=1e-4)
        assert abs(child.end_time - before) < 2e9  # on the clock of the wall
    assert dict(spans["run"].attributes) == {"edgeonnx.batch.rows": 4}


@pytest.mark.parametrize("header", [b"", b"x", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"\xff" * 50])
def test_a_bad_traceparent_begins_a_new_trace(header: bytes) -> None:
    span = Collected(answering, [(b"traceparent", header)]).spans["POST /v1/embeddings"]
    assert span.parent is None


def test_failures_show() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError

    span = Collected(failing, []).spans["POST"]
    assert span.status.status_code.name == "ERROR"

    async def unavailable(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": []})

    assert Collected(unavailable, []).spans["POST"].status.status_code.name == "ERROR"

    async def refused(scope: Any, receive: Any, send: Any) -> None:
        assert SPAN in scope
        await send({"type": "http.response.start", "status": 400, "headers": []})

    assert Collected(refused, []).spans["POST"].status.status_code.name == "UNSET"


def test_the_sdks_own_settings_are_read() -> None:
    pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
    telemetry = start_telemetry({"OTEL_TRACES_EXPORTER": "console"})
    assert telemetry is not None
    resource = telemetry.tracer.start_span("x").resource
    assert resource.attributes["service.name"] == "edgeonnx-agent"
