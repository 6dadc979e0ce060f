"""The queue in front of a model, and the threads that empty it.

There is no timer: a runner that is free takes what waits, at once. While all runners are busy, rows gather, and the
next batch is larger; so batches grow with the load, and a request that comes alone waits for nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from device_agent.inference.batching import Piece, WaitingRows
from device_agent.inference.rows import Answer, merge
from edgeonnx.errors import DeadlineExceededError, NotReadyError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from device_agent.config import QueueConfig
    from device_agent.inference.rows import Array, Rows


class Runs(Protocol):
    """What runs batches: `device_agent.inference.engine.Engine`, or a fake in tests."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the graph's inputs."""
        ...

    @property
    def provider(self) -> str:
        """The execution provider that runs now."""
        ...

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Run a batch; see `Engine.run`."""
        ...


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """What waits in front of a model.

    Attributes:
        requests: Requests that wait, wholly or in part.
        rows: Rows that wait.
        tokens: Their tokens.
        running_tokens: Tokens of the batches that run now, padding included.
        tokens_per_second: Speed of all runners together, measured; 0.0 before the first run.
    """

    requests: int
    rows: int
    tokens: int
    running_tokens: int
    tokens_per_second: float


@dataclass(eq=False, kw_only=True)
class Ticket:
    """One request on its way through the batcher.

    Attributes:
        rows: Its rows.
        outputs: Names of the outputs that it wants; None for all.
        future: Done with the answer, in the event loop in which it was submitted.
        gone: Whether the client left, so that nobody waits for it.
        deadline: When its time is over, by `time.perf_counter`; None: never.
    """

    key: int
    rows: Rows
    outputs: tuple[str, ...] | None
    future: asyncio.Future[Answer]
    submitted: float
    deadline: float | None
    remaining: int
    begun: float | None = None
    parts: list[tuple[np.ndarray, Mapping[str, Array]]] = field(default_factory=list)
    answer: Answer
    timer: asyncio.TimerHandle | None = None
    gone: bool = False


class Batcher:
    """Takes rows of requests, runs them in batches, gives every row back to its owner.

    Args:
        engine: Runs a batch; called from several threads.
        config: Budget, bound and deadlines.
        runners: Threads that run batches.
    """

    def __init__(self, engine: Runs, config: QueueConfig, *, runners: int = 1, name: str = "model") -> None:
        self._engine = engine
        self._config = config
        self._keys = itertools.count()
        self._waiting = WaitingRows()
        self._tickets: dict[int, Ticket] = {}
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._running_tokens = 0
        self._speed = 0.0
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-runner-{index}", daemon=True) for index in range(runners)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def runners(self) -> int:
        """Number of runner threads."""
        return len(self._threads)

    def state(self) -> QueueState:
        """What waits and runs now."""
        with self._changed:
            return QueueState(
                requests=len(self._waiting),
                rows=self._waiting.rows,
                tokens=self._waiting.tokens,
                running_tokens=self._running_tokens,
                tokens_per_second=self._speed,
            )

    def submit(self, rows: Rows, outputs: tuple[str, ...] | None = None, *, seconds: float | None = None) -> Ticket:
        """Queue a request; call it in the event loop that awaits `Ticket.future`.

        Args:
            rows: Its rows, at least one.
            outputs: Names of the outputs that it wants; None for all.
            seconds: How long it may take from now on; None: without end.

        Raises:
            OverloadedError: It could not be answered in that time, or too much waits already.
            NotReadyError: The batcher is closed.
        """
        loop = asyncio.get_running_loop()
        now = time.perf_counter()
        lengths = rows.lengths
        ticket = Ticket(
            key=next(self._keys),
            rows=rows,
            outputs=outputs,
            future=loop.create_future(),
            submitted=now,
            deadline=None if seconds is None else now + seconds,
            remaining=len(lengths),
            answer=Answer(lengths=lengths),
        )
        with self._changed:
            if self._closed:
                raise NotReadyError("the model is being unloaded")
            self._admit(int(lengths.sum()), seconds)
            self._tickets[ticket.key] = ticket
            self._waiting.add(ticket.key, lengths)
            self._changed.notify()
        if seconds is not None:
            ticket.timer = loop.call_later(seconds, self._expire, ticket)
        return ticket

    def _admit(self, tokens: int, seconds: float | None) -> None:
        ahead = self._waiting.tokens + self._running_tokens
        if self._waiting.tokens and self._waiting.tokens + tokens > self._config.max_tokens:
            raise OverloadedError("the queue is full", retry_after=ahead / self._speed if self._speed else 1.0)
        if seconds is not None and self._speed and (ahead + tokens) / self._speed > seconds:
            wait = (ahead + tokens) / self._speed
            raise OverloadedError(
                "the answer could not come in time",
                retry_after=max(0.0, wait - seconds),
                expected=f"at most {seconds:g} s",
                found=f"about {wait:.2g} s",
            )

    def cancel(self, ticket: Ticket) -> None:
        """Drop what still waits of a request whose caller no longer wants it. Call it in the ticket's event loop."""
        with self._changed:
            self._waiting.remove(ticket.key)
            self._tickets.pop(ticket.key, None)
        if ticket.timer is not None:
            ticket.timer.cancel()
        if not ticket.future.done():
            ticket.future.cancel()

    def _expire(self, ticket: Ticket) -> None:
        if not ticket.future.done():
            ticket.future.set_exception(DeadlineExceededError("the request's time is over"))
            self.cancel(ticket)

    def run_now(self, rows: Rows, outputs: tuple[str, ...] | None = None) -> Answer:
        """Run a request in the calling thread, in batches as the runners would make them. Raises as `Engine.run`."""
        waiting = WaitingRows()
        waiting.add(0, rows.lengths)
        answer = Answer(lengths=rows.lengths)
        parts: list[tuple[np.ndarray, Mapping[str, Array]]] = []
        while pieces := waiting.take(self._config.batch_tokens):
            started = time.perf_counter()
            values = self._run([(rows, pieces[0].rows)], outputs)
            answer.infer_seconds += time.perf_counter() - started
            answer.runs += 1
            parts.append((np.asarray(pieces[0].rows), values))
        answer.outputs = merge(parts, rows.lengths)
        return answer

    def close(self, timeout: float | None = None) -> bool:
        """End the threads once nothing waits; False if one still runs after `timeout` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = None if timeout is None else time.perf_counter() + timeout
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.perf_counter()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (batch := self._take()) is not None:
            self._run_batch(batch)

    def _take(self) -> list[tuple[Ticket, Piece]] | None:
        with self._changed:
            while True:
                pieces = self._waiting.take(self._config.batch_tokens)
                if pieces:
                    return [(self._tickets[piece.key], piece) for piece in pieces]
                if self._closed:
                    return None
                self._changed.wait()

    def _run_batch(self, batch: list[tuple[Ticket, Piece]]) -> None:
        begun = time.perf_counter()
        lengths = [ticket.rows.lengths[piece.rows] for ticket, piece in batch]
        padded = max(int(part.max()) for part in lengths) * sum(map(len, lengths))
        with self._changed:
            self._running_tokens += padded
        error: Exception | None = None
        outputs: dict[str, Array] = {}
        try:
            wanted = _union(ticket.outputs for ticket, _ in batch)
            outputs = self._run([(ticket.rows, piece.rows) for ticket, piece in batch], wanted)
        except Exception as failure:  # noqa: BLE001 - every failure belongs to the requests, none to the thread
            error = failure
        seconds = time.perf_counter() - begun
        with self._changed:
            self._running_tokens -= padded
            if error is None:
                speed = padded / seconds * len(self._threads)
                self._speed = speed if not self._speed else 0.9 * self._speed + 0.1 * speed
        at = 0
        for ticket, piece in batch:
            rows = slice(at, at := at + len(piece.rows))
            self._hand_over(
                ticket, piece, {name: value[rows] for name, value in outputs.items()}, error, begun, seconds
            )

    def _run(self, parts: Sequence[tuple[Rows, Sequence[int]]], outputs: tuple[str, ...] | None) -> dict[str, Array]:
        """Pad the rows into one batch and run it."""
        count = sum(len(rows) for _, rows in parts)
        width = max(int(source.lengths[rows].max()) for source, rows in parts)
        buffers = {name: np.empty((count, width), dtype=np.int64) for name in self._engine.inputs}
        at = 0
        for source, rows in parts:
            source.write(rows, {name: buffer[at : at + len(rows)] for name, buffer in buffers.items()})
            at += len(rows)
        return self._engine.run(buffers, outputs)

    def _hand_over(
        self,
        ticket: Ticket,
        piece: Piece,
        outputs: Mapping[str, Array],
        error: Exception | None,
        begun: float,
        seconds: float,
    ) -> None:
        with self._changed:
            answer = ticket.answer
            if ticket.begun is None:
                ticket.begun = begun
                answer.queue_seconds = begun - ticket.submitted
            answer.infer_seconds += seconds
            answer.runs += 1
            answer.provider = self._engine.provider
            ticket.parts.append((np.asarray(piece.rows), outputs))
            ticket.remaining -= len(piece.rows)
            finished = error is not None or ticket.remaining == 0
            if finished:
                self._waiting.remove(ticket.key)
                self._tickets.pop(ticket.key, None)
        if not finished:
            return
        if error is None:
            answer.outputs = merge(ticket.parts, answer.lengths)

        def deliver() -> None:
            if ticket.timer is not None:
                ticket.timer.cancel()
            if ticket.future.done():
                return
            if error is not None:
                ticket.future.set_exception(error)
            else:
                ticket.future.set_result(answer)

        try:
            ticket.future.get_loop().call_soon_threadsafe(deliver)
        except RuntimeError:  # the loop was closed: nobody waits any more
            return


def _union(wanted: object) -> tuple[str, ...] | None:
    """The outputs that a batch must compute: those that any of its requests wants; None for all."""
    names: dict[str, None] = {}
    for outputs in wanted:  # type: ignore[attr-defined]
        if outputs is None:
            return None
        names.update(dict.fromkeys(outputs))
    return tuple(names)
