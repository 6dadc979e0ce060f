"""HTTP/1.1 connections that a hostile client cannot hold, fill or confuse: uvicorn's protocol with what it lacks.

What llhttp, the parser, refuses is not repeated here: bare line feeds, folded headers, lengths that are no number,
more than one length, a length beside `Transfer-Encoding`, chunks that are none. It has no bounds, though, and uvicorn
has no answer in our form. Added here:

- **Bounds.** The head has at most `limits.max_header_bytes` and `MAX_HEADERS` headers (431), also where a request's
  chunks bring extensions or trailers. At most `MAX_PIPELINED` requests wait on one connection.
- **Time.** The head must arrive within `server.header_seconds` from the connection's start or from its first byte
  (408; a connection on which nothing ever came is closed without a word). What is left of a body after its answer may
  take `server.body_seconds`, and a connection whose client reads nothing of what waits for it for so long is cut. A
  stream may be silent for as long as it likes, and a client may read it as slowly as it likes, if it reads. One timer
  for all connections looks at their deadlines; a request costs no timer.
- **Number.** Above `server.max_connections`, a new connection gets 503 and is closed.
- **Smuggling.** What two servers could read differently is refused: `Transfer-Encoding` other than exactly `chunked`,
  or in HTTP/1.0; no `Host`, or two; HTTP/0.9. Trailers are dropped: they never become headers.
- **Order.** A malformed request behind a good one is answered after it, not in its place.
- **Half-closed connections.** A client that shuts down its sending side after a whole request gets its answer. As TCP
  cannot tell that from a client that left, an interim response (100) is sent: the kernel of one that left answers with
  a reset, which ends the request. Half a request is answered 400.
- **Upgrades** (to h2c, as Java's client offers) are ignored as RFC 9110 allows, and the request is served; llhttp
  alone would lose its body.
- Every refusal has the form of the path's protocol (`device_agent.api.edge.errors`), is written before the connection
  ends, and is not lost to a reset: what the client still sends is read for `LINGER_SECONDS` and thrown away.

The scope's extension `edgeonnx` is an `Exchange`: it tells the application at once that its client left.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from device_agent.api.edge.exchange import EXTENSION, Exchange
from device_agent.api.edge.reading import Reading, acknowledged_bytes
from device_agent.api.edge.refusals import (
    BAD_REQUEST,
    CUT_SHORT,
    HEAD_TOO_LARGE,
    MAX_PIPELINED,
    NO_PROXY,
    SLOW_HEAD,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_PIPELINED,
    Refusal,
    RefusedError,
    fault_in_head,
    head_size,
    render,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from device_agent.config import AgentConfig

logger = logging.getLogger("edgeonnx.agent")

LINGER_SECONDS = 2.0
PROBE_SECONDS = (0.01, 0.05, 0.25, 1.0)
"""When to look whether a client that stopped sending has left: a reset takes one round trip."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the protocol needs of the agent's configuration; see `ServerConfig` and `Limits`."""

    max_header_bytes: int
    header_seconds: float
    body_seconds: float
    max_connections: int
    on_refused: Callable[[int], object]


def http_protocol(
    config: AgentConfig, on_refused: Callable[[int], object] = lambda _status: None
) -> type[asyncio.Protocol]:
    """The protocol class for `uvicorn.Config(http=...)`.

    Args:
        config: Limits and times.
        on_refused: Called with the status of every answer that the application never sees, for the metrics.
    """
    settings = Settings(
        max_header_bytes=config.limits.max_header_bytes,
        header_seconds=config.server.header_seconds,
        body_seconds=config.server.body_seconds,
        max_connections=config.server.max_connections,
        on_refused=on_refused,
    )
    return type("AgentProtocol", (EdgeProtocol,), {"settings": settings, "watch": Watch(settings)})


