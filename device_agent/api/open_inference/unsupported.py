"""Extensions of the protocol that this agent does not have, each refused in words instead of with an unknown route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context

TRACE = "trace settings are not supported"
TRACE_HINT = "the agent exports OpenTelemetry traces where OTEL_EXPORTER_OTLP_ENDPOINT is set"
LOGGING = "log settings cannot be changed while the agent serves"
LOGGING_HINT = "set them in [log] of the agent's configuration"
SHARED_MEMORY = "shared memory is not supported"
SHARED_MEMORY_HINT = "send tensors in the request, in binary form where size matters"


async def trace(_context: Context, request: Request) -> Response:
    """`/v2/trace/setting`, `/v2/models/{name}/trace/setting`."""
    raise InvalidRequestError(TRACE, where=request.url.path[:200], hint=TRACE_HINT)


async def logging(_context: Context, request: Request) -> Response:
    """`/v2/logging`."""
    raise InvalidRequestError(LOGGING, where=request.url.path[:200], hint=LOGGING_HINT)


async def shared_memory(_context: Context, request: Request) -> Response:
    """`/v2/systemsharedmemory/...`, `/v2/cudasharedmemory/...`."""
    raise InvalidRequestError(SHARED_MEMORY, where=request.url.path[:200], hint=SHARED_MEMORY_HINT)
