"""`inference.GRPCInferenceService`: the same models, queue and limits as over HTTP, with gRPC's own way to fail.

The call's deadline is the request's deadline (the sooner of it and the parameter `timeout`), and a call that the
client cancels leaves the queue. An error has the status that `device_agent.api.edge.errors` gives it; one that is worth
trying again says after how many seconds in the trailing metadata `retry-after`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict

from device_agent.api.edge.auth import ADMIN_PREFIX, Asked
from device_agent.api.open_inference import metadata, repository, unsupported
from device_agent.api.open_inference.statistics import model_statistics
from device_agent.rpc.calls import failure_of
from device_agent.rpc.descriptors import SERVICE, message_types
from device_agent.rpc.inference import infer, infer_stream
from device_agent.rpc.messages import parameters_of, parse
from edgeonnx.errors import ModelNotFoundError, NotReadyError, ServingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from device_agent.api.context import Context
    from device_agent.rpc.calls import Call

    Authorize = Callable[[Asked], ServingError | None]
    Handler = Callable[["Service", bytes, Call], Awaitable[bytes]]

STREAM = "ModelStreamInfer"
HEALTH_PATH = "/v2/health/live"
MODELS_PATH = "/v2/models"


class Service:
    """Answers the calls.

    Args:
        context: The agent behind the endpoints.
        authorize: Says of a call, as a path over HTTP and its headers, why it is not allowed; None: it is.
        host: Name under which the agent listens: gRPC's clients are no browsers, so theirs is not looked at.
    """

    def __init__(self, context: Context, authorize: Authorize, host: str) -> None:
        self.context = context
        self._authorize = authorize
        self._host = host

    def handler(self) -> Any:
        """All calls, as a server takes them."""
        methods = {
            name: grpc.unary_unary_rpc_method_handler(self._answering(name, handler))
            for name, handler in HANDLERS.items()
        }
        methods[STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(SERVICE, {**methods, **_refused_methods()})

    def _answering(self, name: str, handler: Handler) -> Callable[[bytes, Call], Awaitable[bytes]]:
        async def answer(data: bytes, call: Call) -> bytes:
            try:
                self._check_allowed(name, call)
                return await handler(self, data, call)
            except Exception as error:  # noqa: BLE001 - each becomes a status
                failure = error
            return await _abort(call, name, failure)

        return answer

    async def _stream(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        try:
            self._check_allowed(STREAM, call)
        except ServingError as error:
            await _abort(call, STREAM, error)
        async for response in infer_stream(self.context, requests, call):
            yield response

    def _check_allowed(self, name: str, call: Call) -> None:
        path = PATHS.get(name, MODELS_PATH)
        found = [value for key, value in call.invocation_metadata() or () if key == "authorization"]
        # Two of them count as a wrong one, as over HTTP.
        authorization = None if not found else str(found[0]) if len(found) == 1 else ""
        error = self._authorize(Asked(path=path, authorization=authorization, host=self._host))
        if error is not None:
            raise error


PATHS = {
    "ServerLive": HEALTH_PATH,
    "ServerReady": HEALTH_PATH,
    "RepositoryModelLoad": ADMIN_PREFIX,
    "RepositoryModelUnload": ADMIN_PREFIX,
}
"""The path over HTTP whose permission a call needs, where that is not an inference request's."""


async def _abort(call: Call, name: str, error: Exception) -> bytes:
    """End the call with the error's status; always raises."""
    failure = failure_of(error, name)
    await call.abort(grpc.StatusCode[failure.code], failure.message, failure.trailing)
    raise AssertionError("abort raises")


def _filled(name: str, values: object) -> bytes:
    """A response out of the same plain data as over HTTP; what its message does not have is left out."""
    message = ParseDict(values, message_types()[f"{name}Response"](), ignore_unknown_fields=True)
    data: bytes = message.SerializeToString()
    return data


async def _server_live(_service: Service, _data: bytes, _call: Call) -> bytes:
    return _filled("ServerLive", {"live": True})


async def _server_ready(service: Service, _data: bytes, _call: Call) -> bytes:
    return _filled("ServerReady", {"ready": service.context.models.ready})


async def _model_ready(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("ModelReadyRequest", data)
    try:
        service.context.models.find(request.name, request.version)
    except (ModelNotFoundError, NotReadyError):
        return _filled("ModelReady", {"ready": False})
    return _filled("ModelReady", {"ready": True})


async def _server_metadata(_service: Service, _data: bytes, _call: Call) -> bytes:
    return _filled("ServerMetadata", metadata.server_metadata())


async def _model_metadata(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("ModelMetadataRequest", data)
    live = service.context.models.find(request.name, request.version)
    return _filled("ModelMetadata", metadata.model_metadata(live.loaded))


async def _model_config(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("ModelConfigRequest", data)
    live = service.context.models.find(request.name, request.version)
    config = metadata.model_config(live.loaded, service.context.config.limits)
    return _filled("ModelConfig", {"config": config})


async def _model_statistics(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("ModelStatisticsRequest", data)
    found = model_statistics(service.context, request.name, request.version)
    return _filled("ModelStatistics", {"model_stats": found})


async def _repository_index(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("RepositoryIndexRequest", data)
    return _filled("RepositoryIndex", {"models": repository.index(service.context, ready_only=request.ready)})


async def _load(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("RepositoryModelLoadRequest", data)
    await repository.load_model(service.context, request.model_name, parameters_of(request.parameters))
    return _filled("RepositoryModelLoad", {})


async def _unload(service: Service, data: bytes, _call: Call) -> bytes:
    request = parse("RepositoryModelUnloadRequest", data)
    await repository.unload_model(service.context, request.model_name, parameters_of(request.parameters))
    return _filled("RepositoryModelUnload", {})


async def _infer(service: Service, data: bytes, call: Call) -> bytes:
    return await infer(service.context, data, call)


HANDLERS: dict[str, Handler] = {
    "ServerLive": _server_live,
    "ServerReady": _server_ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata,
    "ModelInfer": _infer,
    "ModelConfig": _model_config,
    "ModelStatistics": _model_statistics,
    "RepositoryIndex": _repository_index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
}

REFUSED: dict[str, str] = {
    "TraceSetting": f"{unsupported.TRACE}; {unsupported.TRACE_HINT}",
    "LogSettings": f"{unsupported.LOGGING}; {unsupported.LOGGING_HINT}",
    **dict.fromkeys(
        (f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")),
        f"{unsupported.SHARED_MEMORY}; {unsupported.SHARED_MEMORY_HINT}",
    ),
}


def _refused_methods() -> dict[str, Any]:
    """Calls of Triton's service that this agent does not have, each refused in words."""

    def refusing(message: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
        async def refuse(_data: bytes, call: Call) -> bytes:
            await call.abort(grpc.StatusCode.UNIMPLEMENTED, message)
            raise AssertionError("abort raises")

        return refuse

    return {name: grpc.unary_unary_rpc_method_handler(refusing(message)) for name, message in REFUSED.items()}
