"""The models that requests meet: loaded, swapped, drained and unloaded while the agent serves.

The registry belongs to the event loop's thread. Each name has at most one version that serves; a swap loads the new
version beside the old one, turns new requests to it in one step, and closes the old one when its last request is
answered.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.errors import EdgeOnnxError, ModelNotFoundError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.loading import LoadedModel

logger = logging.getLogger("edgeonnx.agent")


class ModelState(Enum):
    """Where a model stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    UNLOADED = "unloaded"


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One line of the repository index.

    Attributes:
        name: Name of the model; the folder's, where the bundle cannot be read.
        version: Version, or an empty string if it is not known.
        state: Where it stands.
        reason: Why it does not serve; empty if it does.
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
        """The model for the length of one request; `idle` waits for it."""
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


class Models:
    """All models of the agent.

    Args:
        config: The agent's settings.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._live: dict[str, LiveModel] = {}
        self._retiring: set[LiveModel] = set()
        self._default: str | None = None
        self.draining = False
        self.error: EdgeOnnxError | None = None

    @property
    def ready(self) -> bool:
        """Whether every model that was asked for at start serves."""
        return bool(self._live) and not self.draining

    @property
    def state(self) -> str:
        """Where the agent as a whole stands, in a word."""
        if self.draining:
            return ModelState.DRAINING.value
        return ModelState.READY.value if self._live else ModelState.LOADING.value

    @property
    def in_flight(self) -> int:
        """Requests in all models."""
        return sum(live.in_flight for live in (*self._live.values(), *self._retiring))

    def all(self) -> list[LiveModel]:
        """The models that serve, in the order in which they were loaded first."""
        return list(self._live.values())

    def serve(self, loaded: LoadedModel) -> None:
        """Turn new requests for its name to `loaded`; a version that served before is retired."""
        if self._default is None:
            self._default = loaded.name
        before = self._live.get(loaded.name)
        self._live[loaded.name] = LiveModel(loaded)
        if before is not None:
            self._retiring.add(before)

    def check_ready(self) -> None:
        """Refuse early what cannot be answered.

        Raises:
            NotReadyError: No model serves yet, or the agent is stopping.
        """
        if self.draining or not self._live:
            raise NotReadyError(
                "the agent is not ready",
                found="draining" if self.draining else "loading",
                hint=None if self.draining else "ask /v2/health/ready until it answers 200",
            )

    def find(self, name: str | None = None, version: str | None = None) -> LiveModel:
        """The model that serves under a name.

        Args:
            name: Name in the request; None takes the first model.
            version: Version in the request; None takes whatever serves.

        Raises:
            NotReadyError: It is loading, or the agent is stopping.
            ModelNotFoundError: There is none of that name or version.
        """
        self.check_ready()
        live = self._live.get(self._default or "" if name is None else name)
        if live is None:
            raise ModelNotFoundError(
                "no such model",
                where="model",
                expected=" or ".join(map(repr, self._live)),
                found=repr((name or "")[:80]),
            )
        if version not in (None, "", live.loaded.version):
            raise ModelNotFoundError(
                "no such version of the model",
                where="version",
                expected=repr(live.loaded.version),
                found=repr((version or "")[:80]),
            )
        return live

    def index(self) -> list[ModelEntry]:
        """Every model that serves, or could: the repository index."""
        return [
            ModelEntry(name=live.loaded.name, version=live.loaded.version, state=ModelState.READY)
            for live in self._live.values()
        ]

    async def load(self, name: str, path: Path | None = None) -> None:
        """Load a model, or swap it for what its bundle holds now."""
        raise ModelNotFoundError("there is no repository", where=name, hint="start the agent with --repository")

    async def unload(self, name: str) -> None:
        """Stop serving a model, and free its memory when its last request is answered."""
        raise ModelNotFoundError("there is no repository", where=name, hint="start the agent with --repository")

    def drain(self) -> None:
        """Take no new request; those in flight are finished."""
        self.draining = True

    async def drained(self, timeout: float) -> bool:
        """Wait until no request is in flight; False if some still are after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                for live in (*self._live.values(), *self._retiring):
                    await live.idle()
        except TimeoutError:
            return False
        return True

    def close(self, timeout: float) -> bool:
        """End all runner threads; False if one still runs."""
        return all([live.loaded.close(timeout) for live in (*self._live.values(), *self._retiring)])
