"""What serves, and what to do when it does not load: pure decisions over a model's state.

- A release that was proven serves from the next start or swap on, on probation.
- Each load on probation uses up a try, which is written down before the load: a release that takes the machine down is
  found out by its tries. With none left, the previous version serves again.
- A release that does not load on probation is rolled back at once.
- A committed bundle that is damaged on the disk gives way to the previous one. Nothing is wrong with the release, so
  it is not blocked: it counts as not installed, and the next update fetches what is damaged.
- A committed bundle that does not load for another reason (memory, a library) stays what is installed, and the
  previous one serves until the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.slots.state import step
from device_agent.slots.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Collection

    from device_agent.slots.state import Installed, SlotState

PROVEN, PROBATION = AttemptState.PROVEN, AttemptState.PROBATION


def at_start(state: SlotState, *, now: float) -> SlotState:
    """The state that is written before anything is loaded; the same one if there is nothing to write.

    Args:
        state: As it was found.
        now: The effective time, in seconds since 1970.
    """
    attempt = state.running
    if attempt is None or attempt.state not in (PROVEN, PROBATION):
        return state
    if attempt.state is PROBATION and attempt.tries_left <= 0:
        reason = attempt.reason or "it was started as often as allowed and never lasted through its probation"
        return step(state, AttemptState.ROLLED_BACK, now=now, reason=reason)
    return enter_probation(state, now=now)


def enter_probation(state: SlotState, *, now: float) -> SlotState:
    """The state in which a proven release may be loaded, or one on probation again: a try is used up.

    Args:
        state: With an attempt that is proven or on probation.
        now: The effective time, in seconds since 1970.
    """
    attempt = state.running
    if attempt is None:
        raise RuntimeError("no attempt is running")
    return step(state, PROBATION, now=now, tries_left=max(0, attempt.tries_left - 1))


def give_try_back(state: SlotState, *, contents: str, tries: int, now: float) -> SlotState:
    """The state after an orderly stop on probation, which says nothing against the release.

    Args:
        state: As it was found.
        contents: Digest of what served.
        tries: `update.tries`, the most that there are.
        now: The effective time, in seconds since 1970.
    """
    attempt = on_probation(state)
    if attempt is None or attempt.contents != contents or state.attempt is None:
        return state
    return step(state, PROBATION, now=now, tries_left=min(tries, state.attempt.tries_left + 1))


def wait_for_start(state: SlotState, contents: str, reason: str, *, now: float) -> SlotState:
    """The state after a release could not be swapped in beside what serves, for no fault of its own: proven, as before.

    The next start loads it alone.

    Args:
        state: With the attempt on probation.
        contents: Digest of the release.
        reason: What it waits for.
        now: The effective time, in seconds since 1970.
    """
    release = on_probation(state)
    if release is None or release.contents != contents or state.attempt is None:
        return state
    return step(state, PROVEN, now=now, reason=reason, tries_left=state.attempt.tries_left + 1)


def after_failed_load(state: SlotState, contents: str, reason: str, *, damaged: bool, now: float) -> SlotState:
    """The state after an installed bundle did not load; the same one if there is nothing to write.

    Args:
        state: As it is.
        contents: Digest of the bundle.
        reason: Why it did not load.
        damaged: Its files are not what they were when they were verified.
        now: The effective time, in seconds since 1970.
    """
    release = on_probation(state)
    if release is not None and release.contents == contents:
        return step(state, AttemptState.ROLLED_BACK, now=now, reason=f"it does not load: {reason}")
    if not damaged:
        return state
    if state.active is not None and state.active.contents == contents:
        return replace(state, active=state.previous, previous=None)
    if state.previous is not None and state.previous.contents == contents:
        return replace(state, previous=None)
    return state


def on_probation(state: SlotState) -> Installed | None:
    """The release that is on probation, or None."""
    attempt = state.running
    return attempt.release if attempt is not None and attempt.state is PROBATION else None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What to do about a model while the agent serves.

    Attributes:
        take: The proven release to begin a probation with, or None.
        serve: What shall serve instead of what does, or None.
        stop: Nothing that is installed may serve any more.
    """

    take: Installed | None = None
    serve: Installed | None = None
    stop: bool = False

    def __bool__(self) -> bool:
        return self.stop or self.take is not None or self.serve is not None


def next_turn(state: SlotState, serving: str | None, unfit: Collection[str], *, waits: bool = False) -> Turn:
    """What to do about a model while the agent serves, by what its state says.

    Args:
        state: As it is on the disk.
        serving: Digest of what serves; None: nothing that is installed.
        unfit: Digests that did not load in this process.
        waits: The proven release waits for the next start.
    """
    attempt = state.running
    if attempt is not None and attempt.state is PROVEN and not waits:
        return Turn(take=attempt.release)
    wanted = next_choice(state, unfit)
    if wanted is None:
        return Turn(stop=serving is not None and serving not in unfit)
    return Turn(serve=wanted if wanted.contents != serving else None)


def next_choice(state: SlotState, unfit: Collection[str]) -> Installed | None:
    """What shall serve: the active version, or where that did not load, the previous one."""
    return next((each for each in (state.active, state.previous) if each and each.contents not in unfit), None)
