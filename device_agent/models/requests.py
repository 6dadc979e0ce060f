"""The requests that are in the agent, counted from their heads on, so that a stop can wait for them."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CAME_IN_TIME: ContextVar[bool] = ContextVar("came_in_time", default=False)


class Requests:
    """Counts requests. It belongs to the event loop's thread.

    Attributes:
        count: Requests that are being received or answered.
    """

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request for the length of it."""
        self.count += 1
        self._none.clear()
        token = _CAME_IN_TIME.set(True)
        try:
            yield
        finally:
            _CAME_IN_TIME.reset(token)
            self.count -= 1
            if self.count == 0:
                self._none.set()

    async def none_left(self) -> None:
        """Wait until no request is counted."""
        await self._none.wait()


def came_in_time() -> bool:
    """Whether the request that the running task answers is counted: it came before the agent began to stop."""
    return _CAME_IN_TIME.get()
