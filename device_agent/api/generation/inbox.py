"""Events from the generator's thread to the event loop, for all choices of one request.

What waits is bounded: a client that reads more slowly than the model writes makes events wait here, once its
connection's own buffers are full, and when `MAX_WAITING` do, its request is given up. No other request notices.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from edgeonnx.errors import ClientGoneError, SlowClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from device_agent.inference.generation.generator import Generator, Handle
    from device_agent.inference.generation.request import Event, GenerationRequest
    from edgeonnx.errors import EdgeOnnxError

MAX_WAITING = 4096
"""Events of one request that wait for its client."""


class Inbox:
    """The sequences of one request. It belongs to the event loop's thread, all but what `submit` hands on.

    Args:
        generator: What generates.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._bell = _bell()
        self._lock = threading.Lock()
        self._events: list[tuple[int, Event]] = []
        self._arrived = asyncio.Event()
        self._handles: list[Handle] = []
        self._error: EdgeOnnxError | None = None

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Ask for all sequences, or for none.

        Raises:
            OverloadedError, InvalidRequestError, RequestTooLargeError: The generator does not take one of them.
        """
        try:
            for index, request in enumerate(requests):
                self._handles.append(self._generator.submit(request, partial(self._receive, index)))
        except BaseException:
            self.cancel()
            raise

    async def take(self) -> list[tuple[int, Event]]:
        """What has come, with the place of its choice; waits for something.

        Raises:
            ClientGoneError: The client left.
            SlowClientError: It reads too slowly.
        """
        taken: list[tuple[int, Event]] = []
        while not taken:
            await self._arrived.wait()
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            with self._lock:
                taken, self._events = self._events, []
        return taken

    def leave(self) -> None:
        """The client left: its sequences end at their next token."""
        self._give_up(ClientGoneError("the client left before its answer was ready"))

    def cancel(self) -> None:
        """End what has not ended."""
        # Handles lead back here: kept, they would hold a model that was swapped out until the garbage is collected.
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.cancel()

    def _receive(self, index: int, events: Sequence[Event]) -> Callable[[], object] | None:
        """Called in the generator's thread; what comes back wakes the loop, once for all that have news."""
        with self._lock:
            waited = len(self._events)
            self._events.extend((index, event) for event in events)
            waits = len(self._events)
        return self._bell.ring_for(self) if not waited or waited <= MAX_WAITING < waits else None

    def look(self) -> None:
        """There is news; called in the loop's thread."""
        if len(self._events) > MAX_WAITING:
            self._give_up(
                SlowClientError(
                    "the client reads its answer too slowly",
                    expected=f"at most {MAX_WAITING:,} pieces that wait for it",
                    hint="read on, or ask for fewer log probabilities",
                )
            )
        self._arrived.set()

    def _give_up(self, error: EdgeOnnxError) -> None:
        self._error = self._error or error
        self.cancel()
        self._arrived.set()


class _Bell:
    """Wakes one event loop for all inboxes with news: a wake for each would cost more than the events do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._news: list[Inbox] = []

    def ring_for(self, inbox: Inbox) -> Callable[[], object]:
        with self._lock:
            self._news.append(inbox)
        return self._ring

    def _ring(self) -> None:
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the agent ended before this answer did
                loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._lock:
            news, self._news = self._news, []
        for inbox in news:
            inbox.look()


_BELLS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = weakref.WeakKeyDictionary()


def _bell() -> _Bell:
    loop = asyncio.get_running_loop()
    found = _BELLS.get(loop)
    if found is None:
        found = _BELLS[loop] = _Bell(loop)
    return found
