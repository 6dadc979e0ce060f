"""What this device remembers of the metadata that it accepted, so that it never goes back. Pure.

TUF remembers by its local files: a new timestamp is compared with `timestamp.json`, a new snapshot with
`snapshot.json`. If such a file is lost or torn, so is the memory. The floor is a second memory, in a file of its own:
for each role the version that was accepted, the versions that it listed, and who had signed it.

A record counts as long as its signers would still be enough by the root that is trusted now. If the root has replaced
them, whatever they signed is worth nothing, and the role starts anew: the specification's recovery from fast-forward
attacks (section 5.3.11). The root itself is never forgotten.

Each record also has the time at which its metadata was signed, so that the time that a stolen key made up can be taken
back together with it. Roles below `targets` give no time: whoever replaces their keys needs metadata that is not
expired, and a made-up time would have expired it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from device_agent.update.trust.sealed import seal, unseal
from edgeonnx.errors import UntrustedError
from edgeonnx.spec.signing import SIGNED_AT, read_stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from edgeonnx.spec.parse import Node

FLOOR_SCHEMA = "1.0"
ROLES = ("root", "timestamp", "snapshot", "targets")
MAX_VERSION = (1 << 53) - 1
"""The largest version of metadata that is accepted: every JSON reader can represent it."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was accepted of one role.

    Attributes:
        version: Its version.
        signers: Ids of the keys whose signatures counted.
        signed_at: When it was signed, in seconds since 1970, or None if it does not say.
        listed: Versions of other metadata that it lists, by file (`snapshot.json`).
    """

    version: int
    signers: tuple[str, ...] = ()
    signed_at: float | None = None
    listed: Mapping[str, int] = field(default_factory=dict)

    def stands(self, keyids: Collection[str], threshold: int) -> bool:
        """Whether its signers are still enough for a role with these keys."""
        return len(set(self.signers) & set(keyids)) >= threshold

    def check(self, role: str, new: Record) -> None:
        """Refuse metadata that goes back behind this record.

        Raises:
            UntrustedError: It does.
        """
        # The version of snapshot and targets is what the timestamp and the snapshot list, under those roles' keys.
        if role in ("root", "timestamp") and new.version < self.version:
            raise _rollback(role, self.version, new.version)
        for file, version in self.listed.items():
            if file not in new.listed:
                raise UntrustedError(
                    f"the new {role} no longer lists {file}",
                    where="the repository",
                    expected=f"{file} in version {version} or later",
                    hint="nothing was changed on this device; tell whoever runs the repository",
                )
            if new.listed[file] < version:
                raise _rollback(file.removesuffix(".json"), version, new.listed[file])

    @classmethod
    def from_dict(cls, node: Node) -> Record:
        """Read one member of `roles`."""
        node.only(("version", "signers", "signed_at", "listed"))
        at = node.child("signed_at")
        listed = node.required("listed")
        return cls(
            version=node.integer("version", minimum=1, maximum=MAX_VERSION),
            signers=tuple(item.typed(str) for item in node.required("signers").items()),
            signed_at=None if at is None or at.value is None else at.typed(float),
            listed={key: listed.integer(key, minimum=1, maximum=MAX_VERSION) for key, _ in listed.members()},
        )

    def to_dict(self) -> dict[str, object]:
        """One member of `roles`."""
        return {
            "version": self.version,
            "signers": list(self.signers),
            "signed_at": self.signed_at,
            "listed": dict(self.listed),
        }


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The content of `floor.json`: a record for each of `ROLES` that was accepted."""

    records: Mapping[str, Record] = field(default_factory=dict)

    @property
    def latest(self) -> float | None:
        """The latest time that the records prove, in seconds since 1970."""
        times = [record.signed_at for record in self.records.values() if record.signed_at is not None]
        return max(times, default=None)

    def check(self, role: str, new: Record) -> None:
        """Refuse metadata of a role that goes back behind what was accepted.

        Raises:
            UntrustedError: It does.
        """
        if role in self.records:
            self.records[role].check(role, new)

    def with_record(self, role: str, record: Record) -> Floor:
        """This floor with a new record of a role."""
        return replace(self, records={**self.records, role: record})

    def without(self, roles: Collection[str]) -> Floor:
        """This floor without the records of some roles."""
        return replace(self, records={role: record for role, record in self.records.items() if role not in roles})

    @classmethod
    def from_bytes(cls, data: bytes, *, file: str = "floor.json") -> Floor:
        """Read `floor.json`.

        Raises:
            ManifestError, SchemaVersionError: It is damaged, or of another version.
        """
        node = unseal(data, file=file, schema=FLOOR_SCHEMA, fields=("roles",))
        roles = node.required("roles")
        roles.only(ROLES)
        return cls(records={role: Record.from_dict(child) for role, child in roles.members()})

    def to_bytes(self) -> bytes:
        """The canonical bytes of `floor.json`."""
        roles = {role: record.to_dict() for role, record in self.records.items()}
        return seal({"roles": roles}, schema=FLOOR_SCHEMA)


def signed_at(fields: Mapping[str, object], expires: datetime) -> float | None:
    """When metadata was signed, by its own signed field.

    Args:
        fields: Its fields that TUF does not know.
        expires: When it expires.

    Returns:
        Seconds since 1970; None if the field is absent, malformed, or later than the expiry.
    """
    moment = read_stamp(fields.get(SIGNED_AT))
    if moment is None or moment > expires or moment.timestamp() < 0:
        return None
    return moment.timestamp()


def _rollback(role: str, accepted: int, offered: int) -> UntrustedError:
    return UntrustedError(
        f"the repository offers an older {role} than this device has accepted",
        where="the repository",
        expected=f"version {accepted} or later",
        found=f"version {offered}",
        hint="a cache or a mirror may be out of date; if this does not pass, tell whoever runs the repository",
    )
