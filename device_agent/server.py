"""The life of a serving agent: bind, load, serve, drain, stop.

The port is bound before the models load, so that `/v2/health/live` answers at once and a port that is taken is found
out before the work. On SIGTERM or SIGINT the agent drains: `/v2/health/ready` turns 503, new requests are refused
with 503, those in flight are answered, and then the process ends; all of it within `drain_seconds`. A second signal
ends the wait. On SIGHUP the token files and the TLS certificate are read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from device_agent.api.app import create_app
from device_agent.api.edge.auth import check_listen_address
from device_agent.api.edge.protocol import allow_connections, http_protocol
from device_agent.api.monitoring.metrics import Metrics
from device_agent.api.monitoring.telemetry import start_telemetry
from device_agent.models.registry import Models
from device_agent.systemd import Notifier, Work
from edgeonnx.errors import EdgeOnnxError, UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator, Mapping
    from concurrent.futures import Future

    from starlette.applications import Starlette

    from device_agent.config import AgentConfig
    from device_agent.models.loaded import LoadedModel
    from device_agent.rpc import GrpcServer
    from device_agent.supervision.installation import Installation
    from device_agent.supervision.supervisor import Supervisor

    OnReady = Callable[[LoadedModel | None], None]

logger = logging.getLogger("edgeonnx.agent")

BACKLOG = 2048
INTERRUPT_SECONDS = 0.5
"""How long the agent waits for answers that it ended to be sent, once the time for draining is over."""
SWITCH_SECONDS = 0.0005
"""How long a runner that comes back from the runtime waits for the interpreter lock while the event loop parses."""


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


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL under which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def run(
    listener: socket.socket,
    loading: Future[list[LoadedModel]] | None,
    config: AgentConfig,
    on_ready: OnReady,
    installation: Installation | None = None,
) -> bool:
    """`serve` in an event loop of its own: uvloop's, where that is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(listener, loading, config, on_ready, installation))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(
    listener: socket.socket,
    loading: Future[list[LoadedModel]] | None,
    config: AgentConfig,
    on_ready: OnReady,
    installation: Installation | None = None,
) -> bool:
    """Serve until a signal comes.

    Args:
        listener: From `bind`; it is closed in the end.
        loading: Gives the first bundle's model, or the reason why there is none. The model is taken out of the list:
            a future that held it would keep its memory when it is unloaded. None: it is not being loaded yet, or
            there is no bundle.
        config: The agent's settings.
        on_ready: Called once, when the start is over: with the default model or, if that failed, the first one that
            serves; None where the agent was started without a bundle.
        installation: The state directory whose models are served and updated; None: only the bundles of the settings
            are.

    Returns:
        True if everything ended in order; False if a request, or the loading, still runs in its thread.

    Raises:
        UsageError: An address, a token file or a certificate cannot be used.
        EdgeOnnxError: No model passed its checks.
    """
    with contextlib.closing(listener):
        check_listen_address(config)
        agent = _Agent(config, installation)
        await agent.start(listener)
        in_order = False
        try:
            await agent.load(loading, on_ready)
            in_order = await agent.drain()
        finally:
            await agent.stop(in_order=in_order)
    return agent.models.close(timeout=0.5) and (loading is None or loading.done()) and in_order


