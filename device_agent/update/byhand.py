"""What an operator may change in a model's state by hand. Pure; `journal.change_state` writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from device_agent.slots.state import revert
from edgeonnx.errors import UpdateError
from edgeonnx.spec.paths import check_bundle_version

if TYPE_CHECKING:
    from device_agent.slots.state import SlotState


def rolled_back(state: SlotState, *, now: float, reason: str, block: bool = True) -> SlotState:
    """The state in which the previous version serves again.

    Args:
        state: As it is.
        now: The effective time, in seconds since 1970.
        reason: Why, for people.
        block: This device does not take again what served until now. If not, it stays at hand as the previous version,
            and the next update takes it again unless the device is pinned.

    Raises:
        UpdateError: There is no previous version.
    """
    if state.active is None or state.previous is None:
        raise UpdateError(
            "there is no version to go back to",
            where=state.model,
            found="nothing is installed" if state.active is None else f"{state.active.version} alone",
            hint="publish the version that you want, or withdraw the one that serves (edgeonnx rollout --withdraw)",
        )
    after = revert(state, reason=reason, now=now)
    if block:
        return after
    return replace(unblocked(after, state.active.contents), previous=state.active)


def pinned(state: SlotState, version: str | None) -> SlotState:
    """The state in which the device takes one version only, or any again (None).

    Raises:
        UsageError: It is no version.
    """
    if version is not None:
        check_bundle_version(version)
    return state if state.pin == version else replace(state, pin=version)


def unblocked(state: SlotState, contents: str | None = None) -> SlotState:
    """The state in which a digest (None: every one) may be taken again that failed here before."""
    kept = tuple(each for each in state.blocked if contents not in (None, each.contents))
    return state if kept == state.blocked else replace(state, blocked=kept)
