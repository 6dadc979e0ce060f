"""Signing again before signatures run out: what a cron job does with the online keys, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.repository.create import read_settings
from edgeonnx.repository.signing import pending
from edgeonnx.repository.signing.roles import OFFLINE, RENEW_BELOW, ROLES, SNAPSHOT, TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.signing.keys import KeyStore
    from edgeonnx.repository.state import State


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What a refresh did.

    Attributes:
        renewed: The roles that were signed again.
        due: Roles that should be signed again soon, and for which the keys are not here.
        expires: When the signature of each role runs out, afterwards.
    """

    renewed: tuple[str, ...]
    due: tuple[str, ...]
    expires: dict[str, datetime]


def due_roles(state: State, now: datetime, periods: Mapping[str, timedelta]) -> list[str]:
    """The roles whose signature has little of its time left, without the timestamp, which is always signed. Pure."""
    return [
        role
        for role in ROLES
        if role != TIMESTAMP and state.metadata[role].signed.expires - now < RENEW_BELOW[role] * periods[role]
    ]


def refresh(repository: Repository, keys: KeyStore) -> Refreshed:
    """Sign the timestamp again, and what is due and whose keys are here.

    Offline roles are left alone while a change of them waits for signatures.

    Raises:
        KeyStoreError: The key of the timestamp, or of a snapshot that is due, is missing.
        RepositoryBusyError: Another process changes the repository.
    """
    with repository.changing() as draft:
        due = due_roles(draft.before, draft.now, read_settings(draft.files).expires)
        waiting = draft.files.exists(pending.PENDING)
        left = tuple(
            role
            for role in due
            if role != SNAPSHOT and ((waiting and role in OFFLINE) or draft.unsignable((role,), keys))
        )
        for role in due:
            if role not in left:
                draft.edit(role)
        state = draft.commit(keys) if draft.next or draft.missing(ROLES) else draft.commit_timestamp(keys)
        return Refreshed(
            renewed=tuple(role for role in ROLES if role in draft.next),
            due=left,
            expires={role: state.metadata[role].signed.expires for role in ROLES},
        )
