"""What the supervision tells the status page and the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.monitoring.updates import AttemptView, BlockedView, InstalledView, UpdatesView

if TYPE_CHECKING:
    from device_agent.models.loaded import LoadedModel
    from device_agent.slots.state import SlotState
    from device_agent.supervision.supervisor import Supervisor


def updates_view(supervisor: Supervisor) -> UpdatesView:
    """Updates as they are now."""
    runs = supervisor.runs
    next_run, last = supervisor.rounds.next, supervisor.installation.last_run
    return UpdatesView(
        enrolled=runs.enrolled,
        running=runs.running,
        checked_at=last.checked_at,
        ok=last.ok,
        message=last.message,
        received_bytes=last.received_bytes_total,
        next_seconds=None if next_run is None else round(max(0.0, next_run - supervisor.clock()), 1),
        counts=dict(runs.counts),
        models=[_installed(state, supervisor) for _, state in sorted(supervisor.states.items())],
    )


def _installed(state: SlotState, supervisor: Supervisor) -> InstalledView:
    name = state.model
    loaded = supervisor.serving(name)
    return InstalledView(
        name=name,
        active=None if state.active is None else state.active.version,
        serving=None if loaded is None else loaded.version,
        degraded=degraded(state, loaded, supervisor.installed(name), supervisor.installation.unfit.get(name, {})),
        previous=None if state.previous is None else state.previous.version,
        pin=state.pin,
        attempt=_attempt(state, supervisor.probation_left(name)),
        blocked=[BlockedView(version=each.version, reason=each.reason, at=each.at) for each in state.blocked],
        damage=supervisor.installation.faults(name),
        rollbacks=supervisor.rollbacks.get(name, 0),
    )


def degraded(state: SlotState, loaded: LoadedModel | None, installed: str | None, unfit: dict[str, str]) -> str:
    """Why another version serves than the active one; empty if that is not so.

    Args:
        state: The model's state.
        loaded: What serves, or None.
        installed: Digest of what serves, if it is installed.
        unfit: What did not load, with the reasons.
    """
    active = state.active
    if active is not None and installed == active.contents:
        return ""
    # A damaged bundle is not the active one any more; that it did not load is still the reason.
    found = unfit.get(active.contents) if active is not None else None
    reason = found or next(reversed(unfit.values()), "")
    if active is None:
        return "" if loaded is not None and not reason else f"nothing is installed{reason and ': '}{reason}"
    return f"{active.version} does not serve{reason and ': '}{reason}"


def _attempt(state: SlotState, left: float | None) -> AttemptView | None:
    attempt = state.attempt
    if attempt is None:
        return None
    return AttemptView(
        version=attempt.release.version,
        state=attempt.state.value,
        reason=attempt.reason,
        since=attempt.since,
        tries_left=attempt.tries_left,
        probation_seconds_left=None if left is None else round(max(0.0, left), 1),
    )
