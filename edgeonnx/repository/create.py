"""A new repository: its keys, and the first signed metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    Root,
    Snapshot,
    Targets,
    Timestamp,
)

from edgeonnx.errors import UsageError
from edgeonnx.repository.files import HOST, SERVED, Files
from edgeonnx.repository.signing.draft import Draft
from edgeonnx.repository.signing.roles import (
    DELEGATED,
    EXPIRES,
    RELEASES,
    ROLES,
    ROLLOUT,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    delegator_of,
    utc_now,
)
from edgeonnx.repository.state import State, metadata_path
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from securesystemslib.signer import Key

    from edgeonnx.repository.signing.keys import KeyStore
    from edgeonnx.repository.state import AnyMetadata

SETTINGS = f"{HOST}/repository.json"
SETTINGS_SCHEMA = "1.0"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a repository remembers of its own for the build host; nothing of it is secret, and no client reads it.

    Attributes:
        expires: How long the signature of each role holds.
    """

    expires: Mapping[str, timedelta] = field(default_factory=lambda: dict(EXPIRES))

    @classmethod
    def from_bytes(cls, data: bytes) -> Settings:
        """Read the file.

        Raises:
            ManifestError, SchemaVersionError: It breaks the schema, or is of another version.
        """
        node = parse_document(data, SETTINGS).version("schema_version", known=SETTINGS_SCHEMA)
        node.only(("schema_version", "expires"))
        periods = node.required("expires")
        periods.only(ROLES)
        return cls(expires={role: timedelta(seconds=periods.integer(role, minimum=60)) for role in ROLES})

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        periods = {role: int(period.total_seconds()) for role, period in self.expires.items()}
        return canonical_json({"schema_version": SETTINGS_SCHEMA, "expires": periods})


def create_repository(
    files: Files,
    role_keys: Mapping[str, Sequence[Key]],
    keys: KeyStore,
    *,
    thresholds: Mapping[str, int] | None = None,
    settings: Settings | None = None,
    now: datetime | None = None,
) -> State:
    """Write the first metadata of a repository.

    Args:
        files: A folder that holds no repository yet.
        role_keys: The public keys of each role.
        keys: Where the private parts are.
        thresholds: How many of a role's keys must sign; 1 for those that are absent.
        settings: What the repository remembers.
        now: The time; the present one if not given.

    Returns:
        The first state.

    Raises:
        UsageError: There is a repository already, or a threshold is higher than the number of keys.
        KeyStoreError: A private key is missing.
    """
    chosen = settings or Settings()
    needed = {role: (thresholds or {}).get(role, 1) for role in ROLES}
    for role in ROLES:
        check_threshold(role, needed[role], len({key.keyid for key in role_keys[role]}))
    with files.lock():
        check_new(files)
        draft = Draft(files, State(metadata={}), now=now or utc_now(), expires=chosen.expires)
        draft.next = _first_metadata()
        for role in ROLES:
            draft.edit(role)
        for role in ROLES:
            for key in role_keys[role]:
                (draft.edit_root() if delegator_of(role) == ROOT else draft.edit_targets()).add_key(key, role)
        set_thresholds(draft, needed)
        files.write(SETTINGS, chosen.to_bytes())
        return draft.commit(keys)


def check_new(files: Files) -> None:
    """Refuse a folder that holds a repository, also one that lost its timestamp.

    What a `create_repository` that was stopped left behind is no repository: nobody has seen it.

    Raises:
        UsageError: It does.
    """
    unfinished = {metadata_path(role, 1) for role in ROLES if role != TIMESTAMP}
    if set(files.walk(*SERVED)) - unfinished:
        raise UsageError("there is a repository already", where=str(files.root), hint="choose another folder")


def _first_metadata() -> dict[str, AnyMetadata]:
    delegated = {
        role: DelegatedRole(role, keyids=[], threshold=1, terminating=True, paths=list(paths))
        for role, paths in DELEGATED.items()
    }
    return {
        ROOT: Metadata(Root(version=1, consistent_snapshot=True)),
        TARGETS: Metadata(Targets(version=1, delegations=Delegations(keys={}, roles=delegated))),
        RELEASES: Metadata(Targets(version=1)),
        ROLLOUT: Metadata(Targets(version=1)),
        SNAPSHOT: Metadata(Snapshot(version=1)),
        TIMESTAMP: Metadata(Timestamp(version=1)),
    }


def set_thresholds(draft: Draft, needed: Mapping[str, int]) -> None:
    """Set how many keys of some roles must sign."""
    for role, count in needed.items():
        delegator = draft.edit_root() if delegator_of(role) == ROOT else draft.edit_targets()
        delegator.get_delegated_role(role).threshold = count


def check_threshold(role: str, threshold: int, keys: int) -> None:
    """Refuse a threshold that no set of signatures can reach, or that none needs.

    Raises:
        UsageError: It is below 1 or above the number of the role's keys.
    """
    if not 1 <= threshold <= keys:
        raise UsageError(
            "the threshold cannot be reached",
            where=role,
            expected=f"1 to {keys}, the number of its keys" if keys else "at least one key",
            found=str(threshold),
        )


def read_settings(files: Files) -> Settings:
    """What a repository remembers; the defaults if the file is not there (a copy for serving does not have it)."""
    return Settings.from_bytes(files.read(SETTINGS)) if files.exists(SETTINGS) else Settings()
