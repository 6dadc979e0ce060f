"""The queue in front of a model, and the threads that empty it.

There is no timer: a runner that is free takes what waits, at once. While all runners are busy, rows gather, and the
next batch is larger; so batches grow with the load, and a request that comes alone waits for nothing.

Which rows run together is decided in `batching`, which requests may wait in `admission`; here are the threads. One
lock guards the queue. It is held for microseconds, never while a batch runs, and the event loop's thread takes it once
for each request. Answers go back to the event loop batch by batch, with one call for all requests of a batch.

A request ends in exactly one way: its answer, its error, the end of its time (also while its rows run: the client does
not wait for a result that comes too late), or its client's leaving. From then on its rows no longer wait, and what a
run still gives for it is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.inference.queue.admission import Pace, decide, predict
from device_agent.inference.queue.batching import CALL_TOKENS, WaitingRows
from device_agent.inference.queue.counts import Counts
from device_agent.inference.queue.execution import Work, execute
from device_agent.inference.queue.tickets import Ticket, deliver
from device_agent.inference.rows import Answer, Part, merge, write_batch
from edgeonnx.errors import NotReadyError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from device_agent.config import QueueConfig
    from device_agent.inference.queue.execution import Outcome, Pair, Runs
    from device_agent.inference.queue.tickets import Result
    from device_agent.inference.rows import Rows

PREPARED_TOKENS = 64
"""Tokens of a single request's batch up to which the event loop's thread pads it for a runner that sleeps."""

SHARE_TOKENS = 48
"""Tokens of a batch below which it is not divided among idle runners; see `bench/batching.py`."""


RUNNER_NICE = 2
"""How much a runner thread's nice value is above the rest of the process, where the system has one for each thread.

