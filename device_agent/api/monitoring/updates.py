"""What the agent tells about updates: plain data, which whoever supervises them fills in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class BlockedView:
    """A version that this device will not take again: its version, why, and since when (seconds since 1970)."""

    version: str
    reason: str
    at: float


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """The last attempt to install a release.

    Attributes:
        version: The release's version.
        state: Where it stands, in the words of `slots.states.AttemptState`.
        reason: Why it ended, or what it waits for; empty if there is nothing to say.
        since: When it entered the state, in seconds since 1970 by the effective time.
        tries_left: How often it may still be loaded.
        probation_seconds_left: Seconds of its probation that are left; None: it is on none.
    """

    version: str
    state: str
    reason: str
    since: float
    tries_left: int
    probation_seconds_left: float | None


@dataclass(frozen=True, kw_only=True)
class InstalledView:
    """A model of the state directory.

    Attributes:
        name: The model's name.
        active: The version that shall serve; None: none is installed.
        serving: The version that does serve, wherever it comes from; None: none.
        degraded: Why another version serves than the active one, or none; empty if that is not so.
        previous: The version that can serve again at once, or None.
        pin: The only version that it may take, or None.
        attempt: The last attempt, or None.
        blocked: What this device will not take again, the latest last.
        damage: What is wrong with its files on the disk, or was at the start; empty if nothing is.
        rollbacks: Versions that were rolled back since the agent began to serve.
    """

    name: str
    active: str | None
    serving: str | None
    degraded: str = ""
    previous: str | None = None
    pin: str | None = None
    attempt: AttemptView | None = None
    blocked: Sequence[BlockedView] = ()
    damage: str = ""
    rollbacks: int = 0


@dataclass(frozen=True, kw_only=True)
class UpdatesView:
    """Updates at one moment.

    Attributes:
        enrolled: The device has a repository to ask.
        running: An update runs now.
        checked_at: When the last update ended, whoever began it, in seconds since 1970 by the effective time; None:
            none has ended yet.
        ok: It ended without an error.
        message: Its error, or what it decided.
        received_bytes: Bytes that all updates of this device received.
        next_seconds: Seconds until the next one; None: none is planned, or one runs.
        counts: Updates that this agent began and that ended, by outcome: "ok", "unreachable", "untrusted", "device",
            "failed" or "killed".
        models: The models of the state directory.
    """

    enrolled: bool
    running: bool
    checked_at: float | None = None
    ok: bool = True
    message: str = ""
    received_bytes: int = 0
    next_seconds: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    models: Sequence[InstalledView] = ()
