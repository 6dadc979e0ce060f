"""Whether a request may join the queue. Pure: tokens and seconds in, a decision out; no clock, no thread.

A request that could not be answered in its time is refused at once, which costs it and everybody else the least. That
needs two estimates: how fast the model is (`Pace`), and how long a new request would take (`decide`).

**Pace.** Work is counted in tokens: a call of the runtime is worth its padded tokens and a constant for the call
itself. Each runner's speed is the work of its last batches over their time, and the model's speed is the sum. A batch
that takes longer than its runner usually needs counts with the time that it took so far: a runner that hangs is noticed
before it comes back. What a waiting token is worth (padding, calls) is measured on batches that were taken from a full
queue.

**Decision.** Rows do not run in order of arrival, as batches are made of similar lengths, and a request's wait has a
spread: in a simulated overload with the lengths of real texts, the slowest 1 % waited 1.6 to 2.1 times as long as the
work ahead of them takes. So a request joins if its deadline allows for `SPREAD` times that. A model that is idle always
takes a request, whatever the estimate says: otherwise an estimate that has gone wrong would never be corrected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgeonnx.errors import OverloadedError

SPREAD = 2.5
"""How much longer than the work ahead takes an accepted request may have to wait. In simulated overloads of three times
the capacity, the slowest 1 % of accepted requests took 0.4 to 0.8 of their deadline, which leaves room for a machine
that is less even; and the queue never ran dry, from deadlines of ten full batches on
(`tests/unit/device_agent/inference/test_admission.py`)."""

FULL_QUEUE_WORK = 1.1
"""Work of a token in a full queue before any was measured: 1 / 0.91, what a queue of about 1,000 tokens reaches."""

MEMORY = 8
"""Full batches of one runner over which its speed is averaged: a quarter of a second for MiniLM int8."""


@dataclass(slots=True, kw_only=True)
class _Runner:
    """Speed of one runner: work over seconds of its last batches, older ones counting less."""

    work: float = 0.0
    seconds: float = 0.0
    running: float = 0.0
    began: float = 0.0

    def add(self, work: float, seconds: float, memory: float) -> None:
        keep = memory / (memory + work)
        self.work = self.work * keep + work
        self.seconds = self.seconds * keep + seconds

    def speed(self, now: float) -> float:
        """Work a second; a batch that takes longer than it should counts already."""
        if self.running:
            elapsed = now - self.began
            if elapsed * self.work > self.running * self.seconds:
                return (self.work + self.running) / (self.seconds + elapsed)
        return self.work / self.seconds


@dataclass(kw_only=True)
class Pace:
    """How fast a model answers, measured.

    Attributes:
        runners: Number of runners.
        call_tokens: What a call of the runtime costs beyond its tokens, in tokens.
        budget: Tokens of a full batch.
    """

    runners: int
    call_tokens: int
    budget: int
    _runners: list[_Runner] = field(init=False)
    _useful: float = field(init=False)
    _spent: float = field(init=False)

    def __post_init__(self) -> None:
        self._runners = [_Runner() for _ in range(self.runners)]
        # The assumed value counts as one full batch, and fades like a measured one.
        self._useful, self._spent = float(self.budget), FULL_QUEUE_WORK * self.budget

    def prime(self, *, padded: int, seconds: float) -> None:
        """Learn from a batch that was run outside of the queue, as if every runner had run it."""
        for runner in self._runners:
            self._learn(runner, padded + self.call_tokens, seconds)

    def begin(self, runner: int, *, padded: int, now: float) -> None:
        """A runner takes a batch.

        Args:
            runner: Which one, from 0.
            padded: Longest row x rows.
            now: Any clock, in seconds.
        """
        state = self._runners[runner]
        state.running, state.began = padded + self.call_tokens, now

    def end(self, runner: int, *, tokens: int, now: float, full: bool, failed: bool = False) -> None:
        """A runner has finished the batch that it took.

        Args:
            runner: Which one, from 0.
            tokens: Tokens of the batch without padding.
            now: The clock of `begin`.
            full: Whether it was taken from a queue that held more than a batch.
            failed: It gave no answer, so that its time says nothing.
        """
        state = self._runners[runner]
        work, seconds = state.running, now - state.began
        state.running = 0.0
        if failed:
            return
        self._learn(state, work, seconds)
        if full:
            keep = self._memory / (self._memory + work)
            self._useful = self._useful * keep + tokens
            self._spent = self._spent * keep + work

    @property
    def _memory(self) -> float:
        return float(MEMORY * (self.budget + self.call_tokens))

    def _learn(self, state: _Runner, work: float, seconds: float) -> None:
        if seconds > 0:
            state.add(work, seconds, self._memory)

    def speed(self, now: float) -> float:
        """Work a second of all runners together; 0.0 before anything was measured."""
        known = [state.speed(now) for state in self._runners if state.seconds]
        # A runner that has not run yet is as fast as the others.
        return sum(known) * self.runners / len(known) if known else 0.0

    def tokens_per_second(self, now: float) -> float:
        """Tokens without padding a second, all runners together, in a full queue; 0.0 before any was measured."""
        return self.speed(now) / self.work_per_token

    @property
    def work_per_token(self) -> float:
        """Work of a token that waits: its share of padding and calls in a full queue."""
        return self._spent / self._useful

    def running_work(self, now: float) -> float:
        """Work that is left of the batches that run now."""
        return sum(
            max(0.0, state.running - (now - state.began) * (state.work / state.seconds if state.seconds else 0.0))
            for state in self._runners
            if state.running
        )

    def running_tokens(self) -> int:
        """Padded tokens of the batches that run now."""
        return sum(int(state.running) - self.call_tokens for state in self._runners if state.running)

    @property
    def idle(self) -> bool:
        """Whether no runner runs a batch."""
        return not any(state.running for state in self._runners)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not join the queue.

    Attributes:
        reason: "full": too many tokens wait; "late": the answer could not come in time.
        seconds: How long the answer could take, predicted.
        retry_after: Seconds after which it is worth trying again, predicted.
    """

    reason: Literal["full", "late"]
    seconds: float
    retry_after: float

    def error(self, seconds: float | None, max_tokens: int) -> OverloadedError:
        """The refusal as an error.

        Args:
            seconds: How long the request may take; None: without end.
            max_tokens: Tokens that may wait.
        """
        if self.reason == "full":
            expected = f"at most {max_tokens:,} tokens in it"
            return OverloadedError("the queue is full", retry_after=self.retry_after, expected=expected)
        return OverloadedError(
            "the answer could not come in time",
            retry_after=self.retry_after,
            expected=f"at most {seconds:.3g} s",
            found=f"up to {self.seconds:.2g} s",
        )


