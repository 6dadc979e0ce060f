"""One update of one device, from the repository's metadata to a proven candidate.

Each step is written down before it begins, may be repeated, and leaves the active slot alone. An update never
activates: the serving process does that by a swap, or the next start does (`device_agent.supervision`).

Most runs find nothing new. What only the others need (decoders, NumPy) is imported when it is needed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.slots.journal import change_state
from device_agent.slots.state import Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.update.policy import Action, Decision, Situation, decide
from edgeonnx.errors import (
    CandidateError,
    EdgeOnnxError,
    NoSpaceError,
    StateError,
    UntrustedError,
)
from edgeonnx.spec.partial import PARTIAL_FILE
from edgeonnx.spec.release import Release, channel_target, release_target
from edgeonnx.spec.rollout import Channel, ModelOffers, Offer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_agent.update.install.contents import Contents
    from device_agent.update.install.staging import Staging
    from device_agent.update.parts import Parts

    Change = Callable[[SlotState], SlotState]

logger = logging.getLogger("edgeonnx.update")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an update did for one model.

    Attributes:
        model: The model.
        decision: What was decided.
        state: Its state afterwards.
        error: What kept it from going on, or None.
        fetch_bytes: In a dry run, the most bytes that would be fetched; None if nothing would be.
    """

    model: str
    decision: Decision
    state: SlotState
    error: EdgeOnnxError | None = None
    fetch_bytes: int | None = None


