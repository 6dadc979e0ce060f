"""One run of the updater over a state directory: the lock, the parts, the status that is left behind."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.slots.journal import change_state
from device_agent.slots.store import UPDATE_LOCK
from device_agent.update.byhand import unblocked
from device_agent.update.enrollment import read_enrollment
from device_agent.update.parts import open_parts
from device_agent.update.reports import read_status, write_status
from device_agent.update.updater import Updater
from edgeonnx.errors import EdgeOnnxError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.slots.store import Store
    from device_agent.update.parts import Parts
    from device_agent.update.transfer.sources import Source
    from device_agent.update.updater import Outcome

    Opened = Callable[[Store], AbstractContextManager[Source]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the updater.

    Attributes:
        settings: The agent's settings.
        config: The file that they came from, or None.
        store: The state directory.
        dry: Take nothing.
        retry: Forget which releases failed on this device.
        source: Gives the repository's files; None: from where the device is enrolled to.
    """

    settings: AgentConfig
    config: Path | None
    store: Store
    dry: bool = False
    retry: bool = False
    source: Opened | None = None

    def __call__(self) -> tuple[list[Outcome], int]:
        """Carry it out: the outcomes, and the bytes that it received.

        Raises:
            EdgeOnnxError: What kept it from being carried out.
        """
        read_enrollment(self.store)
        with ExitStack() as held:
            held.enter_context(self.store.locked(UPDATE_LOCK, "an update"))
            if self.retry and not self.dry:
                _forget_blocked(self.store)
            settings, source = self.settings, None
            if self.source is not None:
                source = held.enter_context(self.source(self.store))
                # Somebody carried it here: there is nothing to save, and nothing to wait for.
                settings = replace(
                    settings, update=replace(settings.update, metered=False, window=None, bandwidth_bytes=None)
                )
            parts = open_parts(settings, self.config, self.store, source=source)
            return self._recorded(parts), parts.downloader.received

    def _recorded(self, parts: Parts) -> list[Outcome]:
        """The outcomes; how the run ended is written down for whoever asks, also if it failed."""
        failure: EdgeOnnxError | None = None
        message = ""
        try:
            outcomes = Updater(parts).run(dry=self.dry)
            failure = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
            message = "; ".join(f"{outcome.model}: {outcome.decision.reason}" for outcome in outcomes)
        except EdgeOnnxError as error:
            failure = error
            raise
        finally:
            if not self.dry:
                now, received = parts.clock.effective(), parts.downloader.received
                status = read_status(self.store).after(now=now, error=failure, message=message, received=received)
                write_status(self.store, status)
        return outcomes


def _forget_blocked(store: Store) -> None:
    for model in store.models():
        change_state(store, model, unblocked)
