"""The updates on the status page: for each installed model what serves, what is tried, and what is refused."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING

from device_agent.slots.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from device_agent.api.monitoring.updates import AttemptView, InstalledView, UpdatesView

MOST_BLOCKED = 5
"""Blocked versions that are shown, the latest first; `edgeonnx-agent status` shows all."""

_KINDS = {
    AttemptState.COMMITTED.value: "good",
    AttemptState.PROBATION.value: "warn",
    AttemptState.REJECTED.value: "bad",
    AttemptState.ROLLED_BACK.value: "bad",
}


def updates_section(updates: UpdatesView) -> str:
    """The section as HTML."""
    models = "".join(_model(model) for model in updates.models)
    nothing = '<p class="soft">no model is installed yet</p>' if not updates.models else ""
    return f'<section id="updates"><h2>Updates</h2><p>{_looks(updates)}</p>{models}{nothing}</section>'


def _looks(updates: UpdatesView) -> str:
    """When a release was looked for, what came of it, and when the next look is."""
    if not updates.enrolled:
        return '<span class="soft">This device is not enrolled: it asks no repository.</span>'
    parts = []
    if updates.checked_at is not None:
        kind, text = ("good", "in order") if updates.ok else ("bad", "failed")
        why = f" ({escape(updates.message)})" if updates.message else ""
        parts.append(f'last look {moment(updates.checked_at)}: <strong class="{kind}">{text}</strong>{why}')
    if updates.running:
        parts.append("a look goes on now")
    elif updates.next_seconds is not None:
        parts.append(f"the next one in {whole_seconds(updates.next_seconds)}")
    return "; ".join(parts) or "no look yet"


def _model(model: InstalledView) -> str:
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in _facts(model))
    alerts = "".join(
        f'<p class="alert"><strong class="bad">{escape(model.name)}:</strong> {escape(text)}</p>'
        for text in (model.degraded, model.damage)
        if text
    )
    return f"<h3>{escape(model.name)}</h3>{alerts}<table>{rows}</table>"


def _facts(model: InstalledView) -> Iterator[tuple[str, str]]:
    none = '<span class="soft">none</span>'
    yield "serves", none if model.serving is None else f"<strong>{escape(model.serving)}</strong>"
    yield "installed", none if model.active is None else escape(model.active)
    yield "previous", none if model.previous is None else escape(model.previous)
    if model.pin is not None:
        yield "pinned to", escape(model.pin)
    if model.attempt is not None:
        yield "last attempt", _attempt(model.attempt)
    for blocked in list(reversed(model.blocked))[:MOST_BLOCKED]:
        yield (
            "blocked",
            f"<strong>{escape(blocked.version)}</strong> since {moment(blocked.at)}: {escape(blocked.reason)}",
        )
    if len(model.blocked) > MOST_BLOCKED:
        yield "", f'<span class="soft">and {len(model.blocked) - MOST_BLOCKED} more</span>'


def _attempt(attempt: AttemptView) -> str:
    kind = _KINDS.get(attempt.state, "soft")
    text = (
        f'<strong>{escape(attempt.version)}</strong> <span class="state {kind}">{escape(attempt.state)}</span> '
        f"since {moment(attempt.since)}"
    )
    if attempt.probation_seconds_left is not None:
        text += f", {whole_seconds(attempt.probation_seconds_left)} left, {attempt.tries_left} tries left"
    return f"{text}: {escape(attempt.reason)}" if attempt.reason else text


def moment(seconds: float) -> str:
    """A time for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def whole_seconds(seconds: float) -> str:
    """A time span for people: `7 s`, `12 min`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
