"""A client that loads an HTTP server from a process of its own, in closed or in open loop.

- Closed loop: every connection sends its next request when the answer to the one before has come. It finds how much a
  server can do. What is answered within the window counts.
- Open loop: requests are sent at times that were drawn beforehand (a Poisson process with a fixed seed), whatever the
  server does. What is scheduled within the window counts, and latency begins at the scheduled time: a server that
  stalls pays for every request that had to wait meanwhile. (Measured from the moment of sending, a client that waits
  with the server would leave out just the requests that would have met the stall: coordinated omission.)

It shares the cores with the server that it measures, so it does as little as it can: bodies are made beforehand, of
an answer only the status and the length are read, sockets are polled without an event loop around them. What it costs
all the same is part of the outcome (`client_cpu_seconds`). Its clock wakes it up to 1 ms late: that counts as latency.

`run` starts it, hands it the load and waits for the outcome.
"""

from __future__ import annotations

import gc
import json
import pickle
import re
import select
import socket
import subprocess
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
RECEIVE = 1 << 18  # more than an answer: one system call takes it whole
CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d+)")
CLOSE = re.compile(rb"(?i)\r\nconnection:[ \t]*close")
OK, REFUSED, LATE = 200, 429, 504
GIVE_UP = 30.0  # seconds after the last request in which an answer may still come

Times = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One HTTP request, ready to be sent.

    Attributes:
        data: Head and body.
        texts: Texts in it.
    """

    data: bytes
    texts: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send.

    Attributes:
        address: `host:port`.
        messages: Sent in turn; after the last comes the first again.
        seconds: Length of the window that counts.
        warm_up: Seconds under the same load before the window.
        connections: Closed loop: connections, each with one request in flight. Open loop: the most connections; a
            request that finds none free waits for one, and that wait counts.
        rate: Open loop: mean requests per second. None: closed loop.
        requests: Closed loop: end after so many answers, if that comes before the window's end.
        deadline: Seconds in which an answer is worth something; None: always.
        seed: Of the arrival times.
        compare: Count answers that differ from the first answer to the same message.
    """

    address: str
    messages: tuple[Message, ...]
    seconds: float
    warm_up: float = 1.0
    connections: int = 1
    rate: float | None = None
    requests: int | None = None
    deadline: float | None = None
    seed: int = 7
    compare: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it; every count and latency is of the window.

    Attributes:
        seconds: Length of the window.
        sent: Requests that count.
        ok: Those answered with 200; `refused` with 429, `late` with 504. The rest are errors.
        texts: Texts in the answers with 200.
        texts_in_time: Those of them that came before the deadline.
        errors: What else happened (status, or what broke), and how often.
        latencies: Seconds of each answer with 200; open loop: from the scheduled time.
        refusals: The same of the answers with 429.
        lags: Seconds by which requests were sent after their scheduled time.
        different: Answers that differ from the first to the same message.
        client_cpu_seconds: Processor time that the client took in the window.
    """

    seconds: float
    sent: int
    ok: int
    refused: int
    late: int
    texts: int
    texts_in_time: int
    errors: Mapping[str, int]
    latencies: Times
    refusals: Times
    lags: Times
    different: int = 0
    client_cpu_seconds: float

    @property
    def failed(self) -> int:
        """Requests that got neither an answer nor a refusal in order."""
        return sum(self.errors.values())

    @property
    def texts_per_second(self) -> float:
        """Texts in answers with 200, a second."""
        return self.texts / self.seconds

    @property
    def goodput(self) -> float:
        """Texts in answers that came before the deadline, a second."""
        return self.texts_in_time / self.seconds

    @property
    def client_microseconds(self) -> float:
        """Processor time of the client for a request, in microseconds."""
        return self.client_cpu_seconds / max(self.sent, 1) * 1e6

    def latency_ms(self, percent: float) -> float:
        """Percentile of the latency of accepted requests, in milliseconds; NaN without any."""
        return percentile_ms(self.latencies, percent)

    def refusal_ms(self, percent: float) -> float:
        """Percentile of the latency of refusals, in milliseconds; NaN without any."""
        return percentile_ms(self.refusals, percent)


def percentile_ms(seconds: Times, percent: float) -> float:
    """A percentile in milliseconds: the smallest value that at least `percent` of all do not exceed; NaN of none."""
    return float(np.percentile(seconds, percent, method="inverted_cdf")) * 1e3 if len(seconds) else float("nan")


def pooled(outcomes: Sequence[Outcome]) -> Outcome:
    """Several windows as one."""
    errors: Counter[str] = Counter()
    for outcome in outcomes:
        errors.update(outcome.errors)
    return Outcome(
        seconds=sum(outcome.seconds for outcome in outcomes),
        sent=sum(outcome.sent for outcome in outcomes),
        ok=sum(outcome.ok for outcome in outcomes),
        refused=sum(outcome.refused for outcome in outcomes),
        late=sum(outcome.late for outcome in outcomes),
        texts=sum(outcome.texts for outcome in outcomes),
        texts_in_time=sum(outcome.texts_in_time for outcome in outcomes),
        errors=dict(errors),
        latencies=np.concatenate([outcome.latencies for outcome in outcomes]),
        refusals=np.concatenate([outcome.refusals for outcome in outcomes]),
        lags=np.concatenate([outcome.lags for outcome in outcomes]),
        different=sum(outcome.different for outcome in outcomes),
        client_cpu_seconds=sum(outcome.client_cpu_seconds for outcome in outcomes),
    )


def arrivals(rate: float, seconds: float, seed: int) -> Times:
    """Arrival times of a Poisson process: `rate` a second on average, all in [0, `seconds`), ascending."""
    rng = np.random.default_rng(seed)
    drawn = np.cumsum(rng.exponential(1 / rate, size=int(rate * seconds * 1.5) + 100))
    while drawn[-1] < seconds:
        drawn = np.concatenate([drawn, drawn[-1] + np.cumsum(rng.exponential(1 / rate, size=100))])
    return drawn[drawn < seconds]


def post(path: str, body: object, *, host: str = "localhost") -> bytes:
    """A POST request with a JSON body, on a connection that is kept alive."""
    content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


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
    check: int = 0


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
    first: dict[int, int] = field(default_factory=dict)
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
        if self.load.compare:
            connection.check = zlib.crc32(self._view[start:count], connection.check)
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
        connection.check = 0
        return start

    def _record(self, connection: _Connection, now: float) -> None:
        self.answered += 1
        status, message = connection.status, self.load.messages[connection.message]
        if self.load.compare and status == OK:
            self.different += self.first.setdefault(connection.message, connection.check) != connection.check
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


def run(load: Load) -> Outcome:
    """Load a server from a new process and wait for the outcome.

    Raises:
        RuntimeError: The client failed.
    """
    command = [sys.executable, "-m", "bench.serving_load"]
    limit = load.warm_up + load.seconds + GIVE_UP + 30
    done = subprocess.run(command, input=pickle.dumps(load), capture_output=True, cwd=ROOT, timeout=limit, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the client failed:\n{done.stderr.decode()}")
    outcome = pickle.loads(done.stdout)
    assert isinstance(outcome, Outcome)
    return outcome


def main() -> None:
    """Take a load from stdin, and write its outcome to stdout, both pickled."""
    from bench.serving_load import closed_loop, open_loop  # pickled names are those of the module, not of `__main__`

    load = pickle.loads(sys.stdin.buffer.read())
    gc.disable()
    outcome = (closed_loop if load.rate is None else open_loop)(load)
    sys.stdout.buffer.write(pickle.dumps(outcome))


if __name__ == "__main__":
    main()
