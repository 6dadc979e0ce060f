"""One update of one device, from the repository's metadata to a proven candidate.

Each step is written down before it begins, may be repeated, and leaves the active slot alone. An update never
activates: the serving process does that by a swap, or the next start does (`device_agent.supervision`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.slots.state import Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.update.policy import Action, Decision, Situation, decide
from device_agent.update.staging import stage
from device_agent.update.trial import prove
from edgeonnx.errors import BlobError, CandidateError, ManifestError, SchemaVersionError, UntrustedError
from edgeonnx.spec.release import Release, channel_target, release_target
from edgeonnx.spec.rollout import Channel, ModelOffers, Offer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_agent.config import AgentConfig
    from device_agent.slots.store import Store
    from device_agent.update.clock import Clock
    from device_agent.update.downloader import Downloader
    from device_agent.update.enrollment import Enrollment
    from device_agent.update.metadata import TrustedMetadata
    from device_agent.update.trial import Verdict

    Prove = Callable[..., Verdict]
    Report = Callable[[SlotState], None]

logger = logging.getLogger("edgeonnx.update")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an update works with.

    Attributes:
        config: The agent's settings.
        settings_file: The file that they came from, for the candidate's process, or None.
        store: The state directory.
        enrollment: Whose offers are followed.
        metadata: What the repository's keys signed.
        downloader: Fetches from the repository.
        clock: The effective time.
        prove: Proves a candidate; tests put a fake here.
        report: Told of each state that is written.
    """

    config: AgentConfig
    settings_file: Path | None
    store: Store
    enrollment: Enrollment
    metadata: TrustedMetadata
    downloader: Downloader
    clock: Clock
    prove: Prove = prove
    report: Report = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an update did for one model."""

    model: str
    decision: Decision
    state: SlotState


class Updater:
    """Updates the models of one device. Hold the update lock while it works."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def run(self, *, dry: bool = False) -> list[Outcome]:
        """Ask the repository, and take what it offers.

        Args:
            dry: Only say what would be done.

        Raises:
            FetchError: The repository cannot be reached; the next run may succeed.
            UntrustedError: What it gave is not signed as it must be.
            NoSpaceError, StateError: The disk does not take it.
        """
        parts = self._parts
        parts.metadata.refresh()
        channel = self._channel()
        names = parts.enrollment.models or tuple(channel.models)
        return [self._update(name, channel.models.get(name, ModelOffers()), dry=dry) for name in names]

    def _channel(self) -> Channel:
        name = self._parts.enrollment.channel
        data = self._parts.metadata.target(channel_target(name))
        if data is None:
            raise UntrustedError(
                "the repository has no such channel", where=name, hint="edgeonnx-agent enroll --channel NAME"
            )
        return Channel.from_bytes(data, file=channel_target(name))

    def _update(self, model: str, offers: ModelOffers, *, dry: bool) -> Outcome:
        parts = self._parts
        state = parts.store.read_state(model)
        situation = Situation(
            device=parts.enrollment.device, state=state, offers=offers, metered=parts.config.update.metered
        )
        decision = decide(situation)
        if decision.action is Action.INSTALL and decision.offer is not None and not dry:
            state = self._install(state, decision.offer)
        return Outcome(model=model, decision=decision, state=state)

    def _install(self, state: SlotState, offer: Offer) -> SlotState:
        """Take up or begin the attempt for an offer, and go as far as it goes."""
        wanted = Installed(version=offer.version, contents=offer.contents)
        running = state.running
        if running is not None and running.state is AttemptState.PROBATION:
            logger.info("%s %s is on probation; %s waits", state.model, running.release.version, offer.version)
            return state
        if running is not None and running.release == wanted and running.state is AttemptState.PROVEN:
            logger.info(
                "%s %s is proven already; it serves from the next swap or start on", state.model, wanted.version
            )
            return state
        if running is not None and running.release != wanted:
            state = self._go(state, AttemptState.ABANDONED, f"{offer.version} is offered instead")
        if state.running is None:
            state = self._write(
                begin(state, wanted, tries=self._parts.config.update.tries, now=self._parts.clock.effective())
            )
        release = self._release(state.model, offer)
        try:
            state = self._stage(state, release)
            return self._prove(state)
        except (CandidateError, BlobError) as error:
            return self._go(state, AttemptState.REJECTED, str(error))

    def _stage(self, state: SlotState, release: Release) -> SlotState:
        """Have the bundle in its slot. A slot from an earlier run is checked again: it is cheap, and disks forget."""
        attempt = state.running
        if attempt is not None and attempt.state is not AttemptState.DOWNLOADING:
            state = self._go(state, AttemptState.DOWNLOADING)
        stage(
            self._parts.store,
            self._parts.downloader,
            release,
            reserve=self._parts.config.update.disk_reserve_bytes,
        )
        return self._go(state, AttemptState.STAGED)

    def _prove(self, state: SlotState) -> SlotState:
        """Load the candidate until it gave its golden answers, or its tries are over."""
        parts = self._parts
        attempt = state.running
        while attempt is not None:
            if attempt.tries_left == 0:
                return self._go(state, AttemptState.REJECTED, attempt.reason or "its tries are over")
            # Written before the load: a candidate that takes the machine down has used up a try.
            state = self._go(state, AttemptState.CANDIDATE, tries_left=attempt.tries_left - 1)
            slot = parts.store.slot(state.model, attempt.release.contents)
            verdict = parts.prove(slot, parts.config.update, parts.settings_file)
            if verdict.proven:
                return self._go(state, AttemptState.PROVEN, tries_left=parts.config.update.tries)
            logger.warning("%s %s did not prove itself: %s", state.model, attempt.release.version, verdict.reason)
            if not verdict.crashed:
                return self._go(state, AttemptState.REJECTED, verdict.reason)
            state = self._go(state, AttemptState.CANDIDATE, verdict.reason)
            attempt = state.running
        return state

    def _release(self, model: str, offer: Offer) -> Release:
        """The signed release that an offer names: the channel alone is not enough."""
        path = release_target(model, offer.version)
        data = self._parts.metadata.target(path)
        where = f"{model} {offer.version}"
        if data is None:
            raise UntrustedError("the channel offers a release that was never signed", where=where)
        try:
            release = Release.from_bytes(data, file=path)
        except (ManifestError, SchemaVersionError) as error:
            raise UntrustedError("the signed release cannot be read", where=where, found=str(error)) from None
        if (release.name, release.version, release.contents) != (model, offer.version, offer.contents):
            raise UntrustedError(
                "the channel and the release disagree",
                where=where,
                expected=f"contents {release.contents}",
                found=offer.contents,
            )
        return release

    def _go(self, state: SlotState, to: AttemptState, reason: str = "", *, tries_left: int | None = None) -> SlotState:
        now = self._parts.clock.effective()
        return self._write(step(state, to, now=now, reason=reason, tries_left=tries_left))

    def _write(self, state: SlotState) -> SlotState:
        state = self._parts.store.write_state(state)
        self._parts.report(state)
        return state
