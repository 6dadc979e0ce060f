"""Hostile connections against a live agent: heads and bodies that lie about their size, never end, or are cut short.

Another client's requests go on being answered meanwhile, and the agent's memory stays bounded. What the connection
itself does is tested closely in `tests/unit/device_agent/api/test_protocol.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support import bundles
from tests.support.agent import Agent
from tests.support.edge import drain, one_answer, statuses
from tests.support.hostile import GOOD, Bystander, connect, resident_bytes, settings

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n"
LIMIT = 8 << 20
MIB = 1 << 20
MAX_CONNECTIONS = 150
SETTINGS = f"""
[server]
header_seconds = 0.5
body_seconds = 1.0
max_connections = {MAX_CONNECTIONS}
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("connections")
    with Agent(bundle=bundles.make_bundle(folder), arguments=settings(folder, SETTINGS)) as running:
        with Bystander(running, growth=8 * LIMIT):
            yield running
        assert running.process.poll() is None, running.log
    assert "Traceback" not in running.log
    assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def client(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=30, verify=False) as connected:
        yield connected


@pytest.fixture
def connection(agent: Agent, client: httpx.Client) -> Iterator[socket.socket]:
    """A connection; whatever is done on it, no request of it is left in flight."""
    with connect(agent) as connected:
        yield connected
    deadline = time.monotonic() + 5
    while True:
        found = re.search(r"^edgeonnx_requests_in_flight\S* (\d+)", client.get("/metrics").text, re.MULTILINE)
        assert found is not None
        if int(found[1]) <= 1:  # the bystander's
            return
        assert time.monotonic() < deadline, "a request of a client that left is still in flight"
        time.sleep(0.02)


def error_of(answer: bytes) -> str:
    """The message of an answer in OpenAI's form."""
    error = json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


def test_a_body_announced_as_too_large_is_refused_before_it_is_sent(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\n")
    answer = one_answer(connection)
    assert statuses(answer) == [413]
    assert "at most 8,388,608 bytes; found 99999999999 bytes announced" in error_of(answer)


@pytest.mark.parametrize("length", [b"9" * 400, b"-1", b"abc", b"1e3", b"", b"5, 5"])
def test_a_length_that_is_no_number(connection: socket.socket, length: bytes) -> None:
    connection.sendall(HEAD + b"Content-Length: " + length + b"\r\n\r\n" + GOOD)
    answer = drain(connection)
    assert statuses(answer) == [400]
    assert "not valid HTTP/1.1" in error_of(answer)


def test_a_chunked_body_is_counted_while_it_comes_and_memory_stays_bounded(
    agent: Agent, connection: socket.socket
) -> None:
    before = resident_bytes(agent)
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    with contextlib.suppress(OSError):  # the agent answered and closed
        for _ in range(64):
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
    assert statuses(one_answer(connection)) == [413]
    assert resident_bytes(agent) - before < 5 * LIMIT


def test_a_body_in_tiny_pieces_costs_no_more_than_its_bytes(agent: Agent, connection: socket.socket) -> None:
    before = resident_bytes(agent)
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(OSError):  # the second that a body may take is over
        for _ in range(60):
            connection.sendall(b"1\r\n \r\n" * 20_000)
    assert statuses(one_answer(connection))[0] in (400, 408)
    assert resident_bytes(agent) - before < 5 * LIMIT


def test_a_client_that_sends_everything_before_it_reads_gets_the_413(client: httpx.Client) -> None:
    for size in (LIMIT + 1, 3 * LIMIT):
        response = client.post("/v1/embeddings", content=b" " * size)
        assert response.status_code == 413
        assert "at most 8,388,608 bytes" in response.json()["error"]["message"]


def test_a_body_of_exactly_the_limit_is_read(client: httpx.Client) -> None:
    response = client.post("/v1/embeddings", content=GOOD + b" " * (LIMIT - len(GOOD)))
    assert response.status_code == 200


def test_expect_continue_with_a_body_that_is_too_large(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert statuses(one_answer(connection)) == [413]


def test_a_body_cut_short(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + GOOD)
    connection.shutdown(socket.SHUT_WR)
    answer = drain(connection)
    assert statuses(answer) == [400]
    assert "ended before the request was complete" in error_of(answer)


def test_a_whole_request_of_a_client_that_stops_sending(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
    connection.shutdown(socket.SHUT_WR)
    assert statuses(drain(connection))[-1] == 200


def test_a_client_that_leaves_in_the_middle_of_its_body(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + GOOD)
    connection.close()


def test_a_client_that_leaves_without_reading_its_answer(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
    connection.close()


def test_more_body_than_announced_is_not_taken_for_part_of_it(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD + b"GARBAGE\r\n\r\n")
    assert statuses(drain(connection)) == [200, 400]


def test_less_body_than_announced_is_waited_for_and_no_longer(connection: socket.socket) -> None:
    started = time.monotonic()
    connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (len(GOOD) + 1) + GOOD)
    answer = drain(connection)
    assert statuses(answer) == [408]
    assert "expected all of it within 1 s" in error_of(answer)
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"X: " + b"a" * 200_000, 431),
        (HEAD + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431),
        (HEAD + b"a: b\r\n" * 10_000 + b"\r\n", 431),
        (HEAD + b"".join(b"a%d: b\r\n" % i for i in range(200)) + b"\r\n", 431),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 400_000, 431),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else str(value),
)
def test_what_is_no_request(connection: socket.socket, data: bytes, status: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(data)
    answer = drain(connection)
    assert statuses(answer) == [status]
    assert b"content-type: application/json" in answer


def test_slow_heads_hold_up_nobody_and_are_closed(agent: Agent) -> None:
    connections = [connect(agent) for _ in range(MAX_CONNECTIONS // 2)]
    for connection in connections:
        connection.sendall(HEAD + b"X: ")
    started = time.monotonic()
    for connection in connections:
        assert statuses(drain(connection)) == [408]
        connection.close()
    assert time.monotonic() - started < 5


def test_slow_bodies_hold_up_nobody_and_are_closed(agent: Agent) -> None:
    connections = [connect(agent) for _ in range(MAX_CONNECTIONS // 2)]
    for connection in connections:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + GOOD)
    for connection in connections:
        assert statuses(drain(connection)) == [408]
        connection.close()


def test_connections_beyond_the_number_are_refused_and_room_comes_back(agent: Agent) -> None:
    connections = [connect(agent) for _ in range(MAX_CONNECTIONS + 50)]
    answers = [drain(connection) for connection in connections]  # those that say nothing are closed after half a second
    refused = [answer for answer in answers if answer]
    # A client that is refused while it sends may get a reset instead of the answer; these sent nothing.
    assert 45 <= len(refused) <= 55
    assert all(statuses(answer) == [503] for answer in refused)
    for connection in connections:
        connection.close()


def test_a_slow_client_within_its_time_is_answered(connection: socket.socket) -> None:
    connection.sendall(HEAD[:10])
    time.sleep(0.1)
    connection.sendall(HEAD[10:] + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD[:5])
    time.sleep(0.3)
    connection.sendall(GOOD[5:])
    assert statuses(one_answer(connection)) == [200]


def test_many_pipelined_requests_on_one_connection(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
    found = statuses(drain(connection))
    assert found[:-1] == [200] * (len(found) - 1)
    assert found[-1] == 400
