"""The life of a serving agent: bind, load, serve, drain, stop.

The port is bound before the model loads, so that `/v2/health/live` answers at once and a port that is taken is found
out before the work. On SIGTERM or SIGINT the model drains: `/v2/health/ready` turns 503, new requests are refused
with 503, those in flight are answered, and then the process ends; all of it within `drain_seconds`. A second signal
ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

from device_agent.api.app import create_app
from device_agent.models import Models
from edgeonnx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from device_agent.config import AgentConfig
    from device_agent.loading import LoadedModel

logger = logging.getLogger("edgeonnx.agent")

BACKLOG = 2048


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: when to stop is decided below, after draining."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Args:
        host: Name or address, IPv4 or IPv6.
        port: TCP port; 0 takes a free one.

    Raises:
        UsageError: The address cannot be bound.
    """
    listener: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # The protocol is named because asyncio sets TCP_NODELAY only on sockets that name it. Without it, an answer on
        # a kept-alive connection waits 40 ms for the client's delayed acknowledgement (`socket.create_server` is such).
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise UsageError(
            "the address cannot be listened on",
            where=f"{host}:{port}",
            found=error.strerror or str(error),
            hint="give another --host or --port; --port 0 takes a free one",
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL under which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    listener: socket.socket,
    loading: Future[LoadedModel],
    config: AgentConfig,
    on_ready: Callable[[LoadedModel], None],
) -> bool:
    """Serve until a signal comes.

    Args:
        listener: From `bind`; it is closed in the end.
        loading: Gives the model, or the reason why there is none.
        config: The agent's settings.
        on_ready: Called once, when the first request can be answered.

    Returns:
        True if everything ended in order; False if a request, or the loading, still runs in its thread.

    Raises:
        EdgeOnnxError: The model did not pass its checks.
    """
    models = Models(config)
    server = _Server(_uvicorn_config(create_app(models, config), config))
    stop, hurry = _signal_events()
    serving: asyncio.Future[Any] = asyncio.create_task(server.serve(sockets=[listener]))
    stopping: asyncio.Future[Any] = asyncio.create_task(stop.wait())
    loaded: asyncio.Future[Any] = asyncio.wrap_future(loading)
    try:
        await asyncio.wait({loaded, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done():
            models.serve(loaded.result())
            # What was imported and loaded stays for good: the garbage collector need not walk through it again and
            # again, which would hold up a request for tens of milliseconds now and then.
            gc.freeze()
            on_ready(loaded.result())
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        in_order = await _drain(models, hurry, config)
    finally:
        stopping.cancel()
        server.config.timeout_graceful_shutdown = 1
        server.should_exit = True
        await serving
    return models.close(timeout=0.5) and loading.done() and in_order


def _uvicorn_config(app: object, config: AgentConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        loop="auto",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=config.server.keep_alive_seconds,
    )


def _signal_events() -> tuple[asyncio.Event, asyncio.Event]:
    """Events for the first and the second signal to stop."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop, hurry


async def _drain(models: Models, hurry: asyncio.Event, config: AgentConfig) -> bool:
    """Refuse what is new and wait for what is in flight; False if something still is when time is up."""
    models.drain()
    logger.info("stopping: %d requests in flight, at most %g s", models.in_flight, config.server.drain_seconds)
    drained = asyncio.create_task(models.drained(config.server.drain_seconds))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    drained.cancel()
    if models.in_flight:
        logger.warning("stopping although %d requests are not answered", models.in_flight)
    return models.in_flight == 0