class Updater:
    """Updates the models of one device. Hold the update lock while it works."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def run(self, *, dry: bool = False) -> list[Outcome]:
        """Ask the repository, and take what it offers. A failure of one model does not keep the others from theirs.

        Args:
            dry: Only say what would be done. The lists of files of what would be taken are fetched for that.

        Raises:
            FetchError: The repository cannot be reached; the next run may succeed.
            UntrustedError: What it gave is not signed as it must be.
            NoSpaceError, StateError: The disk does not take it.
        """
        parts = self._parts
        if not dry:
            for model in parts.store.models():
                parts.reporter.state(parts.store.read_state(model))
        parts.metadata.refresh()
        channel = self._channel()
        names = parts.enrollment.models or tuple(channel.models)
        outcomes = [self._guarded(name, channel.models.get(name, ModelOffers()), dry=dry) for name in names]
        if not dry:
            # Whatever is linked or unlinked looks changed to a process that loads it at that moment.
            if not any(_is_taken_up(outcome.state) for outcome in outcomes):
                self._collect()
            parts.reporter.flush()
        return outcomes

    def _channel(self) -> Channel:
        name = self._parts.enrollment.channel
        path = channel_target(name)
        data = self._parts.metadata.target(path)
        if data is None:
            raise UntrustedError(
                "the repository has no such channel", where=name, hint="edgeonnx-agent enroll --channel NAME"
            )
        try:
            channel = Channel.from_bytes(data, file=path)
        except EdgeOnnxError as error:
            raise UntrustedError("the signed channel cannot be read", where=path, found=str(error)) from None
        if channel.name != name:
            raise UntrustedError("the signed channel is another one", where=path, expected=name, found=channel.name)
        return channel

    def _guarded(self, model: str, offers: ModelOffers, *, dry: bool) -> Outcome:
        situation = self._situation(model, offers)
        decision = decide(situation)
        try:
            if dry:
                return self._dry(model, situation.state, decision)
            state = self._update(situation.state, decision)
        except EdgeOnnxError as error:
            state = self._parts.store.read_state(model)
            return Outcome(model=model, decision=decision, state=state, error=error)
        return Outcome(model=model, decision=decision, state=state, error=_failure(situation.state, state))

    def _situation(self, model: str, offers: ModelOffers) -> Situation:
        parts = self._parts
        state = parts.store.read_state(model)
        return Situation(
            device=parts.enrollment.device,
            state=state,
            offers=offers,
            metered=parts.config.update.metered,
            in_window=parts.window is None or parts.window.contains(parts.clock.effective()),
            here=frozenset(each for each in state.in_use() if parts.store.slot_fault(model, each) is None),
        )

    def _dry(self, model: str, state: SlotState, decision: Decision) -> Outcome:
        if decision.action is Action.KEEP or decision.offer is None:
            return Outcome(model=model, decision=decision, state=state)
        release = self._release(model, decision.offer)
        staging = self._staging(release, self._contents(release))
        return Outcome(model=model, decision=decision, state=state, fetch_bytes=staging.missing())

    def _update(self, state: SlotState, decision: Decision) -> SlotState:
        logger.info("%s: %s", state.model, decision.reason)
        if decision.abandon:
            state = self._go(state, AttemptState.ABANDONED, decision.abandon)
        if decision.action is Action.INSTALL and decision.offer is not None:
            return self._install(state, decision.offer)
        if decision.action is Action.KEEP and decision.offer is not None:
            return self._mend(state, decision.offer)
        return state

    def _install(self, state: SlotState, offer: Offer) -> SlotState:
        """Take up or begin the attempt for an offer, and go as far as it goes."""
        release = self._release(state.model, offer)
        wanted = Installed(version=offer.version, contents=offer.contents)
        running = state.running
        if running is not None and running.state is AttemptState.PROBATION:
            logger.info("%s %s is on probation; %s waits", state.model, running.release.version, offer.version)
            return state
        if running is not None and running.state is AttemptState.PROVEN:
            logger.info("%s %s is proven; it serves from the next swap or start on", state.model, wanted.version)
            return state
        if running is None:
            tries, now = self._parts.config.update.tries, self._parts.clock.effective()
            state = self._change(state, lambda found: begin(found, wanted, tries=tries, now=now))
        try:
            state = self._stage(state, release)
            self._collect()
            return self._prove(state)
        except CandidateError as error:
            return self._go(state, AttemptState.REJECTED, str(error))

    def _mend(self, state: SlotState, offer: Offer) -> SlotState:
        """Fetch what the active slot lacks: files that somebody removed, or a variant that this machine now needs."""
        parts = self._parts
        active = state.active
        if active is None or state.running is not None:
            return state
        fault = parts.store.slot_fault(state.model, active.contents) or self._outgrown(state.model, active.contents)
        if fault is None:
            return state
        if parts.config.update.metered:
            logger.warning("%s %s: the slot %s; the link is metered", state.model, active.version, fault)
            return state
        release = self._release(state.model, offer)
        logger.warning("%s %s: the slot %s; what it lacks is fetched", state.model, active.version, fault)
        self._staged(release)
        # Written anew so that the serving process notices: it may serve the previous version for want of this one.
        return self._change(state, replace)

    def _outgrown(self, model: str, contents: str) -> str | None:
        """Why an active slot that lacks variants may lack one that this machine would run now; None if it does not."""
        if not (self._parts.store.slot(model, contents) / PARTIAL_FILE).exists():
            return None
        from device_agent.update.install.variants import is_outdated, machine_key

        if not is_outdated(self._parts.store, model, contents, machine_key(self._parts.config)):
            return None
        return "has the variants for another machine, or for other settings"

    def _stage(self, state: SlotState, release: Release) -> SlotState:
        """Have the bundle in its slot. A slot from an earlier run is checked again: it is cheap, and disks forget."""
        attempt = state.running
        if attempt is not None and attempt.state is not AttemptState.DOWNLOADING:
            state = self._go(state, AttemptState.DOWNLOADING)
        self._staged(release)
        return self._go(state, AttemptState.STAGED)

    def _staged(self, release: Release) -> Path:
        """The release's slot, whole. Where the disk is full, what nobody needs is removed first."""
        from device_agent.update.install.variants import machine_key, remember

        parts = self._parts
        contents = self._contents(release)
        try:
            slot = self._staging(release, contents).stage()
        except NoSpaceError as error:
            if not self._collect():
                raise
            logger.info("room was made after: %s", error)
            slot = self._staging(release, contents).stage()
        remember(parts.store, release.name, release.contents, machine_key(parts.config))
        logger.info(
            "%s %s is staged: %d contents fetched, %d bytes received",
            release.name,
            release.version,
            contents.fetched,
            parts.downloader.received,
        )
        return slot

    def _contents(self, release: Release) -> Contents:
        from device_agent.update.install.contents import Contents

        return Contents(self._parts.store, self._parts.downloader, release)

    def _staging(self, release: Release, contents: Contents) -> Staging:
        from device_agent.update.install.staging import Limits, Staging

        update = self._parts.config.update
        limits = Limits(reserve=update.disk_reserve_bytes, connections=update.connections)
        choose = self._choose if update.variants == "needed" else None
        return Staging(self._parts.store, contents, release, limits, choose)

    def _choose(self, metadata: Path) -> tuple[str, ...]:
        """The variants of a bundle that this machine would run."""
        parts = self._parts
        verdict = parts.choose(metadata, parts.config.update, parts.settings_file)
        if not verdict.proven:
            # What a machine can run changes with its drivers and settings: that is no fault of the release.
            raise StateError("no variant of the release can be chosen here", found=verdict.reason)
        return verdict.variants

    def _prove(self, state: SlotState) -> SlotState:
        """Load the candidate until it gave its golden answers, or its tries are over."""
        from device_agent.update.install.trial import Kind

        parts = self._parts
        attempt = state.running
        while attempt is not None:
            if attempt.tries_left == 0:
                return self._go(state, AttemptState.REJECTED, attempt.reason or "its tries are over")
            # Written before the load: a candidate that takes the machine down has used up a try.
            state = self._go(state, AttemptState.CANDIDATE, attempt.reason, tries_left=attempt.tries_left - 1)
            slot = parts.store.slot(state.model, attempt.release.contents)
            verdict = parts.prove(slot, parts.config.update, parts.settings_file)
            if verdict.proven:
                return self._go(state, AttemptState.PROVEN, tries_left=parts.config.update.tries)
            logger.warning("%s %s did not prove itself: %s", state.model, attempt.release.version, verdict.reason)
            if verdict.kind is Kind.REJECTED:
                return self._go(state, AttemptState.REJECTED, verdict.reason)
            if verdict.kind is Kind.POSTPONED:
                return self._go(state, AttemptState.CANDIDATE, verdict.reason, tries_left=attempt.tries_left)
            state = self._go(state, AttemptState.CANDIDATE, verdict.reason)
            if verdict.kind is Kind.STARVED:
                return state
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
        except EdgeOnnxError as error:
            raise UntrustedError("the signed release cannot be read", where=where, found=str(error)) from None
        if (release.name, release.version, release.contents) != (model, offer.version, offer.contents):
            raise UntrustedError(
                "the channel and the release disagree",
                where=where,
                expected=f"contents {release.contents} of {release.name} {release.version}",
                found=offer.contents,
            )
        return release

    def _collect(self) -> int:
        """Remove what nobody needs; bytes that were freed."""
        try:
            return self._parts.store.collect()
        except (StateError, NoSpaceError) as error:
            logger.warning("what nobody needs could not be removed: %s", error)
            return 0

    # Writing states.

    def _go(self, state: SlotState, to: AttemptState, reason: str = "", *, tries_left: int | None = None) -> SlotState:
        now = self._parts.clock.effective()
        return self._change(state, lambda found: step(found, to, now=now, reason=reason, tries_left=tries_left))

    def _change(self, expected: SlotState, change: Change) -> SlotState:
        """Write the next state, unless somebody else has taken the attempt further meanwhile."""

        def checked(found: SlotState) -> SlotState:
            if found.attempt != expected.attempt:
                raise StateError(
                    "the attempt was changed by another process meanwhile",
                    where=found.model,
                    found="none" if found.attempt is None else found.attempt.state.value,
                    hint="the next run goes on from there",
                )
            return change(found)

        state = change_state(self._parts.store, expected.model, checked)
        self._parts.reporter.state(state, self._parts.downloader.received)
        return state


def _is_taken_up(state: SlotState) -> bool:
    """Whether the serving process may be loading the attempt's release."""
    attempt = state.running
    return attempt is not None and attempt.state in (AttemptState.PROVEN, AttemptState.PROBATION)


def _failure(before: SlotState, after: SlotState) -> EdgeOnnxError | None:
    """What a person has to know of an attempt that ended badly, or does not go on, in this run."""
    attempt = after.attempt
    if attempt is None or attempt == before.attempt:
        return None
    where = f"{after.model} {attempt.release.version}"
    if attempt.state is AttemptState.REJECTED:
        return CandidateError(
            "the release is refused",
            where=where,
            found=attempt.reason,
            hint="the version that serves is not touched; this device does not take this release again",
        )
    if attempt.state is AttemptState.CANDIDATE and attempt.reason:
        return StateError("the release waits", where=where, found=attempt.reason, hint="the next run tries again")
    return None
