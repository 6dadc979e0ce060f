"""The HTTP edge alone: uvicorn with the agent's protocol around a small application, in a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from device_agent.api.edge.body import read_body
from device_agent.api.edge.errors import answer_error
from device_agent.api.edge.exchange import Exchange, exchange
from device_agent.api.edge.protocol import http_protocol
from device_agent.config import AgentConfig, Limits, ServerConfig
from edgeonnx.errors import EdgeOnnxError


@dataclass(kw_only=True)
class Edge:
    """A running server.

    Attributes:
        port: Its TCP port on loopback.
        seen: Path and length of the body of each request that the application got whole.
        left: Paths of the requests whose client left.
        refused: Statuses of the answers that the application never saw.
        hold: Requests to `/hold` and `/v1/hold` are answered when this is set.
    """

    config: AgentConfig
    port: int = 0
    seen: list[tuple[str, int]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    server: uvicorn.Server = field(init=False)
    errors: list[dict[str, Any]] = field(default_factory=list)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Read the body and say how long it was; `/early` answers before it reads, `/stream` and `/quiet` stream."""
        request = Request(scope, receive)
        path = scope["path"]
        known = exchange(scope)
        if known is not None:
            known.on_disconnect(lambda: self.left.append(path))
        try:
            body = b"" if path == "/early" else await read_body(request, self.config.limits, self.config.server)
            while path.endswith("/hold") and not self.hold.is_set():
                if known is not None and known.gone:
                    return
                await asyncio.sleep(0.005)
        except EdgeOnnxError as error:
            await answer_error(path, error)(scope, receive, send)
            return
        self.seen.append((path, len(body)))
        if path in ("/stream", "/quiet"):
            await self._stream(path, known, send)
            return
        names = sorted(name.decode() for name, _ in scope["headers"])
        size = int(scope["query_string"] or 0)
        content = orjson.dumps({"path": path, "length": len(body), "headers": names, "pad": "x" * size})
        await Response(content, media_type="application/json")(scope, receive, send)

    async def _stream(self, path: str, known: Exchange | None, send: Any) -> None:
        """As fast as the client reads and for as long as it stays; or one piece, a silence, and one more."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while path == "/stream" and known is not None and not known.gone:
            await send({"type": "http.response.body", "body": b"x" * 8192, "more_body": True})
            await asyncio.sleep(0)
        while path == "/quiet" and not self.hold.is_set():
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body", "body": b"last", "more_body": False})

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def ask(self, data: bytes, *, shut: bool = False) -> bytes:
        """Send bytes, read to the end of the connection (or until nothing comes for a while)."""
        with self.connect() as connection:
            connection.sendall(data)
            if shut:
                connection.shutdown(socket.SHUT_WR)
            return drain(connection)


def drain(connection: socket.socket, seconds: float = 10.0) -> bytes:
    """Everything until the server closes."""
    connection.settimeout(seconds)
    data = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 16):
            data += chunk
    return data


def statuses(data: bytes) -> list[int]:
    """The statuses of all answers in these bytes."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


def one_answer(connection: socket.socket) -> bytes:
    """Exactly the next answer."""
    data = b""
    while not (head := re.search(rb"content-length: (\d+)\r\n.*?\r\n\r\n", data, re.DOTALL | re.IGNORECASE)):
        data += _byte_of(connection)
    while len(data) < head.end() + int(head[1]):
        data += _byte_of(connection)
    return data


def _byte_of(connection: socket.socket) -> bytes:
    data = connection.recv(1)
    assert data, "the connection ended inside an answer"
    return data


@contextlib.contextmanager
def serving(
    *,
    server: ServerConfig | None = None,
    limits: Limits | None = None,
    context: ssl.SSLContext | None = None,
    keep_alive: float = 75,
    loop: str = "asyncio",
) -> Iterator[Edge]:
    """Run an `Edge` for the time of a `with`."""
    edge = Edge(config=AgentConfig(server=server or ServerConfig(), limits=limits or Limits()))
    config = uvicorn.Config(
        edge.app,
        http=http_protocol(edge.config, edge.refused.append),
        interface="asgi3",
        proxy_headers=False,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]
        ssl_context_factory=None if context is None else lambda *_: context,
        timeout_graceful_shutdown=1,
        loop=loop,  # type: ignore[arg-type]
    )
    edge.server = uvicorn.Server(config)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    edge.port = listener.getsockname()[1]

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: edge.errors.append(context))
        await edge.server.serve(sockets=[listener])

    def main() -> None:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(run())

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not edge.server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    try:
        yield edge
    finally:
        edge.hold.set()
        edge.server.should_exit = True
        thread.join(10)
        listener.close()
    assert not thread.is_alive()
    assert not edge.errors, edge.errors
