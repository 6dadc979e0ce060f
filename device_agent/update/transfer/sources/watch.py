"""An end to waits that no timeout of a socket ends, and to heads that no empty line ends.

A socket's timeout bounds one read. A server that sends the head of its answer, or the length of a chunk, one byte at a
time passes each of them and keeps a client for hours. So those steps are watched: when their time is over, the
connection is shut down from another thread, and the read that waits ends at once.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import TYPE_CHECKING, Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

_local = threading.local()


class Watch:
    """The connection of one request.

    Attributes:
        expired: A step took too long, and the connection was shut down.
    """

    def __init__(self) -> None:
        self.expired = False
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Give a step this long."""
        self.expired = False
        timer = threading.Timer(seconds, self._expire)
        timer.daemon = True
        _local.watch = self
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            _local.watch = None

    def end(self) -> None:
        """Shut the connection down; whoever waits for it gets an end of file."""
        for known in (self._socket, self._connection.sock if self._connection is not None else None):
            known = getattr(known, "socket", known)  # TLS to a server through TLS to a proxy
            if isinstance(known, socket.socket):
                # Not SSLSocket.shutdown: it takes the state of TLS away from under the thread that reads.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(known, socket.SHUT_RDWR)

    def follow(self, connection: HTTPConnection) -> None:
        """Remember whose socket it is; the response keeps the socket open after the connection let go of it."""
        self._connection = connection
        self._socket = connection.sock or self._socket

    def forget(self) -> None:
        """The request is over, and its connection may serve another one."""
        self._connection = self._socket = None

    def _expire(self) -> None:
        self.expired = True
        self.end()


def _follow(connection: HTTPConnection) -> None:
    watch: Watch | None = getattr(_local, "watch", None)
    if watch is not None:
        watch.follow(connection)


class _HeadReader:
    """Remembers the last line that was read of a head."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.last = b"?"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._inner.readline(limit)
        return self.last


class _WholeHead(http.client.HTTPResponse):
    """An answer whose head must end in an empty line.

    The standard library takes the end of the connection for the end of the head. A cut there would look like an answer
    without `Content-Length` and with an empty body, or like a part that does not say which.
    """

    def begin(self) -> None:
        inner: Any = self.fp
        reader: Any = _HeadReader(inner)
        self.fp = reader
        super().begin()
        if self.fp is reader:
            self.fp = inner
        if not reader.last:
            self.close()
            raise http.client.IncompleteRead(b"")


class _Watched(HTTPConnection):
    response_class = _WholeHead

    def connect(self) -> None:
        _follow(self)
        super().connect()

    def request(self, *arguments: Any, **options: Any) -> None:
        super().request(*arguments, **options)
        _follow(self)


class _WatchedTls(_Watched, HTTPSConnection):
    """`HTTPSConnection` is an `HTTPConnection`: each step goes through `_Watched` to it."""


class WatchedPool(HTTPConnectionPool):
    """Connections over plain TCP that a `Watch` can follow."""

    ConnectionCls = _Watched


class WatchedTlsPool(HTTPSConnectionPool):
    """Connections over TLS that a `Watch` can follow."""

    ConnectionCls = _WatchedTls