def predict(tokens: int, *, waiting: int, pace: Pace, now: float) -> tuple[float, float]:
    """How long a new request would wait, and then run.

    Args:
        tokens: Tokens of all its rows, without padding.
        waiting: Tokens that wait.
        pace: The model's speed.
        now: The clock of `pace`.

    Returns:
        Seconds until all work ahead of its last batch is done, taken in order; and seconds of that batch. Zeros while
        the speed is not known.
    """
    speed = pace.speed(now)
    if not speed:
        return 0.0, 0.0
    own = tokens * pace.work_per_token
    last = min(own, float(pace.budget))
    ahead = waiting * pace.work_per_token + pace.running_work(now) + own - last
    # Where others wait, its last rows run in a full batch with theirs. So a short text has no better chance than a long
    # one: otherwise short ones would take every gap at the limit, and long ones would find none.
    batch = float(pace.budget) if waiting else last
    return ahead / speed, (batch + pace.call_tokens) * pace.runners / speed


def decide(
    tokens: int, *, seconds: float | None, waiting: int, max_tokens: int, pace: Pace, now: float
) -> Refusal | None:
    """Whether a request may join the queue.

    It depends on the request's tokens alone, not on how many rows they are, nor on how the client wrote them.

    Args:
        tokens: Tokens of all its rows, without padding.
        seconds: How long it may take from now on; None: without end.
        waiting: Tokens that wait.
        max_tokens: Tokens that may wait. Where nothing waits, a request of any size is taken.
        pace: The model's speed.
        now: The clock of `pace`.

    Returns:
        None if it may; otherwise why not.
    """
    if waiting and waiting + tokens > max_tokens:
        wait, run = predict(tokens, waiting=waiting, pace=pace, now=now)
        speed = pace.speed(now)
        excess = min(waiting, waiting + tokens - max_tokens) * pace.work_per_token
        return Refusal("full", SPREAD * wait + run, excess / speed if speed else 1.0)
    if seconds is None or (not waiting and pace.idle):
        return None
    wait, run = predict(tokens, waiting=waiting, pace=pace, now=now)
    longest = SPREAD * wait + run
    if longest <= seconds:
        return None
    # The queue is short enough once it would be done within what the request has left, at the spread above. A request
    # that is too long for its own time may try once nothing is ahead of it: an idle model takes it.
    return Refusal("late", longest, min(wait, wait - (seconds - run) / SPREAD))
