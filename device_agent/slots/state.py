"""What a device knows of one model: which bundle serves, which served before, and which is being tried. Pure.

This is the content of `models/<name>/state.json`. The file is the one truth: an update is active at the moment at which
a new state file takes the old one's place. The functions here make a new state from an old one; `store` writes it.

The file carries the SHA-256 of itself, so that a disk that forgets a bit is noticed. It protects from nobody who may
write to the state directory.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from device_agent.slots.states import FINAL, AttemptState, check_transition
from edgeonnx.errors import printable
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import Node, parse_document
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE_SCHEMA = "1.0"
MAX_BLOCKED = 100
"""Blocked digests that are remembered; the oldest go first."""
MAX_REASON = 2000
"""Characters of a reason that are kept: it may quote what a release or a repository said."""
CHECKSUM = "checksum"
_FIELDS = ("schema_version", "model", "active", "previous", "attempt", "blocked", "pin", "sequence", CHECKSUM)

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

    @classmethod
    def from_dict(cls, node: Node) -> Attempt:
        """Read it."""
        node.only(("version", "contents", "state", "tries_left", "reason", "since"))
        states = {state.value: state for state in AttemptState}
        if node.text("state") not in states:
            node.required("state").fail("is not a known state", expected=" or ".join(states))
        return cls(
            release=Installed.from_dict(node),
            state=states[node.text("state")],
            tries_left=node.integer("tries_left"),
            reason=node.text("reason"),
            since=node.required("since").typed(float),
        )

    def to_dict(self) -> dict[str, object]:
        """It as JSON."""
        return {
            **self.release.to_dict(),
            "state": self.state.value,
            "tries_left": self.tries_left,
            "reason": self.reason,
            "since": self.since,
        }


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

    @classmethod
    def from_dict(cls, node: Node) -> Blocked:
        """Read one element of `blocked`."""
        node.only(("version", "contents", "reason", "at"))
        release = Installed.from_dict(node)
        return cls(
            contents=release.contents,
            version=release.version,
            reason=node.text("reason"),
            at=node.required("at").typed(float),
        )

    def to_dict(self) -> dict[str, object]:
        """One element of `blocked`."""
        return {"contents": self.contents, "version": self.version, "reason": self.reason, "at": self.at}


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
            UsageError: A name or a version in it is none.
        """
        node = parse_document(data, file).version("schema_version", known=STATE_SCHEMA)
        node.only(_FIELDS)
        if node.text(CHECKSUM) != _checksum(node):
            node.required(CHECKSUM).fail("is not that of the file", hint="it was damaged, or edited by hand")
        return cls(
            model=check_bundle_name(node.text("model")),
            active=_installed(node, "active"),
            previous=_installed(node, "previous"),
            attempt=_attempt(node),
            blocked=tuple(Blocked.from_dict(item) for item in node.required("blocked").items()),
            pin=node.optional_text("pin"),
            sequence=node.integer("sequence"),
        )

    def to_bytes(self) -> bytes:
        """The canonical bytes of the state file."""
        document: dict[str, object] = {
            "schema_version": STATE_SCHEMA,
            "model": self.model,
            "active": self.active.to_dict() if self.active else None,
            "previous": self.previous.to_dict() if self.previous else None,
            "attempt": self.attempt.to_dict() if self.attempt else None,
            "blocked": [each.to_dict() for each in self.blocked],
            "pin": self.pin,
            "sequence": self.sequence,
        }
        return canonical_json({**document, CHECKSUM: checksum(document)})


def checksum(document: dict[str, object]) -> str:
    """The checksum of a state file: SHA-256 of its other members as JSON with sorted keys and without white space."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _checksum(node: Node) -> str:
    """The checksum that a document must carry."""
    try:
        return checksum({key: child.value for key, child in node.members() if key != CHECKSUM})
    except RecursionError:
        node.fail("nests too deep")


def _child(node: Node, key: str) -> Node | None:
    """A member that is an object; None if it is null."""
    child = node.required(key)
    return None if child.value is None else child


def _installed(node: Node, key: str) -> Installed | None:
    child = _child(node, key)
    if child is None:
        return None
    child.only(("version", "contents"))
    return Installed.from_dict(child)


def _attempt(node: Node) -> Attempt | None:
    child = _child(node, "attempt")
    return None if child is None else Attempt.from_dict(child)


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
    - to `ROLLED_BACK`: what was previous becomes active, and the digest is blocked. After the first release of all
      there is nothing to go back to, and nothing is active then;
    - to `PROVEN` from `PROBATION`: what was previous becomes active, and nothing is held against the release;
    - to `REJECTED`: the digest is blocked.

    Args:
        state: What is known.
        to: The next state; `states.TRANSITIONS` must allow it.
        now: The effective time in seconds since 1970.
        reason: Why; it is cut and made printable.
        tries_left: The tries that are left from now on; None: as many as before.

    Raises:
        RuntimeError: No attempt is running, or the table has no such transition: a fault of the caller.
    """
    attempt = state.running
    if attempt is None:
        raise RuntimeError("no attempt is running")
    check_transition(attempt.state, to)
    after = replace(
        attempt,
        state=to,
        reason=_told(reason),
        since=now if to is not attempt.state else attempt.since,
        tries_left=attempt.tries_left if tries_left is None else tries_left,
    )
    changed = replace(state, attempt=after)
    if to is AttemptState.PROBATION and attempt.state is AttemptState.PROVEN:
        # A release that was installed again (its slot was damaged) does not push out what it can be rolled back to.
        before = state.previous if state.active == attempt.release else state.active
        changed = replace(changed, active=attempt.release, previous=before)
    back = to is AttemptState.PROVEN and attempt.state is AttemptState.PROBATION
    if back or to is AttemptState.ROLLED_BACK:
        changed = replace(changed, active=state.previous, previous=None)
    if to in (AttemptState.ROLLED_BACK, AttemptState.REJECTED):
        changed = block(changed, attempt.release, reason=reason, now=now)
    return changed


def block(state: SlotState, release: Installed, *, reason: str, now: float) -> SlotState:
    """The state with a digest that will not be taken again."""
    kept = tuple(each for each in state.blocked if each.contents != release.contents)
    added = Blocked(contents=release.contents, version=release.version, reason=_told(reason), at=now)
    return replace(state, blocked=(*kept, added)[-MAX_BLOCKED:])


def revert(state: SlotState, *, reason: str, now: float) -> SlotState:
    """The state in which the previous version serves again by somebody's will: what was active is blocked.

    An attempt that is not over ends: rolled back if it is the one that serves, else abandoned.

    Raises:
        RuntimeError: There is no previous version; ask `state.previous` before.
    """
    if state.active is None or state.previous is None:
        raise RuntimeError("there is nothing to go back to")
    running = state.running
    if running is not None and running.state is AttemptState.PROBATION:
        return step(state, AttemptState.ROLLED_BACK, now=now, reason=reason)
    if running is not None:
        state = step(state, AttemptState.ABANDONED, now=now, reason=reason)
    changed = replace(state, active=state.previous, previous=None)
    return changed if state.active is None else block(changed, state.active, reason=reason, now=now)


def _told(reason: str) -> str:
    """A reason that a file and a terminal can take."""
    return printable(reason)[:MAX_REASON]
