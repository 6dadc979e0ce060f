"""Hostile connections against a live agent: bodies that lie about their size, that never end, that are cut short."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import bundles
from tests.support.agent import Agent

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"
GOOD = b'{"model": "tiny", "input": "the cat"}'
LIMIT = 8 << 20


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with Agent(bundle=bundles.make_bundle(tmp_path_factory.mktemp("connections"))) as running:
        yield running
        assert running.process.poll() is None, running.log
    assert "Traceback" not in running.log


@pytest.fixture
def connection(agent: Agent) -> Iterator[socket.socket]:
    host, port = agent.address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connected:
        yield connected
    response = httpx.post(f"{agent.url}/v1/embeddings", content=GOOD)
    assert response.status_code == 200
    # A client that left is noticed a moment later.
    deadline = time.monotonic() + 5
    while "edgeonnx_requests_in_flight 0.0" not in httpx.get(f"{agent.url}/metrics").text:
        assert time.monotonic() < deadline, "a request of a client that left is still in flight"
        time.sleep(0.02)


def resident_bytes(agent: Agent) -> int:
    """The largest resident size that the agent had so far."""
    text = Path(f"/proc/{agent.process.pid}/status").read_text(encoding="utf-8")
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def status_of(connection: socket.socket) -> int:
    """The status of the next response."""
    data = b""
    while b"\r\n" not in data:
        chunk = connection.recv(4096)
        if not chunk:
            return 0
        data += chunk
    return int(data.split(b" ", 2)[1])


def test_a_body_announced_as_too_large_is_refused_before_it_is_sent(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\n")
    assert status_of(connection) == 413


def test_a_body_announced_as_larger_than_any_number(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n")
    assert status_of(connection) in (400, 413)


@pytest.mark.parametrize("length", [b"-1", b"abc", b"1e3", b""])
def test_a_length_that_is_no_number(connection: socket.socket, length: bytes) -> None:
    connection.sendall(HEAD + b"Content-Length: " + length + b"\r\n\r\n" + GOOD)
    assert status_of(connection) == 400


def test_a_chunked_body_is_counted_while_it_comes_and_memory_stays_bounded(
    agent: Agent, connection: socket.socket
) -> None:
    before = resident_bytes(agent)
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    for _ in range(64):
        try:
            connection.sendall(chunk)
        except OSError:
            break  # the agent answered and closed
    else:
        connection.sendall(b"0\r\n\r\n")
    assert status_of(connection) == 413
    assert resident_bytes(agent) - before < 5 * LIMIT


def test_a_client_that_sends_everything_before_it_reads_gets_the_413(agent: Agent) -> None:
    for size in (LIMIT + 1, 3 * LIMIT):
        response = httpx.post(f"{agent.url}/v1/embeddings", content=b" " * size, timeout=30)
        assert response.status_code == 413
        assert "at most 8,388,608 bytes" in response.json()["error"]["message"]


def test_a_body_of_exactly_the_limit_is_read(agent: Agent) -> None:
    response = httpx.post(f"{agent.url}/v1/embeddings", content=GOOD + b" " * (LIMIT - len(GOOD)), timeout=30)
    assert response.status_code == 200


def test_expect_continue_with_a_body_that_is_too_large(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert status_of(connection) == 413


def test_a_body_cut_short(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + GOOD)
    connection.shutdown(socket.SHUT_WR)
    assert status_of(connection) in (0, 400)


def test_a_client_that_leaves_in_the_middle_of_its_body(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + GOOD)
    connection.close()


def test_a_client_that_leaves_without_reading_its_answer(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
    connection.close()


def test_more_body_than_announced_is_not_taken_for_part_of_it(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD + b"GARBAGE\r\n\r\n")
    assert status_of(connection) == 200


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", HEAD + b"X: " + b"a" * 200_000],
    ids=["tls", "garbage", "version", "header bomb"],
)
def test_what_is_no_http(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    assert status_of(connection) in (0, 400, 404, 431)


def test_two_lengths_that_differ(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello")
    assert status_of(connection) == 400


def test_a_slow_client_holds_up_nobody(agent: Agent, connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD[:5])
    started = time.monotonic()
    assert httpx.post(f"{agent.url}/v1/embeddings", content=GOOD).status_code == 200
    assert time.monotonic() - started < 2
    connection.sendall(GOOD[5:])
    assert status_of(connection) == 200
