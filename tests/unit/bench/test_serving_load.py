from __future__ import annotations

import base64
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from bench import serving_client
from bench.serving_client import alike, closed_loop, first_numbers, open_loop, read_head
from bench.serving_load import Load, Message, Outcome, arrivals, percentile_ms, pooled, post, run
from bench.serving_texts import mixed

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
LATE = b"HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
Answer = Callable[[int], bytes]


@contextmanager
def server(answer: Answer, *, parts: int = 1) -> Iterator[str]:
    """A server that gives the answers that a test wants: `answer` gets the number of the request; b"" hangs up."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    count = iter(range(1_000_000))
    lock = threading.Lock()

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(1 << 16):
                with lock:  # one at a time: a server that stalls does so for everyone
                    data = answer(next(count))
                if not data:
                    return
                for part in np.array_split(np.frombuffer(data, dtype=np.uint8), parts):
                    connection.sendall(part.tobytes())
                    time.sleep(0.002 * (parts > 1))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def load(address: str, **changed: object) -> Load:
    message = Message(data=post("/v1/embeddings", {"input": "text"}), texts=3)
    settings: dict[str, object] = {"seconds": 0.2, "warm_up": 0.0, "connections": 2, **changed}
    return Load(address=address, messages=(message,), **settings)  # type: ignore[arg-type]


def test_arrivals_are_those_of_their_seed_and_rate() -> None:
    times = arrivals(200.0, 10.0, seed=7)
    assert (np.diff(times) > 0).all()
    assert times[0] >= 0
    assert times[-1] < 10
    assert len(times) == pytest.approx(2000, rel=0.06)
    assert np.array_equal(times, arrivals(200.0, 10.0, seed=7))
    assert not np.array_equal(times, arrivals(200.0, 10.0, seed=8))


def test_intervals_between_arrivals_are_exponential() -> None:
    intervals = np.diff(arrivals(1000.0, 20.0, seed=7))
    assert intervals.std() == pytest.approx(intervals.mean(), rel=0.05)  # equal for this distribution, 0 for a clock


def test_percentiles_are_values_that_were_measured() -> None:
    seconds = np.arange(1, 101) / 1000
    assert [percentile_ms(seconds, percent) for percent in (50, 99, 100)] == pytest.approx([50.0, 99.0, 100.0])
    assert np.isnan(percentile_ms(np.array([]), 50))


def test_pooled_windows_add_up() -> None:
    one = Outcome(
        seconds=2.0,
        sent=10,
        ok=4,
        refused=3,
        late=2,
        texts=40,
        texts_in_time=20,
        errors={"closed": 1},
        latencies=np.full(4, 0.1),
        refusals=np.full(3, 0.01),
        lags=np.zeros(10),
        client_cpu_seconds=1e-3,
    )
    both = pooled([one, one])
    assert (both.sent, both.ok, both.refused, both.late, both.failed) == (20, 8, 6, 4, 2)
    assert (both.texts_per_second, both.goodput, both.client_microseconds) == (20.0, 10.0, pytest.approx(100.0))
    assert both.latency_ms(50) == pytest.approx(100.0)
    assert both.refusal_ms(50) == pytest.approx(10.0)


def test_head_gives_status_and_length() -> None:
    assert read_head(b"HTTP/1.1 429 Too Many\r\nX: y\r\nContent-Length: 17") == (429, 17)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"\x16\x03\r\ncontent-length: 3"])
def test_head_that_the_client_cannot_read_is_no_answer(head: bytes) -> None:
    with pytest.raises(Exception, match="no answer with a Content-Length"):
        read_head(head)


def answer_with(numbers: list[float]) -> bytes:
    return b'{"data":[{"embedding":"' + base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)) + b'"}]}'


def test_embeddings_of_another_text_are_noticed() -> None:
    numbers = [0.01 * index for index in range(16)]
    first = first_numbers(answer_with(numbers))
    assert first == pytest.approx(numbers[:12])
    assert alike(first_numbers(answer_with([value + 1e-7 for value in numbers])), first)
    assert not alike(first_numbers(answer_with(numbers[::-1])), first)
    assert not alike(first_numbers(b'{"error": "none"}'), first_numbers(b'{"error": "none"}'))


def test_statuses_are_told_apart() -> None:
    answers = [OK, REFUSED, LATE, BROKEN]
    with server(lambda number: answers[number % 4]) as address:
        outcome = closed_loop(load(address, connections=1))
    assert outcome.ok >= 5
    for found in (outcome.refused, outcome.late, outcome.failed):
        assert found == pytest.approx(outcome.ok, abs=1)
    assert set(outcome.errors) == {"status 500"}
    assert outcome.texts == 3 * outcome.ok
    assert len(outcome.refusals) == outcome.refused


def test_answers_in_many_parts_are_put_together() -> None:
    with server(lambda _: OK, parts=7) as address:
        outcome = closed_loop(load(address, connections=1))
    assert outcome.ok > 3
    assert outcome.failed == 0


def test_connection_that_breaks_under_a_request_is_a_failure() -> None:
    with server(lambda number: b"" if number == 2 else OK) as address:
        outcome = closed_loop(load(address, connections=1))
    assert (outcome.ok, outcome.failed) == (2, 1)


def test_connection_that_the_server_closes_in_order_is_replaced() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with server(lambda _: closing) as address:
        outcome = closed_loop(load(address))
    assert outcome.ok > 3
    assert outcome.failed == 0


def test_closed_loop_ends_after_the_requests_that_were_asked_for() -> None:
    with server(lambda _: OK) as address:
        outcome = closed_loop(load(address, requests=20, seconds=30.0))
    assert 20 <= outcome.ok <= 22
    assert outcome.seconds < 10


def test_open_loop_counts_the_wait_for_a_server_that_stalls() -> None:
    """What coordinated omission would hide: all requests that were due during a stall of 0.3 s waited for its end."""

    def stall(number: int) -> bytes:
        time.sleep(0.3 * (number == 3))
        return OK

    with server(stall) as address:
        outcome = open_loop(load(address, rate=100.0, seconds=0.5, connections=1, deadline=0.1))
    expected = len(arrivals(100.0, 0.5, seed=7))
    assert outcome.sent == outcome.ok == expected
    waited = int((outcome.latencies > 0.1).sum())
    assert waited >= 10
    assert outcome.texts_in_time == 3 * (expected - waited)


def test_open_loop_opens_connections_rather_than_wait_for_one() -> None:
    def stall(number: int) -> bytes:
        time.sleep(0.5 * (number == 0))
        return OK

    with server(stall) as address:
        outcome = open_loop(load(address, rate=300.0, seconds=0.2, connections=100))
    assert outcome.sent == outcome.ok == len(arrivals(300.0, 0.2, seed=7)) > 32
    assert outcome.lags.max() < 0.25


def test_requests_without_an_answer_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_client, "GIVE_UP", 0.2)

    def hang(number: int) -> bytes:
        time.sleep(0.6 * (number == 2))
        return OK

    with server(hang) as address:
        outcome = open_loop(load(address, rate=50.0, seconds=0.2, connections=1))
    assert outcome.ok == 2
    assert outcome.failed == outcome.sent - 2 == len(arrivals(50.0, 0.2, seed=7)) - 2


def test_client_runs_in_a_process_of_its_own() -> None:
    with server(lambda _: OK) as address:
        outcome = run(load(address))
    assert outcome.ok > 0
    assert outcome.client_cpu_seconds > 0


def test_client_that_finds_no_server_says_so() -> None:
    with pytest.raises(RuntimeError, match="ConnectionRefusedError"):
        run(load("127.0.0.1:9"))


def test_mixed_requests_hold_every_text_once_in_order() -> None:
    texts = [str(number) for number in range(1000)]
    groups = mixed(texts)
    assert [text for group in groups for text in group] == texts
    assert {len(group) for group in groups[:-1]} <= set(range(1, 33))
    assert len({len(group) for group in groups}) > 20
