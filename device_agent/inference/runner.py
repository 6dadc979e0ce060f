"""The thread that does the blocking work, so that the event loop never waits for a model."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Done(Generic[Result]):
    """A finished piece of work: its result, and the seconds that it waited for the thread."""

    result: Result
    queue_seconds: float


@dataclass(frozen=True, kw_only=True)
class _Job:
    work: Callable[[], object]
    future: asyncio.Future[Done[object]]
    loop: asyncio.AbstractEventLoop
    submitted: float


class Runner:
    """One thread that does work in the order in which it was submitted.

    The thread is a daemon: an agent that must stop does not wait for a run that does not end.
    """

    def __init__(self, name: str = "runner") -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def submit(self, work: Callable[[], Result]) -> Done[Result]:
        """Do `work` in the thread and await its result.

        If the caller is cancelled before the thread comes to it, the work is never begun.

        Raises:
            Exception: Whatever `work` raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Done[Result]] = loop.create_future()
        self._jobs.put(_Job(work=work, future=future, loop=loop, submitted=time.perf_counter()))  # type: ignore[arg-type]
        return await future

    def close(self, timeout: float | None = None) -> bool:
        """End the thread after the work that was submitted; False if it still runs after `timeout` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.cancelled():
                continue
            begun = time.perf_counter()
            try:
                done = Done(result=job.work(), queue_seconds=begun - job.submitted)
            except Exception as error:  # noqa: BLE001 - every failure belongs to the request, none to the thread
                _hand_over(job, None, error)
            else:
                _hand_over(job, done, None)


def _hand_over(job: _Job, done: Done[object] | None, error: Exception | None) -> None:
    """Give the outcome to the event loop, if it still runs and the caller still waits."""

    def deliver() -> None:
        if job.future.done():
            return
        if error is not None:
            job.future.set_exception(error)
        elif done is not None:
            job.future.set_result(done)

    try:
        job.loop.call_soon_threadsafe(deliver)
    except RuntimeError:  # the loop was closed: nobody waits any more
        return
