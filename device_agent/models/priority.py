"""Loading a model beside one that serves: at a low priority, so that requests do not feel it.

A thread hands its priority down to the threads that it starts, and a process without rights cannot raise it again. So
what serves later (runners, the runtime's own threads) is started from a thread that kept the usual priority.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

NICE = 10
"""Added to the loading thread's niceness: it gets a tenth of what a runner gets where both want the same core."""


class Usual:
    """Runs functions at the usual priority: here and now, where nothing is done at a lower one."""

    def run(self, function: Callable[[], T]) -> T:
        """The result of a function."""
        return function()


class Elsewhere(Usual):
    """Runs functions in a thread that kept the usual priority."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[[], T]) -> T:
        """The result of a function."""
        return self._pool.submit(function).result()


@contextlib.contextmanager
def lowered(*, wanted: bool = True) -> Iterator[Usual]:
    """Lower the calling thread's priority for good: call it in a thread that ends afterwards.

    Args:
        wanted: Do it at all.

    Yields:
        What runs functions at the usual priority.
    """
    if not wanted:
        yield Usual()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="usual-priority") as pool:
        pool.submit(int).result()  # its thread is started now, before the priority is lowered
        lower()
        yield Elsewhere(pool)


def lower() -> None:
    """Lower the calling thread's priority, where the system can (Linux: a niceness for each thread)."""
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
