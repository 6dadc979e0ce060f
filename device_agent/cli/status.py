"""`edgeonnx-agent status`: what this device is enrolled to, what is installed, and what is being tried."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_agent.cli.states import Config, StateDir, chosen_store, complain, effective_time, prepare, shown_state
from edgeonnx.errors import EdgeOnnxError, NotEnrolledError, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from device_agent.slots.state import SlotState
    from device_agent.slots.store import Store
    from device_agent.update.enrollment import Enrollment
    from device_agent.update.reports import Status


WIDTH = 80
"""Columns: what people paste into a report stays readable."""
SHORT = 120
"""Characters of a reason that is told in full elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What `status` tells.

    Attributes:
        folder: The state directory.
        enrollment: Which repository; None if the device is not enrolled, or if that cannot be read.
        problem: Why the enrolment cannot be read; empty otherwise.
        models: What is known of each model, with what is damaged (None: nothing).
        last: The last run of an update.
        time: The effective time, in seconds since 1970.
        serving, updating: Whether a process serves from the directory, or updates it, at this moment.
    """

    folder: str
    enrollment: Enrollment | None
    problem: str
    models: tuple[tuple[SlotState, str | None], ...]
    last: Status
    time: float
    serving: bool
    updating: bool

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for `--json`."""
        return {
            "ok": self.exit_code == 0,
            "state_dir": self.folder,
            "enrollment": None if self.enrollment is None else asdict(self.enrollment),
            "problem": self.problem or None,
            "serving": self.serving,
            "updating": self.updating,
            "time": _text(self.time),
            "last_check": {**asdict(self.last), "checked_at": _text(self.last.checked_at)},
            "models": [_model_dict(state, damage) for state, damage in self.models],
        }

    @property
    def exit_code(self) -> int:
        """0 if everything can be read and nothing is damaged; else 11."""
        return 11 if self.problem or any(damage for _, damage in self.models) else 0


def status(
    config: Config = None,
    state_dir: StateDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what this device is enrolled to, what is installed, and what is being tried. Nothing is changed."""
    try:
        found = look(chosen_store(prepare(config), state_dir))
    except EdgeOnnxError as error:
        complain(error, as_json=as_json)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict(), indent=2) + "\n")
    else:
        for line in lines_of(found):
            typer.echo(printable(line))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def look(store: Store) -> Standing:
    """Read everything; what is damaged is told, not raised.

    Raises:
        NotEnrolledError: There is no state directory.
    """
    from device_agent.slots.store import SERVE_LOCK, UPDATE_LOCK
    from device_agent.update.enrollment import read_enrollment
    from device_agent.update.reports import read_status

    if not store.root.is_dir():
        raise NotEnrolledError(
            "there is no state directory",
            where=str(store.root),
            hint="edgeonnx-agent enroll --repo URL --root root.json --state-dir DIR",
        )
    enrollment, problem = None, ""
    try:
        enrollment = read_enrollment(store)
    except NotEnrolledError:
        pass
    except EdgeOnnxError as error:
        problem = str(error)
    return Standing(
        folder=str(store.root),
        enrollment=enrollment,
        problem=problem,
        models=tuple((store.read_state(model), store.damage(model)) for model in store.models()),
        last=read_status(store),
        time=effective_time(store),
        serving=store.is_locked(SERVE_LOCK),
        updating=store.is_locked(UPDATE_LOCK),
    )


def lines_of(found: Standing) -> Iterator[str]:
    """The status as lines for people. Pure."""
    yield from _columns(_device_rows(found))
    for state, damage in found.models:
        yield ""
        yield state.model
        yield from _columns(_model_rows(state, damage, found.time), indent=2)
    if not found.models:
        yield ""
        yield "no model is installed"


def _device_rows(found: Standing) -> Iterator[tuple[str, str]]:
    enrolled = found.enrollment
    if enrolled is None:
        yield "repository", found.problem or "not enrolled: edgeonnx-agent enroll --repo URL --root root.json"
    else:
        yield "repository", enrolled.url
        yield "channel", enrolled.channel + (f" (only {', '.join(enrolled.models)})" if enrolled.models else "")
        yield "device", enrolled.device
    yield "state", found.folder
    yield "serving", "yes" if found.serving else "no"
    last = found.last
    if found.updating:
        yield "last check", "now"
    elif last.checked_at is None:
        yield "last check", "never"
    else:
        outcome = "" if last.ok else f"failed ({last.failures} in a row): "
        yield "last check", f"{_text(last.checked_at)}, {outcome}{_short(last.message)}"
    yield "time", _text(found.time) or ""


def _model_rows(state: SlotState, damage: str | None, now: float) -> Iterator[tuple[str, str]]:
    yield "active", "nothing" if state.active is None else f"{state.active.version}  {state.active.contents[:16]}"
    if state.previous is not None:
        yield "previous", f"{state.previous.version}  {state.previous.contents[:16]}"
    attempt = state.attempt
    if attempt is not None:
        yield "attempt", f"{attempt.release.version} {shown_state(attempt.state)}, since {_since(attempt.since, now)}"
        if attempt.reason:
            yield "reason", attempt.reason
        if state.running is not None:
            yield "tries left", str(attempt.tries_left)
    if state.pin is not None:
        yield "pinned to", state.pin
    for each in state.blocked:
        yield "blocked", f"{each.version}  {each.contents[:16]}  {_short(each.reason)}"
    if damage is not None:
        yield "DAMAGED", damage


def _model_dict(state: SlotState, damage: str | None) -> dict[str, Any]:
    attempt = state.attempt
    return {
        "model": state.model,
        "active": None if state.active is None else state.active.to_dict(),
        "previous": None if state.previous is None else state.previous.to_dict(),
        "attempt": None if attempt is None else {**attempt.to_dict(), "since": _text(attempt.since)},
        "blocked": [{**each.to_dict(), "at": _text(each.at)} for each in state.blocked],
        "pin": state.pin,
        "damage": damage,
    }


def _columns(rows: Iterable[tuple[str, str]], indent: int = 0) -> Iterator[str]:
    found = list(rows)
    width = indent + max(len(key) for key, _ in found) + 2
    for key, value in found:
        head = f"{' ' * indent}{key}".ljust(width)
        yield from textwrap.wrap(
            printable(value), WIDTH, initial_indent=head, subsequent_indent=" " * width, break_on_hyphens=False
        ) or [head.rstrip()]


def _short(text: str) -> str:
    return text if len(text) <= SHORT else text[: SHORT - 3] + "..."


def _text(seconds: float | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _since(seconds: float, now: float) -> str:
    """A time, and how long ago it was."""
    passed = max(0.0, now - seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{_text(seconds)} ({passed / size:.0f} {unit} ago)"
    return f"{_text(seconds)} ({passed:.0f} s ago)"
