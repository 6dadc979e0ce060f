"""A real web server on loopback: static files over HTTP/1.1 with ranges, and faults on demand.

with StaticServer(folder) as server:
    server.fail("blobs/*", Fault(cut_after=1000, times=1))
    ... server.url, server.requests, server.sent
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, Self

PIECE = 1 << 16
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]*)")


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with an answer.

    Attributes:
        times: How often it strikes; None is always.
        status: This status instead of 200 or 206; the body is `body`, or a short HTML page.
        body: These bytes instead of the file's; with no `status`, under 200 with their true length.
        headers: Further or other headers; None leaves one out.
        cut_after: The connection is closed after this many bytes of the body.
        stall_after: After this many bytes of the body nothing comes any more, until `stall_seconds` are over.
        stall_seconds: How long that lasts; then the rest follows.
        rate: Bytes of the body in a second, in small pieces.
        ignore_range: The whole file is sent under 200, whatever range was asked for.
        endless: Zeros follow without end, until the client leaves; no length is stated.
        delay: Seconds before the first byte of the answer.
    """

    times: int | None = None
    status: int | None = None
    body: bytes | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    cut_after: int | None = None
    stall_after: int | None = None
    stall_seconds: float = 30.0
    rate: float | None = None
    ignore_range: bool = False
    endless: bool = False
    delay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that came, and what was answered.

    Attributes:
        method: GET or HEAD.
        path: Without the leading slash, percent-decoded, without the query.
        headers: Its headers, names in lower case.
        status: The answer's status.
        sent: Bytes of the body that were sent.
    """

    method: str
    path: str
    headers: dict[str, str]
    status: int
    sent: int

    @property
    def range(self) -> str | None:
        """The Range header."""
        return self.headers.get("range")


class StaticServer:
    """Serves a folder, as a context manager or by `start` and `stop`.

    Args:
        folder: The folder; links are followed, paths above it are not served.
        context: For TLS.
        port: A port; the system chooses one if 0.

    Attributes:
        requests: All requests, in the order in which their answers ended.
        url: Where it is, with a final slash.
    """

    def __init__(self, folder: Path, *, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.folder = folder
        self.requests: list[Request] = []
        self._faults: list[tuple[str, Fault]] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        handler = type("Handler", (_Handler,), {"site": self})
        self._server = _Server(("127.0.0.1", port), handler)
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.url = f"http{'' if context is None else 's'}://127.0.0.1:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Answer no more; stalled answers end."""
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fail(self, pattern: str, fault: Fault) -> Fault:
        """Let answers to paths that fit a pattern (`fnmatch`) go wrong; the fault that was set last comes first."""
        with self._lock:
            self._faults.insert(0, (pattern, fault))
        return fault

    def heal(self) -> None:
        """Take all faults back."""
        with self._lock:
            self._faults.clear()

    @property
    def sent(self) -> int:
        """Bytes of all bodies that were sent."""
        with self._lock:
            return sum(request.sent for request in self.requests)

    def paths(self, pattern: str = "*") -> list[str]:
        """The paths that were asked for and fit a pattern, in order, with repetitions."""
        with self._lock:
            return [request.path for request in self.requests if fnmatch.fnmatch(request.path, pattern)]

    def forget(self) -> None:
        """Forget all requests."""
        with self._lock:
            self.requests.clear()

    # What handlers use.

    def take_fault(self, path: str) -> Fault:
        """The fault that strikes an answer; one without effect if none does."""
        with self._lock:
            for pattern, fault in self._faults:
                if fault.times != 0 and fnmatch.fnmatch(path, pattern):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return Fault()

    def note(self, request: Request) -> None:
        """Remember a request."""
        with self._lock:
            self.requests.append(request)

    def wait(self, seconds: float) -> None:
        """Wait, or until the server stops."""
        self._stopping.wait(seconds)

    @property
    def stopping(self) -> bool:
        """Whether it stops."""
        return self._stopping.is_set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = PIECE
    timeout = 60
    site: ClassVar[StaticServer]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, *, with_body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/")
        fault = self.site.take_fault(path)
        self.site.wait(fault.delay) if fault.delay else None
        data = self._content(path, fault)
        status, headers, body = self._shape(data, fault)
        headers.update({name: value for name, value in fault.headers.items() if value is not None})
        sent = 0
        try:
            self.send_response(status)
            for name, value in headers.items():
                if name not in fault.headers or fault.headers[name] is not None:
                    self.send_header(name, value)
            self.end_headers()
            if with_body:
                for piece in self._pieces(body, fault):
                    self.wfile.write(piece)
                    self.wfile.flush()
                    sent += len(piece)
            self.wfile.flush()
        except (OSError, ssl.SSLError):
            self.close_connection = True
        finally:
            lowered = {name.lower(): value for name, value in _items(self.headers)}
            self.site.note(Request(method=self.command, path=path, headers=lowered, status=status, sent=sent))

    def _content(self, path: str, fault: Fault) -> bytes | None:
        if fault.body is not None:
            return fault.body
        file = self.site.folder / path
        if ".." in Path(path).parts or not file.is_file():
            return None
        return file.read_bytes()

    def _shape(self, data: bytes | None, fault: Fault) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if fault.status is not None or data is None:
            status = fault.status or 404
            body = b"" if status in (204, 304) else fault.body or b"<html><body>not what you wanted</body></html>"
            return status, {"Content-Type": "text/html", "Content-Length": str(len(body))}, body
        tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", "ETag": tag}
        if fault.endless:
            self.close_connection = True
            return 200, {**headers, "Connection": "close"}, data
        wanted = None if fault.ignore_range else self.headers.get("Range")
        if self.headers.get("If-Range", tag) != tag:
            wanted = None
        match = None if wanted is None else _RANGE.fullmatch(wanted)
        if match is None:
            return 200, {**headers, "Content-Length": str(len(data))}, data
        first = int(match.group(1))
        last = min(int(match.group(2) or len(data) - 1), len(data) - 1)
        if first >= len(data) or last < first:
            return 416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"}, b""
        part = data[first : last + 1]
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return 206, {**headers, "Content-Length": str(len(part))}, part

    def _pieces(self, body: bytes, fault: Fault) -> Iterator[bytes]:
        size = PIECE if fault.rate is None else max(1, int(fault.rate / 20))
        stops = sorted({len(body), *(stop for stop in (fault.cut_after, fault.stall_after) if stop is not None)})
        start = 0
        for stop in stops:
            while start < min(stop, len(body)) and not self.site.stopping:
                end = min(start + size, stop, len(body))
                yield body[start:end]
                start = end
                if fault.rate is not None:
                    self.site.wait(size / fault.rate)
            if stop == fault.stall_after:
                self.site.wait(fault.stall_seconds)
            if stop == fault.cut_after:
                self.close_connection = True
                return
        while fault.endless and not self.site.stopping:
            yield b"\0" * PIECE
            time.sleep(0)


def _items(headers: Message) -> list[tuple[str, str]]:
    return list(headers.items())
