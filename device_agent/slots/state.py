"""What a device knows of one model: which bundle serves, which served before, and which is being tried. Pure.

This is the content of `models/<name>/state.json`. The file is the one truth: an update is active at the moment at which
a new state file takes the old one's place. The functions here make a new state from an old one; `store` writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.slots.states import FINAL, AttemptState, check_transition
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import Node, parse_document
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE_SCHEMA = "1.0"
MAX_BLOCKED = 100
"""Blocked digests that are remembered; the oldest go first."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A bundle in a slot.

    Attributes:
        version: Its version.
        contents: Its digest, which also names the slot.
    """

    version: str
    contents: str

    @classmethod
    def from_dict(cls, node: Node) -> Installed:
        """Read it; further members are the caller's."""
        if _SHA256.fullmatch(node.text("contents")) is None:
            node.required("contents").fail("is no SHA-256")
        return cls(version=check_bundle_version(node.text("version")), contents=node.text("contents"))

    def to_dict(self) -> dict[str, object]:
        """It as JSON."""
        return {"version": self.version, "contents": self.contents}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt to install a release.

    Attributes:
        release: What is being installed.
        state: Where the attempt stands.
        tries_left: How often it may still be loaded: as a candidate, then anew on probation.
        reason: Why it ended, or what it waits for; empty if there is nothing to say.
        since: When it entered the state, in seconds since 1970 by the effective time.
    """

    release: Installed
    state: AttemptState
    tries_left: int
    reason: str = ""
    since: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A bundle that this device will not take again.

    Attributes:
        contents: Its digest.
        version: Its version.
        reason: What was wrong.
        at: When, in seconds since 1970.
    """

    contents: str
    version: str
    reason: str
    at: float


@dataclass(frozen=True, kw_only=True)
class SlotState:
    """Everything that a device knows of one model.

    Attributes:
        model: The model's name.
        active: What serves, or None.
        previous: What served before it and can serve again at once, or None.
        attempt: The last attempt, also after its end, or None.
        blocked: What this device will not take again.
        pin: The only version that it may take, or None.
        sequence: Counts the writes; of two copies the higher one is the newer.
    """

    model: str
    active: Installed | None = None
    previous: Installed | None = None
    attempt: Attempt | None = None
    blocked: tuple[Blocked, ...] = ()
    pin: str | None = None
    sequence: int = 0

    @property
    def running(self) -> Attempt | None:
        """The attempt that is not over, or None."""
        return None if self.attempt is None or self.attempt.state in FINAL else self.attempt

    def is_blocked(self, contents: str) -> bool:
        """Whether this device refuses a digest."""
        return any(each.contents == contents for each in self.blocked)

    def in_use(self) -> frozenset[str]:
        """Digests of the slots that must stay."""
        running = self.running
        kept: Iterable[Installed | None] = (self.active, self.previous, running.release if running else None)
        return frozenset(each.contents for each in kept if each is not None)

    @classmethod
    def from_bytes(cls, data: bytes, *, file: str = "state.json") -> SlotState:
        """Read a state file.

        Raises:
            ManifestError, SchemaVersionError: It is damaged, or of another version.
        """
        node = parse_document(data, file).version("schema_version", known=STATE_SCHEMA)
        node.only(("schema_version", "model", "active", "previous", "attempt", "blocked", "pin", "sequence"))
        return cls(
            model=check_bundle_name(node.text("model")),
            active=_installed(node, "active"),
            previous=_installed(node, "previous"),
            attempt=_attempt(node),
            blocked=tuple(_blocked(item) for item in node.required("blocked").items()),
            pin=node.optional_text("pin"),
            sequence=node.integer("sequence"),
        )

    def to_bytes(self) -> bytes:
        """The canonical bytes of the state file."""
        attempt = self.attempt
        return canonical_json(
            {
                "schema_version": STATE_SCHEMA,
                "model": self.model,
                "active": self.active.to_dict() if self.active else None,
                "previous": self.previous.to_dict() if self.previous else None,
                "attempt": None
                if attempt is None
                else {
                    **attempt.release.to_dict(),
                    "state": attempt.state.value,
                    "tries_left": attempt.tries_left,
                    "reason": attempt.reason,
                    "since": attempt.since,
                },
                "blocked": [
                    {"contents": each.contents, "version": each.version, "reason": each.reason, "at": each.at}
                    for each in self.blocked
                ],
                "pin": self.pin,
                "sequence": self.sequence,
            }
        )


def _installed(node: Node, key: str) -> Installed | None:
    child = node.child(key)
    return None if child is None or child.value is None else Installed.from_dict(child)


def _attempt(node: Node) -> Attempt | None:
    child = node.child("attempt")
    if child is None or child.value is None:
        return None
    states = {state.value: state for state in AttemptState}
    if child.text("state") not in states:
        child.required("state").fail("is not a known state")
    return Attempt(
        release=Installed.from_dict(child),
        state=states[child.text("state")],
        tries_left=child.integer("tries_left"),
        reason=child.text("reason"),
        since=child.required("since").typed(float),
    )


def _blocked(node: Node) -> Blocked:
    return Blocked(
        contents=node.text("contents"),
        version=node.text("version"),
        reason=node.text("reason"),
        at=node.required("at").typed(float),
    )


def begin(state: SlotState, release: Installed, *, tries: int, now: float) -> SlotState:
    """A new attempt; one that is not over must be ended before."""
    if state.running is not None:
        raise RuntimeError("an attempt is not over")
    attempt = Attempt(release=release, state=AttemptState.DOWNLOADING, tries_left=tries, since=now)
    return replace(state, attempt=attempt)


def step(
    state: SlotState, to: AttemptState, *, now: float, reason: str = "", tries_left: int | None = None
) -> SlotState:
    """The attempt in its next state, with what that means for the slots.

    - to `PROBATION` from `PROVEN`: the release becomes active, what was active becomes previous;
    - to `ROLLED_BACK`: what was previous becomes active, and the digest is blocked;
    - to `REJECTED`: the digest is blocked.
    """
    attempt = state.running
    if attempt is None:
        raise RuntimeError("no attempt is running")
    check_transition(attempt.state, to)
    after = replace(
        attempt,
        state=to,
        reason=reason,
        since=now if to is not attempt.state else attempt.since,
        tries_left=attempt.tries_left if tries_left is None else tries_left,
    )
    changed = replace(state, attempt=after)
    if to is AttemptState.PROBATION and attempt.state is AttemptState.PROVEN:
        changed = replace(changed, active=attempt.release, previous=state.active)
    if to is AttemptState.ROLLED_BACK:
        changed = replace(changed, active=state.previous, previous=None)
    if to in (AttemptState.ROLLED_BACK, AttemptState.REJECTED):
        changed = block(changed, attempt.release, reason=reason, now=now)
    return changed


def block(state: SlotState, release: Installed, *, reason: str, now: float) -> SlotState:
    """The state with a digest that will not be taken again."""
    kept = tuple(each for each in state.blocked if each.contents != release.contents)
    added = Blocked(contents=release.contents, version=release.version, reason=reason, at=now)
    return replace(state, blocked=(*kept, added)[-MAX_BLOCKED:])
