"""The client process of `bench.serving_load`: it takes a load from stdin and writes its outcome to stdout.

One thread, sockets polled by epoll, no event loop around them: what the client computes, the server on the same cores
lacks.
"""

from __future__ import annotations

import binascii
import gc
import pickle
import re
import select
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.serving_load import GIVE_UP, Load, Outcome, arrivals

RECEIVE = 1 << 18  # more than an answer: one system call takes it whole
CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d+)")
CLOSE = re.compile(rb"(?i)\r\nconnection:[ \t]*close")
EMBEDDING = b'"embedding":"'
NUMBERS = 12
PREFIX = 512  # bytes of a body in which the first numbers of its first embedding lie
# A text's embedding depends in the last bits on what else is in its batch; two texts differ by a hundred times more.
TOLERANCE = 1e-3
OK, REFUSED, LATE = 200, 429, 504


@dataclass(slots=True, kw_only=True, eq=False)
class _Connection:
    """A connection with at most one request in flight."""

    socket: socket.socket
    message: int = -1  # the one in flight; -1: none
    scheduled: float = 0.0
    sent: float = 0.0
    status: int = 0
    left: int = -1  # bytes of the body that are still to come; -1: the head is not complete
    head: bytes = b""
    last: bool = False  # the server closes it after this answer
    body: bytes = b""  # its beginning, if embeddings are compared


class _BrokenError(Exception):
    """The connection is of no more use; the message says why."""


