from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from device_agent.api.edge.protocol import allow_connections
from device_agent.api.edge.refusals import MAX_HEADERS, MAX_PIPELINED, fault_in_head
from device_agent.config import Limits, ServerConfig
from tests.support.edge import Edge, drain, one_answer, serving, statuses

SERVER = ServerConfig(header_seconds=0.15, body_seconds=0.2, max_connections=12)
KEEP_ALIVE = 0.3
LIMITS = Limits(max_header_bytes=4096, max_body_bytes=100_000)
HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: x\r\n"

LOOPS = [
    "asyncio",
    pytest.param(
        "uvloop", marks=pytest.mark.skipif(not importlib.util.find_spec("uvloop"), reason="uvloop is not installed")
    ),
]


@pytest.fixture(scope="module", params=LOOPS)
def shared(request: pytest.FixtureRequest) -> Iterator[Edge]:
    with serving(server=SERVER, limits=LIMITS, keep_alive=KEEP_ALIVE, loop=request.param) as running:
        yield running


@pytest.fixture
def edge(shared: Edge) -> Iterator[Edge]:
    """The server, which still answers whatever the test did to it."""
    for record in (shared.seen, shared.left, shared.refused):
        record.clear()
    shared.hold.clear()
    yield shared
    assert statuses(shared.ask(GET + CLOSE + b"\r\n")) == [200]


def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def message_of(data: bytes) -> str:
    """The message of the last answer, which has to be in the protocol's form."""
    head, _, body = data.rpartition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "Content-Length"),
        (b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "Duplicate Content-Length"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Duplicate Content-Length"),
        (b"Content-Length: 5, 5\r\n\r\nhello", "Content-Length"),
        (b"Content-Length: +5\r\n\r\nhello", "Content-Length"),
        (b"Content-Length: 0x5\r\n\r\nhello", "Content-Length"),
        (b"Content-Length : 5\r\n\r\nhello", "header"),
        (b"Content-Length: 99999999999999999999999\r\n\r\n", "overflow"),
        (b"A: b\nContent-Length: 5\r\n\r\nhello", "CR"),
        (b"A: b\r\n c\r\n\r\n", "whitespace"),
        (b"A: b\0c\r\n\r\n", "header value"),
        (b": x\r\n\r\n", "header"),
        (b"A B: x\r\n\r\n", "header"),
        (b"Transfer-Encoding: chunked, gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (b"Host: y\r\n\r\n", "Host: expected exactly one; found 2"),
    ],
)
def test_heads_that_two_servers_could_read_differently(edge: Edge, rest: bytes, found: str) -> None:
    answer = edge.ask(HEAD + rest)
    assert statuses(answer) == [400]
    assert found in message_of(answer)
    assert edge.seen == []
    assert edge.refused == [400]


@pytest.mark.parametrize(
    "rest",
    [
        b"zz\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"3\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
        b"\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
    ],
)
def test_chunks_that_are_none(edge: Edge, rest: bytes) -> None:
    answer = edge.ask(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + rest)
    assert statuses(answer) == [400]
    assert message_of(answer).startswith("the request is not valid HTTP/1.1; found ")
    assert edge.seen == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /x HTTP/1.1\r\n\r\n", 400),
        (b"GET /x\r\n\r\n", 400),
        (b"GET /x HTTP/9.9\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GARBAGE\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\nHost: x\n\n", 400),
        ("GET /ä HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 400),
        (b"GET \x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\n", 501),
        (b"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    ],
)
def test_requests_that_are_none(edge: Edge, data: bytes, status: int) -> None:
    answer = edge.ask(data)
    assert statuses(answer) == [status]
    assert message_of(answer)
    assert edge.seen == []


def test_openai_clients_get_a_refusal_in_openais_form(edge: Edge) -> None:
    answer = edge.ask(b"POST /v1/embeddings?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n")
    error = json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "bad_request"
    assert re.search(rb"x-request-id: \S+\r\n", answer)


@pytest.mark.parametrize(
    "data",
    [
        GET + b"X: " + b"a" * 5000 + b"\r\n\r\n",
        GET + b"X: " + b"a" * 500_000,
        GET + b"x" * 5000 + b": a\r\n\r\n",
        GET + b"".join(b"X-%d: aaaaaaaaaa\r\n" % i for i in range(99)) * 3 + b"\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\r\n" * 5000,
    ],
    ids=["value", "endless value", "name", "sum", "target", "empty lines"],
)
def test_heads_beyond_the_bound(edge: Edge, data: bytes) -> None:
    answer = edge.ask(data)
    assert statuses(answer) == [431]
    assert "expected at most" in message_of(answer)
    assert edge.seen == []


def test_a_head_that_grows_without_end_in_small_pieces(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(GET + b"X: ")
        for _ in range(50):
            connection.sendall(b"a" * 100)
            time.sleep(0.001)
        assert statuses(drain(connection)) == [431]


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize(
    "coding", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
)
def test_requests_that_come_in_small_pieces(edge: Edge, coding: bytes, step: int) -> None:
    data = HEAD + b"X: " + b"a" * 300 + b"\r\n" + coding
    data += HEAD + CLOSE + coding
    with edge.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), step):
            connection.sendall(data[start : start + step])
        assert statuses(drain(connection)) == [200, 200]
    assert edge.seen == [("/x", 5), ("/x", 5)]


