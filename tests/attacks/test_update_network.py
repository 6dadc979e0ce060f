"""Servers and paths that mean harm: every answer ends in bounded time and bytes, with an error of ours."""

from __future__ import annotations

import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from device_agent.config import UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.update.transfer.downloader import Downloader, Job, Timing
from device_agent.update.transfer.sources import NotFound
from device_agent.update.transfer.sources.http import HttpSource
from edgeonnx.errors import FetchError
from tests.support.nginx import ScriptedServer, reset
from tests.support.outcome import refusal

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "v1"\r\n\r\nhello'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def loader(server: ScriptedServer, **settings: Any) -> Downloader:
    chosen: dict[str, Any] = {"connect_seconds": 2.0, "stall_seconds": 2.0, "retries": 0, **settings}
    config = UpdateConfig(**chosen)
    timing = Timing(sleep=lambda _: None, chance=lambda: 0.0)
    return Downloader(HttpSource(server.url, config), config, Disk(), timing=timing)


def says(*answers: bytes) -> Callable[[int, socket.socket, bytes], object]:
    """A script that gives one answer after the other, then ends the connection."""

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        connection.sendall(answers[min(number, len(answers) - 1)])
        return False

    return script


ANSWERS = {
    "nothing": b"",
    "no-http": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "garbage": random.Random(1).randbytes(3000),
    "half-a-head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "version": b"HTTP/9.9 200 OK\r\n\r\n",
    "status": b"HTTP/1.1 9999 OK\r\n\r\n",
    "status-word": b"HTTP/1.1 fine OK\r\n\r\n",
    "long-line": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "many-lines": b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    "control": b"HTTP/1.1 404 \x1b[31m\r\nX: \x07\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 500\r\n\r\nhello",
    "too-long": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
    "huge-length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n" + b"x" * 200,
    "above-the-limit": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000,
    "gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    "unasked-part": b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-4/5\r\nContent-Length: 5\r\n\r\nhello",
    "unasked-416": b"HTTP/1.1 416 OK\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n",
    "html": b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<!DOCTYPE html>",
    "redirect-nowhere": b"HTTP/1.1 302 OK\r\nContent-Length: 0\r\n\r\n",
    "redirect-file": b"HTTP/1.1 302 OK\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "redirect-many": b"HTTP/1.1 302 OK\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
    "endless-continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    "chunk-cut": CHUNKED + b"ff\r\nhello",
    "chunk-size": CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n",
    "chunk-negative": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk-above-the-limit": CHUNKED + b"30d40\r\n" + b"x" * 200_000 + b"\r\n0\r\n\r\n",
    "chunk-extension": CHUNKED + b"5;" + b"a" * 70_000 + b"\r\nhello\r\n0\r\n\r\n",
    "no-content": b"HTTP/1.1 204 OK\r\n\r\n",
}


def test_no_failure_takes_the_place_of_a_connection(tmp_path: Path) -> None:
    """Two connections are allowed; after as many failures of each kind as one likes, there still are two."""
    kinds = ["too-long", "above-the-limit", "gzip", "html", "unasked-part", "redirect-file", "half-a-head", "nothing"]
    answers = [ANSWERS[kind].replace(b"OK\r\n", b"OK\r\nConnection: close\r\n", 1) for kind in kinds for _ in range(3)]
    with ScriptedServer(says(*answers, OK)) as server:
        downloads = loader(server)
        for _ in answers:
            assert isinstance(refusal(lambda: downloads.read("x", limit=100)), FetchError)
        assert len(server.heads) == len(answers)
        assert downloads.read("x", limit=100) == b"hello"


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_are_none(tmp_path: Path, name: str) -> None:
    with ScriptedServer(says(ANSWERS[name])) as server:
        downloads = loader(server)
        for action in (
            lambda: downloads.read("x", limit=100),
            lambda: downloads.download("x", tmp_path / "part", limit=100),
        ):
            error = refusal(action)
            assert isinstance(error, FetchError)
            assert str(error).isprintable()
            assert "urllib3" not in str(error)
            assert "0x" not in str(error)
    assert downloads.received <= 2 * (100 + (64 << 10))
    part = tmp_path / "part"
    assert not part.exists() or part.stat().st_size <= 100