def allow_connections(count: int) -> int:
    """Raise this process's limit of open files, where it may, so that `count` connections fit.

    A usual soft limit is 1,024 files, and without one left the agent could not even refuse a connection.

    Returns:
        The limit that now holds.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512  # the model's files, libraries, the queue of connections that are being refused
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


class Watch:
    """One timer that looks at the deadlines of all connections."""

    def __init__(self, settings: Settings) -> None:
        self._connections: set[EdgeProtocol] = set()
        self._timer: asyncio.TimerHandle | None = None
        shortest = min(settings.header_seconds, settings.body_seconds, LINGER_SECONDS)
        self._interval = min(1.0, max(0.02, shortest / 8))

    def add(self, connection: EdgeProtocol) -> None:
        """Watch a connection."""
        self._connections.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(self._interval, self._look, connection.loop)

    def discard(self, connection: EdgeProtocol) -> None:
        """Its connection is lost."""
        self._connections.discard(connection)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._connections):
            connection.check_time(now)
        self._timer = loop.call_later(self._interval, self._look, loop) if self._connections else None


class EdgeProtocol(HttpToolsProtocol):
    """One connection. `http_protocol` makes the class that has the settings."""

    settings: ClassVar[Settings]
    watch: ClassVar[Watch]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = b""
        self._exchange = Exchange()  # of the request whose head came last
        self._running: RequestResponseCycle | None = None  # the request that the application works on
        self._in_head = True  # the next byte belongs to a head, or would begin one
        self._head_begun = False  # and a part of that head has arrived
        self._quiet_bytes = 0  # received since the last whole head, part of a body, or whole request
        self._deadline: float | None = None  # for the head, the rest of a body, or the end of a refused connection
        self._refusal: Refusal | None = None  # set once: nothing of what follows is read
        self._refused = False  # the refusal is written
        self._reading = Reading(self.settings.body_seconds)

    # The connection's life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet a client, or refuse it if there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.watch.add(self)
        self._deadline = self.loop.time() + self.settings.header_seconds
        if len(self.connections) > self.settings.max_connections:
            self._refuse(TOO_MANY_CONNECTIONS)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request of this connection that nobody waits for its answer."""
        self.watch.discard(self)
        self._drop_requests()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more; True keeps our sending side open."""
        if self._refusal is not None:
            return False
        if self._begun() or (self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete):
            self._refuse(CUT_SHORT)
        if not self._busy() or self.scheme == "https":  # asyncio cannot keep one side of TLS open
            return False
        if self.cycle is not None:
            self.cycle.keep_alive = False
        running = self._running
        if running is not None and not running.response_started and running.scope["http_version"] != "1.0":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._probe(0)
        return True

    def _probe(self, index: int) -> None:
        """See whether the interim response was answered with a reset, now and some times later."""
        if self.transport.is_closing() or not self._busy():
            return
        found: socket.socket | None = self.transport.get_extra_info("socket")
        if found is not None and found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif index < len(PROBE_SECONDS):
            self.loop.call_later(PROBE_SECONDS[index], self._probe, index + 1)

    def check_time(self, now: float) -> None:
        """End the connection if a deadline has passed; called by the watch."""
        waiting = self.transport.get_write_buffer_size()
        # Nearly always nothing waits, and then the kernel need not be asked.
        if self._reading.stuck(now, waiting, acknowledged_bytes(self.transport) if waiting else 0):
            self.transport.abort()
        if self._deadline is None or now < self._deadline:
            return
        self._deadline = None
        if self._begun() and self._refusal is None:
            seconds = self.settings.header_seconds
            self._refuse(Refusal(kind=SLOW_HEAD, message=f"the request's head did not arrive within {seconds:g} s"))
        else:
            self.transport.close()

    def _begun(self) -> bool:
        """Whether a part of a head has arrived."""
        return self._in_head and (self._head_begun or self._quiet_bytes > 0)

    def _busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._running is not None and not self._running.response_complete

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Parse what came, within the bounds."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        self._quiet_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse_malformed(error)
        else:
            if self._quiet_bytes > self.settings.max_header_bytes:
                self._refuse(self._too_large())
            elif self._deadline is None and self._begun():
                self._deadline = self.loop.time() + self.settings.header_seconds

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head_begun = True
        super().on_message_begin()

    def _too_large(self) -> Refusal:
        part = "head" if self._in_head else "chunk extension or trailer"
        limit = self.settings.max_header_bytes
        message = f"the request's {part} is too large; expected at most {limit:,} bytes"
        return Refusal(kind=HEAD_TOO_LARGE, message=message)

    def on_headers_complete(self) -> None:
        """The head is complete: check what the parser does not, and begin to answer."""
        if head_size(self.url, self.headers) > self.settings.max_header_bytes:
            raise RefusedError(self._too_large())
        fault = fault_in_head(self.headers, self.parser.get_http_version)
        if fault is None and len(self.pipeline) >= MAX_PIPELINED:
            fault = TOO_MANY_PIPELINED
        if fault is not None:
            raise RefusedError(fault)
        self._in_head = self._head_begun = False
        self._quiet_bytes = 0
        self._deadline = None
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise RefusedError(NO_PROXY)
            return  # `_ignore_upgrade` parses this head again
        self._exchange = Exchange()
        # Trailers are added to `self.headers` after the application has begun; it has the head's own list.
        scope = cast("dict[str, Any]", self.scope)
        scope["headers"] = self.headers
        self.headers = []
        scope["extensions"] = {EXTENSION: self._exchange}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self.parser.should_upgrade():
            return
        self._quiet_bytes = 0
        self._in_head = True
        self._deadline = None
        self._exchange.body_arrived = True
        super().on_message_complete()
        if self.cycle.response_complete:
            # Its answer came before its end, which has ended the wait for the next request.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Serve a request that asks for another protocol as if it had not asked."""
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() != b"upgrade")
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._in_head = True
        self.data_received(b"".join([*head, b"\r\n", rest]))

    # What is answered

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """An answer is written: go on with the next request, or with the refusal that had to wait for it."""
        super().on_response_complete()
        if self._refusal is not None and not self._busy():
            self._write_refusal(self._refusal)
        elif not self._in_head and not self._busy():
            # What is left of the body is read and thrown away, so that the client sees its answer.
            self._deadline = self.loop.time() + self.settings.body_seconds

    def _refuse_malformed(self, error: Exception) -> None:
        """Answer what the parser, or one of the callbacks above, did not take."""
        cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
        if isinstance(cause, RefusedError):
            self._refuse(cause.refusal)
            return
        found = "an invalid request target" if cause is not None else str(error)
        self._refuse(Refusal(kind=BAD_REQUEST, message=f"the request is not valid HTTP/1.1; found {found}"))

    def _refuse(self, refusal: Refusal) -> None:
        """End the connection with an answer, after those of earlier, whole requests."""
        if self._refusal is not None:
            return
        self._refusal = refusal
        logger.debug("%s is refused: %s", self.client, refusal.message)
        unfinished = self.cycle
        if unfinished is not None and unfinished.more_body and not unfinished.response_complete:
            self._abandon(unfinished)
        if not self._busy():
            self._write_refusal(refusal)

    def _abandon(self, cycle: RequestResponseCycle) -> None:
        """Tell the application that the rest of this request never comes; what it still sends is dropped."""
        if cycle.response_started:
            self._refused = True  # no second answer behind the beginning of the first
        self._leave(cycle)
        if cycle is self._running:
            self._running = None
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()  # it came last, and the application never saw it

    def _write_refusal(self, refusal: Refusal) -> None:
        """Write the answer, and let the connection linger until the client has read it."""
        if self.transport.is_closing():
            return
        if not self._refused:
            self._refused = True
            self.settings.on_refused(refusal.kind.status)
            path = self.url.partition(b"?")[0].decode("latin-1")
            self.transport.write(render(refusal, path, self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._deadline = self.loop.time() + LINGER_SECONDS
            self.flow.resume_reading()
        else:
            self.transport.close()

    def _drop_requests(self) -> None:
        """The client left: nothing that waits, runs or arrives on this connection is wanted any more."""
        for cycle in {id(cycle): cycle for cycle in (self._running, self.cycle) if cycle is not None}.values():
            if not cycle.response_complete:
                self._leave(cycle)
        self.pipeline.clear()

    @staticmethod
    def _leave(cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()
        left: Exchange = cast("dict[str, Any]", cycle.scope)["extensions"][EXTENSION]
        left.leave()