def test_the_count_of_headers(edge: Edge) -> None:
    within = b"".join(b"a%d: b\r\n" % i for i in range(MAX_HEADERS - 2))
    assert statuses(edge.ask(GET + CLOSE + within + b"\r\n")) == [200]
    assert statuses(edge.ask(GET + CLOSE + within + b"b: c\r\n\r\n")) == [431]


def test_a_head_within_the_bound_that_arrives_with_others(edge: Edge) -> None:
    one = GET + b"X: " + b"a" * 3000 + b"\r\n\r\n"
    last = GET + CLOSE + b"X: " + b"a" * 3000 + b"\r\n\r\n"
    assert statuses(edge.ask(one * 5 + last)) == [200] * 6


def test_trailers_never_become_headers_and_are_bounded(edge: Edge) -> None:
    chunked = HEAD + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
    answer = edge.ask(chunked + b"Authorization: Bearer x\r\n\r\n")
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["headers"] == ["connection", "host", "transfer-encoding"]
    assert statuses(edge.ask(chunked + b"X: " + b"a" * 500_000)) == [431]


def test_chunk_extensions_are_bounded(edge: Edge) -> None:
    head = HEAD + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
    assert statuses(edge.ask(head + b"5;a=b\r\nhello\r\n0\r\n\r\n")) == [200]
    assert statuses(edge.ask(head + b"5;" + b"a" * 500_000)) == [431]


def test_a_head_that_comes_too_slowly(edge: Edge) -> None:
    started = time.monotonic()
    answer = edge.ask(GET + b"X: ")
    assert statuses(answer) == [408]
    assert "within 0.15 s" in message_of(answer)
    assert 0.1 < time.monotonic() - started < 2


