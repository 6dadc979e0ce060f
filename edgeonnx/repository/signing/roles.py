"""The roles of a repository: who vouches for which, whose keys stay offline, how long each signature holds. Pure.

root (offline) ── targets (offline; delegates, nothing else) ── releases (offline, threshold): releases/*/*.json
  │                                                          └─ rollout (online): channels/*.json
  ├── snapshot (online)
  └── timestamp (online)
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.spec.release import RELEASES_PATHS, RELEASES_ROLE, ROLLOUT_PATHS, ROLLOUT_ROLE

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "root"
TARGETS = "targets"
SNAPSHOT = "snapshot"
TIMESTAMP = "timestamp"
RELEASES = RELEASES_ROLE
ROLLOUT = ROLLOUT_ROLE

ROLES = (ROOT, TARGETS, RELEASES, ROLLOUT, SNAPSHOT, TIMESTAMP)
"""All roles, in the order in which their metadata is signed: each after what it depends on."""
OFFLINE = (ROOT, TARGETS, RELEASES)
"""Roles whose keys are needed for a release or a change of keys only."""
ONLINE = (ROLLOUT, SNAPSHOT, TIMESTAMP)
"""Roles whose keys are needed to change a share, and every few days."""
LISTED = (TARGETS, RELEASES, ROLLOUT)
"""Roles whose metadata the snapshot lists."""
DELEGATED = {RELEASES: RELEASES_PATHS, ROLLOUT: ROLLOUT_PATHS}
"""Roles that `targets` delegates to, with the paths that each may sign."""

EXPIRES: Mapping[str, timedelta] = {
    ROOT: timedelta(days=365),
    TARGETS: timedelta(days=365),
    RELEASES: timedelta(days=365),
    ROLLOUT: timedelta(days=90),
    SNAPSHOT: timedelta(days=14),
    TIMESTAMP: timedelta(days=3),
}
"""How long the signature of each role holds if `repo init` is not told otherwise."""

RENEW_BELOW = {role: 0.5 if role in ONLINE else 0.25 for role in ROLES}
"""The part of its time that a signature has left when `repo refresh` renews it; people need more notice to fetch an
offline key than a cron job does, and a year's quarter is that."""


def delegator_of(role: str) -> str:
    """The role whose metadata names the keys of a role."""
    return TARGETS if role in DELEGATED else ROOT


def check_role(role: str) -> str:
    """Return `role` if there is such a role.

    Raises:
        UsageError: There is none.
    """
    if role not in ROLES:
        raise UsageError("there is no such role", where="ROLE", found=repr(role[:40]), expected=", ".join(ROLES))
    return role


def utc_now() -> datetime:
    """The present time, in whole seconds: what metadata can express."""
    return datetime.now(UTC).replace(microsecond=0)