class _Agent:
    """The parts of a serving agent, from `start` to `stop`.

    Raises:
        UsageError: A token file or a certificate cannot be used.
    """

    def __init__(self, config: AgentConfig, installation: Installation | None = None) -> None:
        self.config = config
        self.models = Models(config)
        self._metrics = Metrics()
        self._supervisor = None if installation is None else self._supervise(installation)
        self._telemetry = start_telemetry()
        self._app = create_app(self.models, config, self._metrics, self._telemetry)
        self._tls = _tls(config)
        self._server = _Server(_uvicorn_config(self._app, config, self._metrics, self._tls))
        self._notifier = Notifier.from_environment()
        self._tasks: list[asyncio.Future[Any]] = []
        self._grpc: GrpcServer | None = None
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()

    def _supervise(self, installation: Installation) -> Supervisor:
        # An agent without updates starts without these.
        from device_agent.supervision.runs import UpdateRuns, command_of
        from device_agent.supervision.supervisor import Supervisor
        from device_agent.supervision.view import updates_view

        folder = installation.store.root
        runs = UpdateRuns(command_of(folder, installation.settings_file), folder)
        supervisor = Supervisor(installation, self.models, self.config.update, runs)
        self._metrics.watcher = supervisor.watch
        self._metrics.updates = partial(updates_view, supervisor)
        return supervisor

    async def start(self, listener: socket.socket) -> None:
        """Answer on the listener, and watch for signals."""
        sys.setswitchinterval(SWITCH_SECONDS)
        allow_connections(self.config.server.max_connections)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        if self.config.server.grpc_port is not None:
            self._grpc = await _serve_grpc(self._app, self.config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        self._stopping = asyncio.ensure_future(self._stop.wait())

    async def load(self, loading: Future[list[LoadedModel]] | None, on_ready: OnReady) -> None:
        """Load the models, and serve until a signal comes or the listener fails."""
        first = None if loading is None else asyncio.wrap_future(loading)
        supervisor = self._supervisor
        start = asyncio.ensure_future((self.models if supervisor is None else supervisor).start(first))
        await asyncio.wait({start, self._stopping, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError, EdgeOnnxError):
                await start
            return
        await start
        # What was imported and loaded stays for good: the garbage collector need not walk through it again and again,
        # which would hold up a request for tens of milliseconds now and then. A model that is unloaded later is freed
        # all the same, by its reference counts: it is in no cycle.
        gc.collect()
        gc.freeze()
        # No name in this frame, which lives as long as the agent, may hold a model.
        on_ready(next((live.loaded for live in self.models.all()), None))
        self._notifier.ready(_status(self.models))
        self._tasks.append(asyncio.ensure_future(self._notifier.watch(self._work, lambda: _status(self.models))))
        if supervisor is not None:
            self._tasks.append(asyncio.ensure_future(supervisor.run()))
        await asyncio.wait({self._stopping, self._serving}, return_when=asyncio.FIRST_COMPLETED)

    async def drain(self) -> bool:
        """Refuse what is new and wait for what is in flight; False if something still is when time is up."""
        seconds = self.config.server.drain_seconds
        self.models.drain()
        self._notifier.stopping(f"draining {self.models.in_flight} requests")
        logger.info("stopping: %d requests in flight, at most %g s", self.models.in_flight, seconds)
        drained = asyncio.ensure_future(self.models.drained(seconds))
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        drained.cancel()
        # A text that is being generated would be cut off in the middle of a stream: its client is told instead.
        if self.models.in_flight and not await self.models.interrupt(INTERRUPT_SECONDS):
            logger.warning("stopping although %d requests are not answered", self.models.in_flight)
        return self.models.in_flight == 0

    async def stop(self, *, in_order: bool) -> None:
        """Close the listeners, and end what runs beside them."""
        self._stopping.cancel()
        for task in self._tasks:
            task.cancel()
        # The update process ends before the agent does.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._supervisor is not None:
            await self._supervisor.stop(in_order=in_order)
        self._server.config.timeout_graceful_shutdown = 1
        self._server.should_exit = True
        await self._serving
        if self._grpc is not None:
            await self._grpc.stop(1.0)
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)

    def _on_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _on_reload(self) -> None:
        logger.info("SIGHUP: the token files and the certificate are read again")
        self._notifier.reloading()
        self._app.state.guard.reload()
        if self._grpc is not None:
            self._grpc.reload()
        if self._tls is not None:
            _renew_certificate(self._tls, self.config)
        self._notifier.ready(_status(self.models))

    def _work(self) -> Mapping[str, Work]:
        """What each model has to do, for the watchdog."""
        return {f"{live.loaded.name} {live.loaded.version}": live.loaded.work() for live in self.models.all()}


def _status(models: Models) -> str:
    """What the agent does, in a line, for `systemctl status`."""
    serving = ", ".join(
        f"{live.loaded.name} {live.loaded.version} on {live.loaded.engine.provider}" for live in models.all()
    )
    return f"serves {serving or 'no model'}; {models.in_flight} requests in flight"


def _tls(config: AgentConfig) -> ssl.SSLContext | None:
    """The context of the listener; ssl is imported only where it is used."""
    if config.server.tls_certificate is None and config.server.tls_key is None:
        return None
    from device_agent.api.edge.tls import ssl_context

    return ssl_context(config.server)


def _renew_certificate(context: ssl.SSLContext, config: AgentConfig) -> None:
    """Read the certificate again; if it cannot be used, the log says so and it stays as it was."""
    from device_agent.api.edge.tls import load_certificate

    try:
        load_certificate(context, config.server)
    except EdgeOnnxError as error:
        logger.error("the certificate stays as it was: %s", error)  # noqa: TRY400 - no traceback for a wrong file


async def _serve_grpc(app: Starlette, config: AgentConfig) -> GrpcServer:
    """Start the gRPC service; grpc is imported only where it is asked for.

    Raises:
        RuntimeUnavailableError: grpcio is not installed.
        UsageError: The port cannot be listened on.
    """
    from device_agent.rpc import serve_grpc

    return await serve_grpc(app.state.context, config, tokens=lambda: app.state.guard.tokens)


def _uvicorn_config(
    app: Starlette, config: AgentConfig, metrics: Metrics, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    found = uvicorn.Config(
        app,
        http=http_protocol(config, metrics.responded),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # uvicorn would believe X-Forwarded-* of any client on loopback, and ask the application for its interface.
        proxy_headers=False,
        interface="asgi3",
        timeout_keep_alive=config.server.keep_alive_seconds,
    )
    found.load()
    found.ssl = tls
    return found