def test_a_head_that_trickles(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(GET)
        connection.settimeout(0.02)
        answer = b""
        started = time.monotonic()
        while not answer and time.monotonic() - started < 4:
            connection.sendall(b"X: y\r\n")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(4096)
        assert statuses(answer) == [408]


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(edge: Edge) -> None:
    assert edge.ask(b"") == b""


def test_an_idle_connection_is_closed_after_the_keep_alive_time(edge: Edge) -> None:
    started = time.monotonic()
    assert statuses(edge.ask(GET + b"\r\n")) == [200]
    assert 0.25 < time.monotonic() - started < 2


def test_an_empty_line_does_not_keep_a_connection_open(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(GET + b"\r\n")
        assert statuses(one_answer(connection)) == [200]
        started = time.monotonic()
        connection.sendall(b"\r\n")
        assert statuses(drain(connection)) == [408]
        assert time.monotonic() - started < 0.29


def test_a_body_that_comes_too_slowly(edge: Edge) -> None:
    answer = edge.ask(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhello")
    assert statuses(answer) == [408]
    assert "the body did not arrive in time" in message_of(answer)


@pytest.mark.parametrize("head", [b"Content-Length: 1000\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel"])
def test_half_a_request_is_answered_with_400(edge: Edge, head: bytes) -> None:
    answer = edge.ask(HEAD + head, shut=True)
    assert statuses(answer) == [400]
    assert "ended before the request was complete" in message_of(answer)
    assert edge.left == ["/x"]
    assert edge.seen == []


def test_half_a_head_is_answered_with_400(edge: Edge) -> None:
    assert statuses(edge.ask(GET + b"X:", shut=True)) == [400]


def test_a_client_that_shuts_down_its_sending_side_gets_its_answer(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(b"POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.1)  # the agent has looked for a reset twice
        assert edge.left == []
        edge.hold.set()
        answer = drain(connection)
    assert statuses(answer) == [100, 200]
    assert edge.seen == [("/hold", 5)]


def test_an_old_client_that_shuts_down_gets_no_interim_response(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(b"POST /hold HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        edge.hold.set()
        assert statuses(drain(connection)) == [200]


@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_while_it_waits_is_noticed_at_once(edge: Edge, reset: bool) -> None:
    with edge.connect() as connection:
        connection.sendall(b"POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
        time.sleep(0.1)
        assert edge.left == []
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    until(lambda: edge.left == ["/hold"], 0.5)


def test_a_malformed_request_is_answered_after_the_good_one_before_it(edge: Edge) -> None:
    good = b"POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    with edge.connect() as connection:
        connection.sendall(good + b"GARBAGE\r\n\r\n")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        edge.hold.set()
        answer = drain(connection)
    assert statuses(answer) == [200, 400]
    assert edge.seen == [("/v1/hold", 5)]


def test_pipelined_requests_are_answered_in_order_and_their_number_is_bounded(edge: Edge) -> None:
    paths = [b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(MAX_PIPELINED)]
    answer = edge.ask(b"".join(paths) + GET + CLOSE + b"\r\n")
    assert statuses(answer) == [200] * (MAX_PIPELINED + 1)
    assert [path for path, _ in edge.seen] == [*(f"/{i}" for i in range(MAX_PIPELINED)), "/x"]
    assert statuses(edge.ask(b"".join(paths) + GET + b"\r\n" + GET + b"\r\n"))[-1] == 400


@pytest.mark.parametrize("extra", [b"Upgrade: h2c\r\n", b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n"])
def test_an_offer_to_upgrade_is_ignored_and_the_request_served(edge: Edge, extra: bytes) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n" + extra
    answer = edge.ask(head + b"Content-Length: 5\r\n\r\nhello" + GET + CLOSE + b"\r\n")
    assert statuses(answer) == [200, 200]
    assert edge.seen == [("/x", 5), ("/x", 0)]
    assert b"upgrade" not in answer


def test_an_early_answer_does_not_wait_for_the_body_and_the_rest_is_thrown_away(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n")
        assert statuses(one_answer(connection)) == [200]
        connection.sendall(b"a" * 500_000)
        connection.sendall(GET + b"\r\n")
        assert statuses(one_answer(connection)) == [200]


@pytest.mark.parametrize("sends", [0, 10])
def test_a_rest_of_a_body_that_never_ends_closes_the_connection(edge: Edge, sends: int) -> None:
    with edge.connect() as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n" + b"a" * sends)
        assert statuses(one_answer(connection)) == [200]
        started = time.monotonic()
        assert drain(connection) == b""
        assert time.monotonic() - started < 0.29


def test_an_idle_connection_after_an_early_answer_is_closed_too(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        assert statuses(one_answer(connection)) == [200]
        connection.sendall(b"hello")
        started = time.monotonic()
        assert drain(connection) == b""
        assert 0.25 < time.monotonic() - started < 2


def test_a_client_that_never_reads_its_answer_loses_the_connection(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /x?20000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: bool(edge.seen))
        until(lambda: not edge.server.server_state.connections)


def test_too_many_connections(edge: Edge) -> None:
    connections = [edge.connect() for _ in range(SERVER.max_connections)]
    try:
        until(lambda: len(edge.server.server_state.connections) == SERVER.max_connections)
        answer = edge.ask(b"")
        assert statuses(answer) == [503]
        assert b"retry-after: 1\r\n" in answer
        assert "too many connections" in message_of(answer)
        assert edge.refused == [503]
    finally:
        for connection in connections:
            connection.close()
    until(lambda: not edge.server.server_state.connections)


def test_expect_continue(edge: Edge) -> None:
    with edge.connect() as connection:
        connection.sendall(HEAD + CLOSE + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert statuses(connection.recv(100)) == [100]
        connection.sendall(b"hello")
        assert statuses(drain(connection)) == [200]


def test_faults_in_heads_that_the_parser_takes() -> None:
    host = (b"host", b"x")

    def fault(version: str, *headers: tuple[bytes, bytes]) -> bool:
        return fault_in_head(list(headers), lambda: version) is not None

    assert not fault("1.1", host)
    assert not fault("1.0")
    assert not fault("1.0", host)
    assert not fault("1.1", host, (b"transfer-encoding", b" Chunked "))
    assert fault("1.1")
    assert fault("0.9")
    assert fault("1.1", host, host)
    assert fault("1.1", host, (b"transfer-encoding", b"xchunked"))
    assert fault("1.0", host, (b"transfer-encoding", b"chunked"))


def test_the_limit_of_open_files_is_raised_but_never_lowered() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(600, hard), hard))
        assert allow_connections(200) == min(712, hard)
        assert allow_connections(10) == min(712, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
