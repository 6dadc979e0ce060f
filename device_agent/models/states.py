"""Where a model stands: the states of an attempt to serve a bundle, as a table, and what is known of each attempt."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from device_agent.models.loaded import LoadedModel


class ModelState(Enum):
    """Where an attempt to serve a bundle stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    UNLOADED = "unloaded"


# Each attempt to serve a bundle goes through these states; trying again begins anew.
TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED}),
    ModelState.READY: frozenset({ModelState.DRAINING}),
    ModelState.DRAINING: frozenset({ModelState.UNLOADED}),
    ModelState.FAILED: frozenset(),
    ModelState.UNLOADED: frozenset(),
}


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One line of the repository index.

    Attributes:
        name: Name of the model; the folder's, where the bundle cannot be read.
        version: Version, or an empty string if it is not known.
        state: Where it stands.
        reason: Why it does not serve, or what is wrong with it; empty if nothing is.
    """

    name: str
    version: str
    state: ModelState
    reason: str = ""


class LiveModel:
    """A loaded model and the requests in it."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def use(self) -> Iterator[LoadedModel]:
        """The model for the length of one request; `idle` waits for it.

        There must be no `await` between `Models.find` and this: then the model cannot be unloaded meanwhile.
        """
        self.in_flight += 1
        self._idle.clear()
        try:
            yield self.loaded
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is in the model."""
        await self._idle.wait()


class Record:
    """One attempt to serve a bundle."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.state = ModelState.LOADING
        self.reason = ""
        self.live: LiveModel | None = None

    def go(self, state: ModelState, reason: str = "") -> None:
        """Enter a state of the table.

        Raises:
            RuntimeError: The table has no such transition: a fault of this module.
        """
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"no transition from {self.state.value} to {state.value}")
        self.state, self.reason = state, printable(reason)