Runners keep every core busy, and the event loop, which has little to do, must not queue up behind them: at three times
the capacity on two cores, refusals came after 2 to 6 ms (99th percentile 18 to 26) instead of 7 to 10 (44 to 121).
"""


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """What waits in front of a model, and what was done so far.

    Attributes:
        requests: Requests that wait, wholly or in part.
        rows: Rows that wait.
        tokens: Their tokens, without padding.
        running_tokens: Tokens of the batches that run now, padding included.
        tokens_per_second: Tokens (without padding) that all runners together would answer in a second under full load,
            as the last batches went; 0.0 before the first run.
        wait_seconds: How long a request that came now would wait until its first row runs, predicted.
        runners: Number of runner threads.
        counts: What happened since the start.
    """

    requests: int
    rows: int
    tokens: int
    running_tokens: int
    tokens_per_second: float
    wait_seconds: float
    runners: int
    counts: Counts


class Batcher:
    """Takes rows of requests, runs them in batches, gives every row back to its owner.

    Args:
        engine: Runs a batch; called from several threads.
        config: Budget, bound and deadlines.
        runners: Threads that run batches.
        name: Of the model, for the threads' names.
        per_token: Names of the outputs of which the second dimension is the token; None: those of three dimensions.
        call_tokens: What a call of the runtime costs beyond its tokens, in tokens.
    """

    def __init__(
        self,
        engine: Runs,
        config: QueueConfig,
        *,
        runners: int = 1,
        name: str = "model",
        per_token: Collection[str] | None = None,
        call_tokens: int = CALL_TOKENS,
    ) -> None:
        self._engine = engine
        self._config = config
        self._per_token = per_token
        self._keys = itertools.count()
        self._waiting = WaitingRows(call_tokens=call_tokens)
        self._pace = Pace(runners=runners, call_tokens=call_tokens, budget=config.batch_tokens)
        self._counts = Counts()
        self._tickets: dict[int, Ticket] = {}
        self._lock = threading.Lock()
        # Runners that have nothing to do wait at their desk, and whoever brings work puts it there: a runner that was
        # only woken would have to find out, with cold caches, what the other thread knows already. So rows never wait
        # while a runner sleeps.
        self._desks: list[queue.SimpleQueue[Work | None]] = [queue.SimpleQueue() for _ in range(runners)]
        self._asleep: list[int] = []
        self._free = runners
        self._finished: list[tuple[int, Work, list[Outcome], float]] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(index,), name=f"{name}-runner-{index}", daemon=True)
            for index in range(runners)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def runners(self) -> int:
        """Number of runner threads."""
        return len(self._threads)

    def state(self) -> QueueState:
        """What waits and runs now, and what was done so far."""
        now = time.perf_counter()
        with self._lock:
            self._account()
            return QueueState(
                requests=len(self._waiting),
                rows=self._waiting.rows,
                tokens=self._waiting.tokens,
                running_tokens=self._pace.running_tokens(),
                tokens_per_second=self._pace.tokens_per_second(now),
                wait_seconds=predict(1, waiting=self._waiting.tokens, pace=self._pace, now=now)[0],
                runners=len(self._threads),
                counts=self._counts.copy(),
            )

    # Called in the event loop's thread

    def check_chance(self, seconds: float, tokens: int = 1) -> None:
        """Refuse a request before its size is known, if not even one of `tokens` tokens could be answered in its time.

        Raises:
            OverloadedError: It could not.
        """
        if self._waiting.tokens:  # read without the lock: an idle model costs nothing
            with self._lock:
                self._admit(tokens, seconds, time.perf_counter(), early=True)

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
        tokens = int(lengths[0] if len(lengths) == 1 else lengths.sum())
        with self._lock:
            if self._closed:
                raise NotReadyError("the model is being unloaded")
            self._admit(tokens, seconds, now)
            ticket = Ticket(
                key=next(self._keys),
                rows=rows,
                outputs=outputs,
                loop=loop,
                future=loop.create_future(),
                submitted=now,
                deadline=None if seconds is None else now + seconds,
                remaining=len(lengths),
                answer=Answer(lengths=lengths),
            )
            self._counts.accepted += 1
            self._tickets[ticket.key] = ticket
            self._waiting.add(ticket.key, lengths)
            given = self._give_out() if self._asleep else ()
        if seconds is not None:
            ticket.timer = loop.call_later(seconds, self._expire, ticket)
        for runner, work in given:
            if len(work.batch) == 1 and work.tokens <= PREPARED_TOKENS:
                work.prepare(self._engine)
            self._desks[runner].put(work)
        return ticket

    def _admit(self, tokens: int, seconds: float | None, now: float, *, early: bool = False) -> None:
        """Refuse a request that may not join the queue. The lock is held."""
        if self._finished:
            self._account()
        refusal = decide(
            tokens,
            seconds=seconds,
            waiting=self._waiting.tokens,
            max_tokens=self._config.max_tokens,
            pace=self._pace,
            now=now,
        )
        if refusal is not None:
            self._counts.refused(refusal.reason, early=early)
            raise refusal.error(seconds, self._config.max_tokens)

    def cancel(self, ticket: Ticket) -> None:
        """Drop what still waits of a request whose caller no longer wants it. Call it in the ticket's event loop."""
        with self._lock:
            if self._drop(ticket):
                self._counts.cancelled += 1
        ticket.end_timer()
        if not ticket.future.done():
            ticket.future.cancel()

    def _expire(self, ticket: Ticket) -> None:
        """A request's time is over: the timer of its event loop."""
        with self._lock:
            if not self._drop(ticket):
                return  # its answer, or its error, is on the way
            self._counts.expired += 1
        if not ticket.future.done():
            ticket.future.set_exception(ticket.too_late())

    # Called in any thread

    def run_now(self, rows: Rows, outputs: tuple[str, ...] | None = None) -> Answer:
        """Run a request in the calling thread, in batches as the runners would make them.

        What it takes tells the admission how fast the model is, before the first request. Raises as `Engine.run`.
        """
        waiting = WaitingRows(call_tokens=self._waiting.call_tokens)
        waiting.add(0, rows.lengths)
        answer = Answer(lengths=rows.lengths, provider=self._engine.provider)
        parts: list[Part] = []
        while pieces := waiting.take(self._config.batch_tokens):
            piece = pieces[0]
            inputs = write_batch([(rows, piece.rows)], piece.width, self._engine.inputs)
            began = time.perf_counter()
            values = self._engine.run(inputs, outputs)
            seconds = time.perf_counter() - began
            with self._lock:
                self._pace.prime(padded=piece.width * len(piece.rows), seconds=seconds)
            answer.infer_seconds += seconds
            answer.runs += 1
            answer.batch_rows += len(piece.rows)
            parts.append(Part(piece.rows, values))
        answer.outputs = merge(parts, rows.lengths, self._per_token)
        return answer

    def close(self, timeout: float | None = None) -> bool:
        """Finish what waits, then end the threads. May be called again.

        Args:
            timeout: Seconds to wait; then every request that is left fails with NotReadyError. None: no limit.

        Returns:
            False if a run goes on in its thread after that time. The thread ends with it.
        """
        end = None if timeout is None else time.perf_counter() + timeout
        with self._lock:
            self._closed = True
            asleep, self._asleep = self._asleep, []
        for runner in asleep:
            self._desks[runner].put(None)
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.perf_counter()))
        with self._lock:
            left = [ticket for ticket in list(self._tickets.values()) if self._drop(ticket)]
            self._counts.failed += len(left)
        error = NotReadyError("the model was unloaded before the answer was ready")
        deliver([(ticket, error) for ticket in left])
        return not any(thread.is_alive() for thread in self._threads)

    def _drop(self, ticket: Ticket) -> bool:
        """Forget a request; False if it has ended already. The lock is held."""
        if self._tickets.pop(ticket.key, None) is None:
            return False
        before = self._waiting.rows
        self._waiting.remove(ticket.key)
        self._counts.rows_dropped += before - self._waiting.rows
        ticket.parts.clear()
        return True

    def _give_out(self) -> list[tuple[int, Work]]:
        """Batches for the runners that sleep, as long as rows wait. The lock is held."""
        given = []
        while self._asleep:
            work = self._take(self._asleep[-1])
            if work is None:
                break
            given.append((self._asleep.pop(), work))
        return given

    # The runner threads

    def _serve(self, runner: int) -> None:
        _step_back()
        desk = self._desks[runner]
        while True:
            with self._lock:
                self._account()
                work = self._take(runner)
                if work is None:
                    if self._closed:
                        return
                    self._asleep.append(runner)
            if work is None:
                work = desk.get()
            if work is not None:
                self._work(runner, work)

    def _take(self, runner: int) -> Work | None:
        """The next batch for a runner; None if nothing waits. The lock is held."""
        now = time.perf_counter()
        batch: Sequence[Pair] = ()
        while not batch:
            full = self._waiting.tokens > self._config.batch_tokens
            pieces = self._waiting.take(self._config.batch_tokens, runners=self._free, least=SHARE_TOKENS)
            if not pieces:
                return None
            batch = self._without_late([(self._tickets[piece.key], piece) for piece in pieces], now)
        self._free -= 1
        work = Work(batch, full, now)
        self._pace.begin(runner, padded=work.width * work.rows, now=now)
        return work

    def _without_late(self, batch: Sequence[Pair], now: float) -> Sequence[Pair]:
        """End the requests whose time is over before their timer could say so, as the event loop is busy."""
        kept: list[Pair] = []
        late: list[Pair] = []
        for pair in batch:
            deadline = pair[0].deadline
            (kept if deadline is None or now < deadline else late).append(pair)
        for ticket, piece in late:
            self._drop(ticket)
            self._counts.rows_dropped += len(piece.rows)
            self._counts.expired += 1
        deliver([(ticket, ticket.too_late()) for ticket, _ in late])
        return kept

    def _work(self, runner: int, work: Work) -> None:
        """Run a batch and hand its answers over."""
        outcomes = execute(self._engine, work, lambda ticket: ticket.key in self._tickets)
        now = time.perf_counter()
        with self._lock:
            self._finished.append((runner, work, outcomes, now))
            ended = [outcome for outcome in outcomes if self._note(outcome, work)]
        results: list[Result] = []
        for outcome in ended:
            ticket, answer = outcome.ticket, outcome.ticket.answer
            if outcome.error is None:
                answer.outputs = merge(ticket.parts, answer.lengths, self._per_token)
                ticket.parts.clear()
            results.append((ticket, outcome.error or answer))
        deliver(results)

    def _account(self) -> None:
        """Record the batches that have finished. The lock is held.

        Whoever takes the lock next does it, before it reads what this changes: usually the same runner, but only after
        it has handed over the answers, which somebody waits for.
        """
        for runner, work, outcomes, now in self._finished:
            self._free += 1
            calls = {outcome.call for outcome in outcomes}
            # A batch that failed, and what came of it alone, says nothing about the speed.
            whole = len(calls) == 1 and not any(call is None or call.alone for call in calls)
            self._pace.end(runner, tokens=work.tokens, now=now, full=work.full, failed=not whole)
            for call in calls:
                if call is not None:
                    self._counts.ran(call)
        self._finished.clear()

    def _note(self, outcome: Outcome, work: Work) -> bool:
        """Record what a run gave a request; True if that ends it. The lock is held."""
        ticket, answer = outcome.ticket, outcome.ticket.answer
        if ticket.key not in self._tickets:
            return False
        if outcome.outputs is None or outcome.call is None:
            self._drop(ticket)
            self._counts.failed += 1
            return True
        if not answer.runs:
            answer.queue_seconds = work.began - ticket.submitted
        answer.infer_seconds += outcome.call.seconds
        answer.runs += 1
        answer.batch_rows += outcome.call.rows
        answer.provider = self._engine.provider
        ticket.parts.append(Part(outcome.piece.rows, outcome.outputs))
        ticket.remaining -= len(outcome.piece.rows)
        if ticket.remaining:
            return False
        del self._tickets[ticket.key]
        self._counts.answered += 1
        return True


def _step_back() -> None:
    """Let the process's other threads go before this one; see `RUNNER_NICE`."""
    if sys.platform == "linux":  # elsewhere a thread has no nice value of its own
        with contextlib.suppress(OSError):
            usual = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual + RUNNER_NICE)
