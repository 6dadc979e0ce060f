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

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
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
        compare: Count embeddings (base64) that differ from those in the first answer to the same message, as they do
            if an answer goes to the wrong client.
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
        different: Answers whose embeddings differ from those in the first answer to the same message.
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


def run(load: Load) -> Outcome:
    """Load a server from a new process and wait for the outcome.

    Raises:
        RuntimeError: The client failed.
    """
    command = [sys.executable, "-m", "bench.serving_client"]
    limit = load.warm_up + load.seconds + GIVE_UP + 30
    done = subprocess.run(command, input=pickle.dumps(load), capture_output=True, cwd=ROOT, timeout=limit, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the client failed:\n{done.stderr.decode()}")
    outcome = pickle.loads(done.stdout)
    assert isinstance(outcome, Outcome)
    return outcome
