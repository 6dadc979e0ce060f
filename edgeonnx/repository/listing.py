"""The roles of a repository for people: whose keys, how many must sign, until when, and what is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.repository.signing.keys import FileKeys, find_file
from edgeonnx.repository.signing.roles import ROLES, ROOT, check_role, delegator_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from tuf.api.metadata import Role

    from edgeonnx.repository.state import State


@dataclass(frozen=True, kw_only=True)
class RoleKeys:
    """One role.

    Attributes:
        role: Its name.
        version: The version of its metadata.
        threshold: How many keys must sign.
        keys: The ids of its keys, each with the file of its private part if that is here.
        expires: When the signature of its metadata runs out.
    """

    role: str
    version: int
    threshold: int
    keys: dict[str, Path | None]
    expires: datetime


def role_of(state: State, role: str) -> Role:
    """Keys and threshold of a role, as its delegator names them."""
    delegator = state.root if delegator_of(check_role(role)) == ROOT else state.targets()
    return delegator.get_delegated_role(role)


def list_roles(state: State, keys: FileKeys | None) -> list[RoleKeys]:
    """All roles of a state.

    Args:
        state: The state.
        keys: Where to look for private keys.
    """
    found = []
    for role in ROLES:
        named, signed = role_of(state, role), state.metadata[role].signed
        files = {key_id: None if keys is None else find_file(keys, key_id) for key_id in named.keyids}
        found.append(
            RoleKeys(
                role=role,
                version=signed.version,
                threshold=named.threshold,
                keys={key_id: None if file is None else file.path for key_id, file in files.items()},
                expires=signed.expires,
            )
        )
    return found
