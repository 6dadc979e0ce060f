"""The application: every route in one table, every error in its protocol's form.

The routes are Starlette's, FastAPI's own foundation: a body is read and checked by hand, with limits that count while
it arrives and messages that name the field. On this path FastAPI's routes would cost three times as much per request
(98 against 35 microseconds here) for checks that are not used, and its import 0.4 s of the start. FastAPI describes the
API instead (`/openapi.json`), imported when that is asked for.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from device_agent.api import openai
from device_agent.api.context import STARTED, Context
from device_agent.api.errors import on_error, on_http_exception
from device_agent.api.metrics import CONTENT_TYPE, Metrics
from device_agent.api.open_inference import infer
from edgeonnx import __version__
from edgeonnx.errors import EdgeOnnxError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Any

    from device_agent.config import AgentConfig
    from device_agent.loading import LoadedModel
    from device_agent.models import Models

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]
    Handler = Callable[[Context, Request], Awaitable[Response]]

logger = logging.getLogger("edgeonnx.agent")

SERVER_NAME = "edgeonnx-agent"


def create_app(models: Models, config: AgentConfig, metrics: Metrics | None = None) -> Starlette:
    """The ASGI application for the agent's models.

    Args:
        models: The models; they may still be loading.
        config: The limits.
        metrics: Where to count; None makes new metrics.
    """
    context = Context(models=models, config=config, metrics=metrics or Metrics())
    app = Starlette(
        routes=[
            Route(path, partial_handler(handler, context), methods=[method], name=f"{method} {path}")
            for method, path, handler in ROUTES
        ]
    )
    # A client that adds a slash gets a clear 404, not a redirect that loses its body.
    app.router.redirect_slashes = False
    app.add_exception_handler(EdgeOnnxError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, on_error)
    app.add_middleware(Observer, metrics=context.metrics)
    return app


def partial_handler(handler: Handler, context: Context) -> Callable[[Request], Awaitable[Response]]:
    """The handler with its context, as the router takes it."""

    async def endpoint(request: Request) -> Response:
        return await handler(context, request)

    return endpoint


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    """The client left while its body was read; nobody reads this response."""
    return Response(status_code=400)


class Observer:
    """Stamps each request with its start, counts its status, and writes the one log line (at debug level)."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = scope[STARTED] = time.perf_counter()

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(message["status"])
                if logger.isEnabledFor(logging.DEBUG):
                    milliseconds = (time.perf_counter() - started) * 1e3
                    logger.debug("%s %s %s %.2f ms", scope["method"], scope["path"], message["status"], milliseconds)
            await send(message)

        await self._app(scope, receive, observed)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


async def _server_metadata(_context: Context, _request: Request) -> Response:
    return _json({"name": SERVER_NAME, "version": __version__, "extensions": []})


async def _live(_context: Context, _request: Request) -> Response:
    return _json({"live": True})


async def _ready(context: Context, _request: Request) -> Response:
    if not context.models.ready:
        raise NotReadyError("the agent is not ready", found=context.models.state)
    return _json({"ready": True})


def _asked_model(context: Context, request: Request) -> LoadedModel:
    """The model that a path names."""
    return context.models.find(request.path_params["name"], request.path_params.get("version")).loaded


async def _model_metadata(context: Context, request: Request) -> Response:
    return _json(infer.model_metadata(_asked_model(context, request)))


async def _model_ready(context: Context, request: Request) -> Response:
    return _json({"name": _asked_model(context, request).name, "ready": True})


async def _infer(context: Context, request: Request) -> Response:
    return await context.infer(request, infer.prepare_infer)


async def _embeddings(context: Context, request: Request) -> Response:
    return await context.infer(request, openai.prepare_embeddings)


async def _models(context: Context, _request: Request) -> Response:
    context.models.check_ready()
    return _json({"object": "list", "data": [openai.model_object(live.loaded) for live in context.models.all()]})


async def _model(context: Context, request: Request) -> Response:
    return _json(openai.model_object(context.models.find(request.path_params["id"]).loaded))


async def _metrics(context: Context, _request: Request) -> Response:
    return Response(context.metrics.render(context.models), media_type=CONTENT_TYPE)


# The routes that carry the load come first: the router tries them in order.
ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/embeddings", _embeddings),
    ("POST", "/v2/models/{name}/infer", _infer),
    ("POST", "/v2/models/{name}/versions/{version}/infer", _infer),
    ("GET", "/v2/health/live", _live),
    ("GET", "/v2/health/ready", _ready),
    ("GET", "/metrics", _metrics),
    ("GET", "/v2", _server_metadata),
    ("GET", "/v2/models/{name}", _model_metadata),
    ("GET", "/v2/models/{name}/ready", _model_ready),
    ("GET", "/v2/models/{name}/versions/{version}", _model_metadata),
    ("GET", "/v2/models/{name}/versions/{version}/ready", _model_ready),
    ("GET", "/v1/models", _models),
    ("GET", "/v1/models/{id}", _model),
)