def test_an_honest_server_is_understood(tmp_path: Path) -> None:
    """What the test above refuses is refused for its fault, not for its form."""
    answers = (OK, CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nhello")
    with ScriptedServer(says(*answers)) as server:
        downloads = loader(server, retries=3)  # the end of a connection may come when it is used again
        assert [downloads.read("x", limit=5) for _ in answers] == [b"hello"] * 3


def test_bytes_behind_the_answer_are_not_the_next_answer() -> None:
    """The connection is given up, although it could be used again by its headers."""

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        connection.sendall(OK + (OK.replace(b"hello", b"WRONG") if number == 0 else b""))
        return True

    with ScriptedServer(script) as server:
        downloads = loader(server)
        assert downloads.read("x", limit=5) == b"hello"
        time.sleep(0.02)
        assert downloads.read("y", limit=5) == b"hello"


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
SLOW: dict[str, tuple[bytes, bytes | tuple[bytes, ...]]] = {
    # What is sent at once, and what then comes piece by piece (of bytes: byte by byte).
    "head": (b"", OK),
    "status-line": (b"", b"HTTP/1.1 200 " + b"O" * 1000),
    "continue": (b"", (b"HTTP/1.1 100 Continue\r\n\r\n",) * 1000),
    "body": (PLAIN, b"x" * 1000),
    "chunks": (CHUNKED, (b"1\r\nx\r\n",) * 1000),
    "chunk-length": (CHUNKED, b"0" * 1000),
    "trailer": (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: " + b"y" * 1000),
    "error-page": (PLAIN.replace(b"200", b"404"), b"x" * 1000),
    "silence": (b"", ()),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_byte_now_and_then_keeps_nobody(name: str) -> None:
    """Each passes the timeout of a socket with every byte; 1,000 bytes would take 20 s."""

    at_once, slowly = SLOW[name]

    def script(number: int, connection: socket.socket, head: bytes) -> None:
        connection.sendall(at_once)
        server.drip(connection, slowly, 0.02)

    with ScriptedServer(script) as server:
        started = time.monotonic()
        error = refusal(lambda: loader(server, connect_seconds=0.1, stall_seconds=0.2).read("x", limit=1000))
        took = time.monotonic() - started
    assert isinstance(error, FetchError)
    assert isinstance(error, NotFound) == (name == "error-page")
    assert took < 5, f"{took:.1f} s"


def test_a_server_that_never_accepts_and_one_that_hangs_in_tls() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        port = listener.getsockname()[1]
        config = UpdateConfig(connect_seconds=0.2, stall_seconds=0.2, retries=0)
        source = HttpSource(f"https://localhost:{port}/", config)
        started = time.monotonic()
        with pytest.raises(FetchError, match=r"does not answer|silent"):
            Downloader(source, config, Disk()).read("x", limit=10)
        assert time.monotonic() - started < 5


def test_resets_at_any_byte(tmp_path: Path) -> None:
    """A path that resets connections: what came before is kept, and the file becomes whole."""
    data = random.Random(3).randbytes(20_000)
    choose = random.Random(4)

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        start = int(head.partition(b"bytes=")[2].partition(b"-")[0] or b"0")
        line = b"206 OK\r\nContent-Range: bytes %d-19999/20000" % start if start else b"200 OK"
        answer = b"HTTP/1.1 " + line + b'\r\nETag: "v"\r\nContent-Length: %d\r\n\r\n' % (20_000 - start)
        answer += data[start:]
        connection.sendall(answer[: choose.randrange(1, 4000)] if number < 15 else answer)
        if number < 15:
            reset(connection)
        return False

    with ScriptedServer(script) as server:
        loader(server, retries=20, stall_bytes=1).download("x", tmp_path / "part", limit=20_000)
    assert (tmp_path / "part").read_bytes() == data


def test_parts_of_another_file_are_not_joined(tmp_path: Path) -> None:
    """A server that goes on in a new state of the file, whatever `If-Range` says, under the old length."""

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        if number == 0:
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "old"\r\nContent-Length: 10\r\n\r\nOLD..')
        elif b"Range" in head:
            connection.sendall(
                b'HTTP/1.1 206 OK\r\nETag: "new"\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\n..NEW'
            )
        else:
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "new"\r\nContent-Length: 10\r\n\r\nNEW....NEW')
        return False

    with ScriptedServer(script) as server:
        loader(server, retries=3).download("x", tmp_path / "part", limit=10)
        assert [b"Range: bytes=5-" in head for head in server.heads] == [False, True, False]
    assert (tmp_path / "part").read_bytes() == b"NEW....NEW"


def test_ranges_without_end_are_given_up(tmp_path: Path) -> None:
    """A server whose every answer to a range is wrong, and whose whole file never comes whole."""

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        if b"Range" in head:
            connection.sendall(b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-4/10\r\nContent-Length: 5\r\n\r\nOLD..")
        else:
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "old"\r\nContent-Length: 10\r\n\r\nOLD..')
        return False

    with ScriptedServer(script) as server:
        error = refusal(lambda: loader(server, retries=5).download("x", tmp_path / "part", limit=10))
        assert isinstance(error, FetchError)
        assert len(server.heads) == 6


def test_a_redirect_to_another_host_gets_no_secret(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with ScriptedServer(says(OK)) as other:
        target = other.url.encode()
        redirect = b"HTTP/1.1 307 OK\r\nContent-Length: 0\r\nLocation: " + target + b"x\r\n\r\n"
        with ScriptedServer(says(redirect)) as server:
            assert loader(server, token_file=token).read("x", limit=5) == b"hello"
            assert b"Authorization: Bearer secret" in server.heads[0]
        assert b"secret" not in other.heads[0]


def test_secrets_and_odd_names_do_not_break_the_request() -> None:
    """A path cannot smuggle a header or a second request."""
    with ScriptedServer(says(OK)) as server:
        assert loader(server).read("a b?c#d%2Fe+é", limit=5) == b"hello"
        assert server.heads[0].startswith(b"GET /a%20b%3Fc%23d%2Fe%2B%C3%A9 HTTP/1.1\r\n")
        for path in ("a\r\nX: y", "../secret", "/etc/passwd", "a/../../b"):
            assert isinstance(refusal(partial(loader(server).read, path, limit=5)), FetchError)
        assert len(server.heads) == 1


def test_a_failure_ends_a_download_that_waits_for_its_next_byte(tmp_path: Path) -> None:
    """The other thread waits in the kernel; it is woken, not waited for."""
    waiting = threading.Event()

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        if b"/hangs" in head:
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "v"\r\nContent-Length: 10\r\n\r\nhello')
            waiting.set()
            server.drip(connection, b"x", 5)
        else:
            waiting.wait(5)
            time.sleep(0.1)
            connection.sendall(b"HTTP/1.1 404 OK\r\nContent-Length: 0\r\n\r\n")
        return False

    jobs = [Job(path=path, part=tmp_path / path, limit=10) for path in ("hangs", "missing")]
    with ScriptedServer(script) as server:
        started = time.monotonic()
        with pytest.raises(NotFound):
            list(loader(server, stall_seconds=20).download_many(jobs))
        assert time.monotonic() - started < 5
    assert (tmp_path / "hangs").read_bytes() == b"hello"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download")]


def test_nothing_of_a_strange_server_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer(says(b"HTTP/1.1 200 OK\r\nno colon here\r\nContent-Length: 5\r\n\r\nhello")) as server:
        refusal(lambda: loader(server).read("x", limit=5))
    assert not [record for record in caplog.records if record.name.startswith("urllib3")]


def test_memory_stays_small_whatever_comes(tmp_path: Path) -> None:
    size = 48 << 20

    def script(number: int, connection: socket.socket, head: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            connection.sendall(block)
        return False

    with ScriptedServer(script) as server:
        downloads = loader(server, stall_seconds=5)
        tracemalloc.start()
        try:
            downloads.download("x", tmp_path / "part", limit=size)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert downloads.received == size
    assert peak < 4 << 20, f"{peak >> 10} KiB"
