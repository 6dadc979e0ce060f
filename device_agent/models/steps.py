"""What a load stands in, from the folder to the model that may serve: shared by all kinds of models."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from device_agent.models import memory
from device_agent.models.engines import open_best

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.config import AgentConfig
    from device_agent.inference.devices.cache import Cache
    from device_agent.inference.devices.compiled import Compiled
    from device_agent.inference.devices.providers import ProviderStatus
    from device_agent.models.engines import Answers, Best
    from device_agent.models.memory import Room, Usage
    from device_agent.models.priority import Usual
    from edgeonnx.bundle import Bundle, Verifier
    from edgeonnx.spec.selection import DeviceProfile


class Steps:
    """Measures the steps of loading one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def done(self, name: str) -> None:
        """The step of this name is over."""
        now = time.perf_counter()
        self.seconds[name] = round(now - self._last, 4)
        self._last = now


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load whose bundle is opened, and whose providers were tried.

    Attributes:
        bundle: The bundle.
        verifier: Hashes its files before they are used.
        config: The agent's settings.
        statuses: What became of each provider; see `inference.devices.opening.usable_here`.
        profile: What this machine has; None looks.
        cache: Keeps the work of a first load.
        compiled: What providers compile for the bundle's variants.
        room: The room in the memory.
        before: Memory before it; None: unknown.
        beside: The version that serves now and that this one replaces, for messages.
        usual: Starts threads that will serve, at the usual priority.
        steps: How long each step took so far.
    """

    bundle: Bundle
    verifier: Verifier
    config: AgentConfig
    statuses: Sequence[ProviderStatus]
    profile: DeviceProfile | None
    cache: Cache
    compiled: Compiled
    room: Room
    before: Usage | None
    beside: str | None
    usual: Usual
    steps: Steps

    def open(self, threads: int, *, answers: Answers | None = None, beside_weights: int = 0) -> Best:
        """Open the best variant with so many threads for each run; see `engines.open_best`."""
        from device_agent.inference.devices.providers import CPU_PROVIDER

        open_it = partial(
            open_best,
            self.bundle,
            replace(self.config, runtime=replace(self.config.runtime, threads=threads)),
            self.statuses,
            profile=self.profile,
            verifier=self.verifier,
            room=self.room,
            beside=self.beside,
            compiled=self.compiled,
            answers=answers,
            beside_weights=beside_weights,
        )
        # Threads that the runtime starts will serve.
        alone = threads == 1 and not any(each.usable and each.name != CPU_PROVIDER for each in self.statuses)
        return open_it() if alone else self.usual.run(open_it)

    def growth(self) -> Usage:
        """Memory that the load took until now."""
        now = memory.usage()
        return memory.NOTHING if now is None or self.before is None else now.since(self.before)
