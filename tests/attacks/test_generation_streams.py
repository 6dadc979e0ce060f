"""Clients of streams that read slowly, or not at all, at the edge alone; see tests/integration for whole agents."""

from __future__ import annotations

import socket
import time

import pytest

from device_agent.config import ServerConfig
from tests.support.edge import Edge, serving

SECONDS = 0.4
"""How long a client may read nothing, and a head may take to come."""


@pytest.fixture(params=["asyncio", "uvloop"])
def edge(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    with serving(server=ServerConfig(body_seconds=SECONDS, header_seconds=SECONDS), loop=request.param) as running:
        yield running


def ask(edge: Edge, path: str) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", edge.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return connection


def wait_for_leaving(edge: Edge, seconds: float) -> float:
    started = time.monotonic()
    while not edge.left and time.monotonic() < started + seconds:
        time.sleep(0.01)
    assert edge.left == ["/stream"]
    return time.monotonic() - started


def test_a_client_that_reads_nothing_is_cut(edge: Edge) -> None:
    with ask(edge, "/stream"):
        assert SECONDS / 2 < wait_for_leaving(edge, 10) < 8


def test_a_client_that_reads_slowly_is_not(edge: Edge) -> None:
    """The kernel tells of room for more only now and then, so what waits in the agent does not move for long."""
    with ask(edge, "/stream") as connection:
        end = time.monotonic() + 4 * SECONDS
        while time.monotonic() < end:
            assert connection.recv(2048)
            time.sleep(0.02)
        assert not edge.left
    wait_for_leaving(edge, 10)


def test_a_client_that_stops_reading_is_cut(edge: Edge) -> None:
    with ask(edge, "/stream") as connection:
        connection.recv(2048)
        wait_for_leaving(edge, 10)


def test_a_silent_stream_is_not_cut(edge: Edge) -> None:
    with ask(edge, "/quiet") as connection:
        time.sleep(3 * SECONDS)
        edge.hold.set()
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(4096)
    assert b"first" in data
    assert b"last" in data
    assert not edge.left