@dataclass(kw_only=True)
class Client:
    """Connections, and the record of what was answered on them."""

    load: Load
    opened_at: float = 0.0
    closed_at: float = float("inf")
    idle: list[_Connection] = field(default_factory=list)
    connections: dict[int, _Connection] = field(default_factory=dict)
    latencies: dict[int, list[float]] = field(default_factory=lambda: {OK: [], REFUSED: [], LATE: []})
    lags: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    first: dict[int, tuple[float, ...]] = field(default_factory=dict)
    texts: int = 0
    texts_in_time: int = 0
    answered: int = 0
    different: int = 0

    def __post_init__(self) -> None:
        self._poll = select.epoll()
        # One buffer for all: a new one of this size for each answer would cost more than everything else together.
        self._buffer = bytearray(RECEIVE)
        self._view = memoryview(self._buffer)
        host, port = self.load.address.rsplit(":", 1)
        self._target = (host, int(port))

    def close(self) -> None:
        """Close every connection."""
        for connection in self.connections.values():
            connection.socket.close()
        self._poll.close()

    def open(self) -> _Connection:
        """A new connection."""
        sock = socket.create_connection(self._target, timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(socket=sock)
        self.connections[sock.fileno()] = connection
        self._poll.register(sock.fileno(), select.EPOLLIN)
        return connection

    def send(self, connection: _Connection, message: int, scheduled: float, now: float) -> None:
        """Send a message; what breaks meanwhile is recorded."""
        connection.message, connection.scheduled, connection.sent = message, scheduled, now
        connection.left, connection.head = -1, b""
        try:
            connection.socket.sendall(self.load.messages[message].data)
        except OSError as error:
            self._broken(connection, type(error).__name__)

    def answers(self, timeout: float) -> Iterator[_Connection]:
        """Wait for at most `timeout` seconds; the connections whose answer has come whole."""
        for number, _ in self._poll.poll(max(timeout, 0.0)):
            connection = self.connections[number]
            try:
                done = self._receive(connection)
            except (OSError, _BrokenError) as error:
                self._broken(connection, str(error) or type(error).__name__)
                continue
            if not done:
                continue
            self._record(connection, time.perf_counter())
            connection.message = -1
            if connection.last:
                self._drop(connection)
                yield self.open()
            else:
                yield connection

    def _receive(self, connection: _Connection) -> bool:
        """Take what has come; True if that completes the answer."""
        count = connection.socket.recv_into(self._buffer)
        if not count:
            raise _BrokenError("connection closed")
        if connection.message < 0:
            raise _BrokenError("an answer to nothing")
        start = self._head(connection, count) if connection.left < 0 else 0
        if start < 0:
            return False
        connection.left -= count - start
        if connection.left < 0:
            raise _BrokenError("more bytes than Content-Length")
        if self.load.compare and len(connection.body) < PREFIX:
            connection.body += self._view[start:count][:PREFIX]
        return connection.left == 0

    def _head(self, connection: _Connection, count: int) -> int:
        """Read the head; where the body begins in the buffer, -1 as long as the head is not complete."""
        end = self._buffer.find(b"\r\n\r\n", 0, count)
        if connection.head or end < 0:  # it came in parts, which is rare
            before = len(connection.head)
            connection.head += self._buffer[:count]
            end = connection.head.find(b"\r\n\r\n")
            if end < 0:
                return -1
            head, start = connection.head[:end], end + 4 - before
        else:
            head, start = bytes(self._view[:end]), end + 4
        connection.status, connection.left = read_head(head)
        connection.last = CLOSE.search(head) is not None
        connection.body = b""
        return start

    def _record(self, connection: _Connection, now: float) -> None:
        self.answered += 1
        status, message = connection.status, self.load.messages[connection.message]
        if self.load.compare and status == OK:
            numbers = first_numbers(connection.body)
            self.different += not alike(numbers, self.first.setdefault(connection.message, numbers))
        if not self._counts(connection.scheduled if self.load.rate else now):
            return
        latency = now - connection.scheduled
        self.lags.append(connection.sent - connection.scheduled)
        if status not in self.latencies:
            self.errors[f"status {status}"] += 1
            return
        self.latencies[status].append(latency)
        if status == OK:
            self.texts += message.texts
            if self.load.deadline is None or latency <= self.load.deadline:
                self.texts_in_time += message.texts

    def _counts(self, moment: float) -> bool:
        return self.opened_at <= moment < self.closed_at

    def _broken(self, connection: _Connection, why: str) -> None:
        """The connection is lost; a request in flight with it."""
        if connection.message >= 0 and self._counts(connection.scheduled):
            self.errors[why] += 1
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._poll.unregister(connection.socket.fileno())
        del self.connections[connection.socket.fileno()]
        connection.socket.close()
        if connection in self.idle:
            self.idle.remove(connection)

    def outcome(self, client_cpu_seconds: float) -> Outcome:
        """The record as a result."""
        errors = self.errors + Counter({"no answer": sum(self._unanswered())})
        ok, refused, late = (len(self.latencies[status]) for status in (OK, REFUSED, LATE))
        return Outcome(
            seconds=min(self.closed_at, time.perf_counter()) - self.opened_at,
            sent=ok + refused + late + sum(errors.values()),
            ok=ok,
            refused=refused,
            late=late,
            texts=self.texts,
            texts_in_time=self.texts_in_time,
            errors=dict(errors),
            latencies=np.array(self.latencies[OK]),
            refusals=np.array(self.latencies[REFUSED]),
            lags=np.array(self.lags),
            different=self.different,
            client_cpu_seconds=client_cpu_seconds,
        )

    def _unanswered(self) -> Iterator[bool]:
        """For each request that is still in flight whether it counts; in closed loop that is no failure."""
        if self.load.rate is not None:
            for connection in self.connections.values():
                yield connection.message >= 0 and self._counts(connection.scheduled)


def read_head(head: bytes) -> tuple[int, int]:
    """Status and length of the body, from an answer's head without the empty line."""
    length = CONTENT_LENGTH.search(head)
    if not head.startswith(b"HTTP/1.") or length is None:
        raise _BrokenError(f"no answer with a Content-Length: {head[:80]!r}")
    return int(head[9:12]), int(length[1])


def first_numbers(body: bytes) -> tuple[float, ...]:
    """The first numbers of the first embedding in an answer, which is base64 of float32; none if there are not so many.

    Args:
        body: The beginning of the answer.
    """
    at = body.find(EMBEDDING) + len(EMBEDDING)
    coded = body[at : at + NUMBERS * 4 * 4 // 3]
    if at < len(EMBEDDING) or len(coded) < NUMBERS * 4 * 4 // 3:
        return ()
    return struct.unpack(f"<{NUMBERS}f", binascii.a2b_base64(coded))


def alike(found: Sequence[float], first: Sequence[float]) -> bool:
    """Whether two embeddings are of the same text; without numbers they are not."""
    return len(found) == len(first) > 0 and all(
        abs(one - other) < TOLERANCE for one, other in zip(found, first, strict=True)
    )


def closed_loop(load: Load) -> Outcome:
    """Keep every connection busy."""
    client = Client(load=load)
    begin = time.perf_counter()
    client.opened_at, end = begin + load.warm_up, begin + load.warm_up + load.seconds
    client.closed_at = end
    place, cpu = 0, -1.0
    for _ in range(load.connections):
        client.send(client.open(), place % len(load.messages), begin, time.perf_counter())
        place += 1
    while (now := time.perf_counter()) < end and client.connections:
        if cpu < 0 and now >= client.opened_at:
            cpu = time.process_time()
        if load.requests is not None and client.answered >= load.requests:
            client.closed_at = now
            break
        for connection in client.answers(end - now):
            moment = time.perf_counter()
            client.send(connection, place % len(load.messages), moment, moment)
            place += 1
    outcome = client.outcome(time.process_time() - cpu if cpu >= 0 else 0.0)
    client.close()
    return outcome


def open_loop(load: Load) -> Outcome:
    """Send at the drawn times."""
    assert load.rate is not None
    client = Client(load=load)
    for _ in range(min(load.connections, 32)):
        client.idle.append(client.open())
    begin = time.perf_counter()
    times = (begin + arrivals(load.rate, load.warm_up + load.seconds, load.seed)).tolist()
    client.opened_at, client.closed_at = begin + load.warm_up, begin + load.warm_up + load.seconds
    waiting: deque[tuple[int, float]] = deque()
    place, cpu, spent = 0, -1.0, 0.0
    last = client.closed_at + GIVE_UP
    while (now := time.perf_counter()) < last:
        if cpu < 0 and now >= client.opened_at:
            cpu = time.process_time()
        if not spent and now >= client.closed_at:
            spent = time.process_time() - cpu
        while place < len(times) and times[place] <= now:
            waiting.append((place % len(load.messages), times[place]))
            place += 1
        _send_waiting(client, waiting)
        if place == len(times) and not waiting and len(client.idle) == len(client.connections):
            break
        wake = times[place] if place < len(times) else last
        client.idle.extend(client.answers(wake - time.perf_counter()))
    client.errors["no connection"] += sum(client.opened_at <= scheduled < client.closed_at for _, scheduled in waiting)
    outcome = client.outcome(spent)
    client.close()
    return outcome


def _send_waiting(client: Client, waiting: deque[tuple[int, float]]) -> None:
    """Send what is due, as long as there are connections."""
    while waiting and (client.idle or len(client.connections) < client.load.connections):
        message, scheduled = waiting.popleft()
        connection = client.idle.pop() if client.idle else client.open()
        client.send(connection, message, scheduled, time.perf_counter())


def main() -> None:
    """Load the server, and report."""
    load = pickle.loads(sys.stdin.buffer.read())
    gc.disable()
    outcome = (closed_loop if load.rate is None else open_loop)(load)
    sys.stdout.buffer.write(pickle.dumps(outcome))


if __name__ == "__main__":
    main()
