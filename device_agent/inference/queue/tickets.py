"""Requests on their way through the batcher, and how their results reach the event loops that wait for them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeonnx.errors import DeadlineExceededError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from device_agent.inference.rows import Answer, Part, Rows

    Result = tuple["Ticket", Answer | Exception]


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """One request on its way through the batcher.

    Attributes:
        key: Names it within the batcher.
        rows: Its rows.
        outputs: Names of the outputs that it wants; None for all.
        loop: The event loop in which it was submitted.
        future: Done with the answer, in that loop.
        submitted: When it joined the queue, by `time.perf_counter`.
        deadline: When its time is over, by the same clock; None: never.
        remaining: Rows of which the outputs are not there yet.
        answer: What is known of the answer.
        parts: What the runs so far gave.
        timer: Ends its time.
        gone: Whether the client left, so that nobody waits for it.
    """

    key: int
    rows: Rows
    outputs: tuple[str, ...] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Answer]
    submitted: float
    deadline: float | None
    remaining: int
    answer: Answer
    parts: list[Part] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    gone: bool = False

    def wants(self, output: str) -> bool:
        """Whether an output is among those that the request wants."""
        return self.outputs is None or output in self.outputs

    def end_timer(self) -> None:
        """Its time no longer matters. Call it in the ticket's event loop."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def too_late(self) -> DeadlineExceededError:
        """What its caller gets when its time is over."""
        seconds = 0.0 if self.deadline is None else self.deadline - self.submitted
        return DeadlineExceededError("the answer was not ready in time", expected=f"at most {seconds:.3g} s")


def deliver(results: Sequence[Result]) -> None:
    """Hand results to the event loops that wait for them, each loop with one call. May be called from any thread."""
    if len(results) == 1:
        _call(results[0][0].loop, results)
        return
    loops: dict[asyncio.AbstractEventLoop, list[Result]] = {}
    for result in results:
        loops.setdefault(result[0].loop, []).append(result)
    for loop, own in loops.items():
        _call(loop, own)


def _call(loop: asyncio.AbstractEventLoop, results: Sequence[Result]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, results)


def _settle(results: Sequence[Result]) -> None:
    """Settle futures, in their event loop's thread."""
    for ticket, result in results:
        ticket.end_timer()
        if ticket.future.done():
            continue
        if isinstance(result, Exception):
            ticket.future.set_exception(result)
        else:
            ticket.future.set_result(result)
