"""A real nginx on loopback, and two small proxies: one that cuts connections, one that tunnels them."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
LOG_FIELDS = (
    "status",
    "body_bytes_sent",
    "connection",
    "uri",
    "http_range",
    "http_if_range",
    "http_authorization",
    "ssl_client_s_dn",
    "server_port",
)

_CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log notice;
worker_processes 1;
{user}
events {{ worker_connections 256; }}
http {{
    default_type application/octet-stream;
    client_body_temp_path {folder}/temporary-body;
    proxy_temp_path {folder}/temporary-proxy;
    fastcgi_temp_path {folder}/temporary-fastcgi;
    uwsgi_temp_path {folder}/temporary-uwsgi;
    scgi_temp_path {folder}/temporary-scgi;
    log_format counted '{log}';
    access_log {folder}/access.log counted;
    root {folder}/www;
    {servers}
}}
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    held = []
    for _ in range(count):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        held.append(listener)
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


class Nginx:
    """nginx with a configuration of its own in a folder; it serves `<folder>/www`.

    Args:
        folder: Where everything lies.
        servers: The `server` blocks, with `{name}` for each port.
        names: Names of the ports.
    """

    def __init__(self, folder: Path, servers: str, names: Iterable[str]) -> None:
        self.folder = folder
        self.www = folder / "www"
        self.www.mkdir()
        self.ports = dict(zip(names := list(names), free_ports(len(names)), strict=True))
        for name, port in self.ports.items():
            servers = servers.replace(f"{{{name}}}", str(port))
        self._seen = 0
        text = _CONFIG.format(
            folder=folder,
            servers=servers,
            log="\\t".join(f"${field}" for field in LOG_FIELDS),
            user="user root;" if os.geteuid() == 0 else "",
        )
        (folder / "nginx.conf").write_text(text, encoding="utf-8")

    def __enter__(self) -> Self:
        assert PROGRAM is not None
        command = [PROGRAM, "-c", str(self.folder / "nginx.conf"), "-p", str(self.folder), "-e", "stderr"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        for port in self.ports.values():
            while True:
                if self._process.poll() is not None:
                    assert self._process.stderr is not None
                    raise RuntimeError(self._process.stderr.read().decode())
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)

    def requests(self, wanted: int = 1) -> list[dict[str, str]]:
        """What was asked since the last call; nginx writes its log after an answer, so this waits for that many."""
        deadline = time.monotonic() + 3
        while True:
            text = (self.folder / "access.log").read_text(encoding="utf-8")
            lines = text.splitlines()[self._seen :] if text.endswith("\n") or not text else []
            if len(lines) >= wanted or time.monotonic() > deadline:
                self._seen += len(lines)
                return [dict(zip(LOG_FIELDS, line.split("\t"), strict=True)) for line in lines]
            time.sleep(0.005)


class _Listener:
    """Accepts connections on loopback and gives each to a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._end = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):  # clients keep theirs for the next request
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (self._thread, *self._threads):
            thread.join(5)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._end.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            thread = threading.Thread(target=self._guarded, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, connection: socket.socket) -> None:
        self._open.add(connection)
        with connection, contextlib.suppress(OSError):  # the other side may leave at any time
            self.serve(connection)
        self._open.discard(connection)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def _join(self, one: socket.socket, other: socket.socket, most: int | None = None) -> None:
        """Carry bytes both ways until a side ends, or `most` bytes went to `one`; then that connection is reset."""
        sent = 0
        while not self._end.is_set():
            ready, _, _ = select.select([one, other], [], [], 0.05)
            for side in ready:
                data = side.recv(4096)
                if not data:
                    return
                if side is one:
                    other.sendall(data)
                    continue
                if most is not None and sent + len(data) > most:
                    one.sendall(data[: most - sent])
                    # Not a reset: it would throw away what has not been read yet.
                    one.shutdown(socket.SHUT_RDWR)
                    return
                one.sendall(data)
                sent += len(data)


class CuttingProxy(_Listener):
    """Carries connections to a port; each ends after as many bytes as the next of `cuts` says, or not at all."""

    def __init__(self, port: int, cuts: Iterable[int | None]) -> None:
        super().__init__()
        self._target = port
        self._cuts = iter(cuts)
        self._lock = threading.Lock()

    def serve(self, connection: socket.socket) -> None:
        with self._lock:
            most = next(self._cuts, None)
        with socket.create_connection(("127.0.0.1", self._target), timeout=5) as target:
            self._join(connection, target, most)


class TunnelProxy(_Listener):
    """An HTTP proxy that knows CONNECT; `asked` holds the heads of the requests."""

    def __init__(self, *, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> None:
        super().__init__()
        self._answer = answer
        self.asked: list[bytes] = []

    def serve(self, connection: socket.socket) -> None:
        head = read_head(connection)
        self.asked.append(head)
        host, _, port = head.split()[1].decode().rpartition(":")
        connection.sendall(self._answer)
        if b" 200 " in self._answer:
            with socket.create_connection((host, int(port)), timeout=5) as target:
                self._join(connection, target)


class ScriptedServer(_Listener):
    """A server without manners: a function writes whatever it likes to each connection.

    Args:
        script: Called for each request with its number, the connection, and the request's head. It is called again
            for the next request of a connection unless it closed or gives False.
    """

    def __init__(self, script: Callable[[int, socket.socket, bytes], object]) -> None:
        super().__init__()
        self._script = script
        self._lock = threading.Lock()
        self.heads: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def serve(self, connection: socket.socket) -> None:
        while head := read_head(connection):
            with self._lock:
                number = len(self.heads)
                self.heads.append(head)
            if self._script(number, connection, head) is False:
                return

    def drip(self, connection: socket.socket, data: Iterable[bytes] | bytes, seconds: float) -> None:
        """Send one piece (of bytes: one byte) after the other, slowly, until the client leaves or the test ends."""
        pieces = (bytes([byte]) for byte in data) if isinstance(data, bytes) else data
        for piece in pieces:
            if self._end.wait(seconds):
                return
            connection.sendall(piece)


def read_head(connection: socket.socket) -> bytes:
    """The head of a request; empty if the client left."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = connection.recv(1)
        if not data:
            return b""
        head += data
    return head


def reset(connection: socket.socket) -> None:
    """End a connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
