"""The application: every route in one table, every error in its protocol's form.

The routes are Starlette's, FastAPI's own foundation: a body is read and checked by hand, with limits that count while
it arrives and messages that name the field. On this path FastAPI's routes would cost three times as much per request
(98 against 35 microseconds here) for checks that are not used, and its import 0.4 s of the start. FastAPI describes the
API instead (`/openapi.json`), imported when that is asked for.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from device_agent.api import open_inference, openai, tei
from device_agent.api.context import STARTED, Context
from device_agent.api.edge.auth import ADMIN_PREFIX, Guard
from device_agent.api.edge.errors import on_error, on_http_exception
from device_agent.api.generation.routes import chat_completions, completions
from device_agent.api.monitoring.metrics import CONTENT_TYPE, Metrics
from device_agent.api.monitoring.status import STATUS_ROUTES
from device_agent.api.monitoring.telemetry import traced
from device_agent.api.schema.lazy import openapi_document
from device_agent.logs import RequestLog
from edgeonnx.errors import EdgeOnnxError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from device_agent.api.context import Prepare
    from device_agent.api.monitoring.telemetry import Telemetry
    from device_agent.config import AgentConfig
    from device_agent.models.registry import Models

    Handler = Callable[[Context, Request], Awaitable[Response]]


def create_app(
    models: Models, config: AgentConfig, metrics: Metrics | None = None, telemetry: Telemetry | None = None
) -> Starlette:
    """The ASGI application for the agent's models. Its `state` has the `context` and the `guard`.

    Args:
        models: The models; they may still be loading.
        config: The settings.
        metrics: Where to count; None makes new metrics.
        telemetry: Where traces go; None: nowhere.

    Raises:
        UsageError: A token file cannot be used.
    """
    context = Context(models=models, config=config, metrics=metrics or Metrics())
    app = Starlette(
        routes=[
            Route(path, endpoint_of(handlers, context), methods=list(handlers), name=path)
            for path, handlers in by_path(ROUTES).items()
        ]
    )
    # A client that adds a slash gets a clear 404, not a redirect that loses its body.
    app.router.redirect_slashes = False
    app.add_exception_handler(EdgeOnnxError, context.metrics.counting(on_error))
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, context.metrics.counting(on_error))
    app.state.context = context
    _add_middlewares(app, context, telemetry)
    return app


def _add_middlewares(app: Starlette, context: Context, telemetry: Telemetry | None) -> None:
    """Wrap the routes: the request's id and log line outermost, then its span, its count, and who may ask at all.

    Raises:
        UsageError: A token file cannot be used.
    """
    guard: Guard | None = None

    def guarded(routes: ASGIApp) -> ASGIApp:
        nonlocal guard
        guard = Guard(routes, context.config, context.metrics.refused)
        return guard

    app.add_middleware(partial(Direct, context=context))
    app.add_middleware(guarded)
    app.add_middleware(Observer, context=context)
    app.add_middleware(partial(traced, telemetry=telemetry))
    app.add_middleware(RequestLog, config=context.config.log)
    # Now, and not at the first request: a wrong token file is found at the start.
    app.middleware_stack = app.build_middleware_stack()
    app.state.guard = guard


def by_path(routes: Iterable[tuple[str, str, Handler]]) -> dict[str, dict[str, Handler]]:
    """The handlers of each path by method, in the order of the table: a wrong method is then told all right ones."""
    paths: dict[str, dict[str, Handler]] = {}
    for method, path, handler in routes:
        paths.setdefault(path, {})[method] = handler
    return paths


def endpoint_of(handlers: Mapping[str, Handler], context: Context) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of one path, as the router takes it."""
    # Starlette answers HEAD where GET is answered.
    known = {**handlers, "HEAD": handlers["GET"]} if "GET" in handlers else handlers

    async def endpoint(request: Request) -> Response:
        return await known[request.method](context, request)

    return endpoint


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    """The client left while its body was read; nobody reads this response."""
    return Response(status_code=400)


class Direct:
    """ASGI middleware: sends requests for inference on a fixed path straight to their handlers.

    Starlette's router wraps each request five times more; on these paths that would be a fifth of what the event loop
    does for a request. Errors are told by the same functions.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context
        self._on_error = context.metrics.counting(on_error)
        self._handlers = {path: handler for method, path, handler in ROUTES if method == "POST" and path in DIRECT}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        handler = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await handler(self._context, request)
        except ClientDisconnect as error:
            response = await _on_disconnect(request, error)
        except Exception as error:  # noqa: BLE001 - the table of errors has an answer for each
            response = await self._on_error(request, error)
        await response(scope, receive, send)


class Observer:
    """ASGI middleware: stamps each request with its start, counts its status, and lets a drain wait for it."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._metrics = context.metrics
        self._models = context.models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[STARTED] = time.perf_counter()

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(message["status"])
            await send(message)

        # Health and metrics are asked by those who watch, and a load may take minutes: a drain waits for neither.
        if scope["method"] != "POST" or scope["path"].startswith(ADMIN_PREFIX):
            await self._app(scope, receive, observed)
            return
        with self._models.request():
            await self._app(scope, receive, observed)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


async def _ready(context: Context, _request: Request) -> Response:
    if not context.models.ready:
        raise NotReadyError("the agent is not ready", found=context.models.state)
    return _json({"ready": True})


def inferring(prepare: Prepare) -> Handler:
    """The handler of a route for inference, from the function that checks its requests."""

    async def handler(context: Context, request: Request) -> Response:
        return await context.infer(request, prepare)

    return handler


async def _info(context: Context, request: Request) -> Response:
    live = context.models.find(request.query_params.get("model"))
    return _json(tei.info(live.loaded, context.config))


async def _openapi(context: Context, _request: Request) -> Response:
    return Response(await openapi_document(context.config), media_type="application/json")


async def _models(context: Context, _request: Request) -> Response:
    context.models.check_ready()
    return _json({"object": "list", "data": [openai.model_object(live.loaded) for live in context.models.all()]})


async def _model(context: Context, request: Request) -> Response:
    return _json(openai.model_object(context.models.find(request.path_params["id"]).loaded))


async def _metrics(context: Context, _request: Request) -> Response:
    return Response(context.metrics.render(context.models), media_type=CONTENT_TYPE)


DIRECT = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/embed", "/rerank", "/classify", "/predict"}
)
"""Paths for inference that go straight to their handlers; see `Direct`."""

# The routes that carry the load come first: the router tries them in order.
ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/embeddings", inferring(openai.prepare_embeddings)),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    *open_inference.ROUTES,
    ("GET", "/metrics", _metrics),
    ("GET", "/v1/models", _models),
    ("GET", "/v1/models/{id}", _model),
    ("POST", "/rerank", inferring(tei.prepare_rerank)),
    ("POST", "/classify", inferring(tei.prepare_classify)),
    ("POST", "/predict", inferring(tei.prepare_classify)),
    ("POST", "/embed", inferring(tei.prepare_embed)),
    ("POST", "/similarity", inferring(tei.prepare_similarity)),
    ("GET", "/info", _info),
    ("GET", "/health", _ready),
    ("GET", "/openapi.json", _openapi),
    *STATUS_ROUTES,
)
