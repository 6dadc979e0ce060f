"""OpenTelemetry traces, where its packages are installed and its standard variables ask for them.

Traces are on if `OTEL_TRACES_EXPORTER` names an exporter (other than "none") or `OTEL_EXPORTER_OTLP_ENDPOINT` or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, and `OTEL_SDK_DISABLED` is not "true". Sampler, batch sizes, headers and
resource come from the SDK's own variables. Otherwise nothing of OpenTelemetry is imported, and requests pass by.

A request is one server span that continues the client's W3C `traceparent`; its children `tokenize`, `queue` and `run`
are written when their times are known. Names of attributes are those of OpenTelemetry's semantic conventions for HTTP;
what they do not name begins with `edgeonnx.`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


logger = logging.getLogger("edgeonnx.agent")

SPAN = "edgeonnx.span"
"""Key of the ASGI scope: the request's `RequestSpan`."""

SERVICE_NAME = "edgeonnx-agent"
INSTALL = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_OTLP_ENTRY_POINTS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def wanted_exporters(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters that the variables ask for; none: no traces.

    Args:
        environment: Environment variables.

    Returns:
        Names of entry points in the group `opentelemetry_traces_exporter`.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    named = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if not named:
        named = "otlp" if any(environment.get(name) for name in _ENDPOINTS) else "none"
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    otlp = _OTLP_ENTRY_POINTS.get(protocol or "http/protobuf", "otlp_proto_http")
    names = [name.strip() for name in named.split(",")]
    return tuple(otlp if name == "otlp" else name for name in names if name and name != "none")


def start_telemetry(environment: Mapping[str, str] | None = None) -> Telemetry | None:
    """Begin to trace, if the environment asks for it.

    Whatever prevents it is a warning in the log: an agent that cannot trace still serves.
    """
    names = wanted_exporters(os.environ if environment is None else environment)
    if not names:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create()
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
        provider = TracerProvider(resource=resource)
        for name in names:
            provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    except Exception as error:  # noqa: BLE001 - foreign packages, foreign settings
        logger.warning("no traces are written: %s: %s (%s)", type(error).__name__, error, INSTALL)
        return None
    logger.info("traces are written by: %s", ", ".join(names))
    return Telemetry(provider)


def _exporter(name: str) -> Any:
    from importlib.metadata import entry_points

    found = entry_points(group="opentelemetry_traces_exporter", name=name)
    if not found:
        raise ModuleNotFoundError(f"the exporter {name} is not installed")
    return next(iter(found)).load()()


class Telemetry:
    """Makes the spans.

    Args:
        provider: A `TracerProvider` of the SDK.
    """

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from edgeonnx import __version__

        self._provider = provider
        self.tracer = provider.get_tracer("edgeonnx.agent", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._server = SpanKind.SERVER
        self.error_status = StatusCode.ERROR

    def begin(self, scope: Scope) -> RequestSpan:
        """Open the span of a request, as a child of the client's."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        client = scope.get("client")
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"][:200],
            "url.scheme": scope["scheme"],
            "network.protocol.version": scope["http_version"],
            **({"client.address": client[0]} if client else {}),
        }
        span = self.tracer.start_span(
            scope["method"],
            context=self._propagator.extract(carrier) if carrier else None,
            kind=self._server,
            attributes=attributes,
        )
        return RequestSpan(self, span, scope["method"])

    def close(self) -> None:
        """Send what was not sent yet; blocking, at most some seconds."""
        self._provider.shutdown()


class RequestSpan:
    """The span of one request, and the clock that turns the agent's times into the trace's."""

    def __init__(self, telemetry: Telemetry, span: Any, method: str) -> None:
        from opentelemetry.trace import set_span_in_context

        self._telemetry = telemetry
        self._span = span
        self._method = method
        self._context = set_span_in_context(span)
        self._epoch = time.time_ns() - time.perf_counter_ns()

    def stage(self, name: str, start: float, end: float, attributes: Mapping[str, Any]) -> None:
        """Add a child that is over; times are those of `time.perf_counter`."""
        child = self._telemetry.tracer.start_span(
            name, context=self._context, start_time=self._nanoseconds(start), attributes=attributes
        )
        child.end(self._nanoseconds(end))

    def annotate(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the request's span."""
        self._span.set_attributes(attributes)

    def end(self, status: int, route: str | None = None) -> None:
        """Close the span; `status` is the HTTP status, 0 if nothing was answered."""
        if route is not None:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if status >= 500 or not status:
            self._span.set_status(self._telemetry.error_status)
        self._span.end()

    def _nanoseconds(self, seconds: float) -> int:
        return round(seconds * 1e9) + self._epoch


def stage(scope: Scope, name: str, start: float, end: float, **attributes: Any) -> None:
    """Add a finished stage to the request's trace; nothing happens where there is none.

    Args:
        scope: The request's ASGI scope.
        name: `tokenize`, `queue` or `run`.
        start: When it began, by `time.perf_counter`.
        end: When it was over.
        **attributes: What else is known; a double underscore stands for a dot.
    """
    span = scope.get(SPAN)
    if span is not None:
        span.stage(name, start, end, _dotted(attributes))


def annotate(scope: Scope, **attributes: Any) -> None:
    """Add attributes to the request's span; as in `stage`."""
    span = scope.get(SPAN)
    if span is not None:
        span.annotate(_dotted(attributes))


def _dotted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"edgeonnx.{name.replace('__', '.')}": value for name, value in attributes.items() if value is not None}


def traced(app: ASGIApp, telemetry: Telemetry | None) -> ASGIApp:
    """The application with a span around each request; the application itself where nothing is traced."""
    return app if telemetry is None else _Traced(app, telemetry)


class _Traced:
    """ASGI middleware: one span a request."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = scope[SPAN] = self._telemetry.begin(scope)
        status = 0

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            route = scope.get("route")
            span.end(status, getattr(route, "path", None))
