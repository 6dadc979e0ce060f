"""Work beside the requests: tasks that nobody has to wait for, and blocking functions in threads of their own."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Background:
    """Tasks and threads of one owner. It belongs to the event loop's thread.

    Attributes:
        threads: Threads that work now.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.threads = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is done now."""
        return not self._tasks and not self.threads

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Begin a task, which nobody has to wait for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def finish(self, work: Coroutine[object, object, None]) -> None:
        """Do the work to its end, whatever happens to whoever waits for it."""
        await asyncio.shield(self.spawn(work))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking function in a daemon thread of its own: one that hangs does not keep the process."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                report = partial(_settle, future, result=function(*arguments))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                report = partial(_settle, future, error=error)
            try:
                loop.call_soon_threadsafe(report)
            except RuntimeError:  # the loop was closed: nobody waits any more
                return

        self.threads += 1
        threading.Thread(target=work, name=getattr(function, "__name__", "background"), daemon=True).start()
        try:
            return await future
        finally:
            self.threads -= 1


def _settle(future: asyncio.Future[T], *, result: T | None = None, error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]
