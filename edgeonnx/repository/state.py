"""The signed state of a repository, as its files have it: read, and checked as far as a publisher needs.

A repository's state is what `timestamp.json` leads to: the snapshot, and the versions of all other metadata that it
lists. Files of other versions are older states, or leftovers of a publisher that was stopped; they count for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tuf.api.exceptions import RepositoryError as TufError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from edgeonnx.errors import RepositoryError, UntrustedError, first_line
from edgeonnx.repository.signing.roles import LISTED, ROLES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP
from edgeonnx.spec.release import Release, channel_target, release_target
from edgeonnx.spec.rollout import Channel
from edgeonnx.spec.signing import SIGNED_AT, read_stamp

if TYPE_CHECKING:
    from datetime import datetime

    from edgeonnx.repository.files import Files

AnyMetadata = Metadata[Any]

_METADATA_FILE = re.compile(r"metadata/([1-9][0-9]{0,15})\.([a-z]+)\.json")


def metadata_path(role: str, version: int) -> str:
    """Where the metadata of a role lies, relative to the repository."""
    return "metadata/timestamp.json" if role == TIMESTAMP else f"metadata/{version}.{role}.json"


def target_path(target: TargetFile) -> str:
    """Where a target lies, relative to the repository: with its digest before its name."""
    return f"targets/{target.get_prefixed_paths()[0]}"


def versions_on_disk(files: Files, role: str) -> list[int]:
    """The versions of a role's metadata that have a file, ascending; also those that no snapshot lists."""
    found = (_METADATA_FILE.fullmatch(path) for path in files.walk("metadata"))
    return sorted(int(match.group(1)) for match in found if match is not None and match.group(2) == role)


@dataclass(frozen=True, kw_only=True)
class State:
    """All metadata of one state, by role."""

    metadata: dict[str, AnyMetadata]

    @property
    def root(self) -> Root:
        """The signed part of `root`."""
        return cast("Root", self.metadata[ROOT].signed)

    @property
    def snapshot(self) -> Snapshot:
        """The signed part of `snapshot`."""
        return cast("Snapshot", self.metadata[SNAPSHOT].signed)

    @property
    def timestamp(self) -> Timestamp:
        """The signed part of `timestamp`."""
        return cast("Timestamp", self.metadata[TIMESTAMP].signed)

    def targets(self, role: str = TARGETS) -> Targets:
        """The signed part of `targets`, or of a role that it delegates to."""
        return cast("Targets", self.metadata[role].signed)


def read_state(files: Files) -> State:
    """The present state of a repository. Expiry is not looked at: an expired repository must be repairable.

    Signatures are not looked at either; whoever changes the state checks those of the outcome, `verify` all of them.

    Raises:
        RepositoryError: The folder holds no repository, or a file of the state is missing or damaged.
        UntrustedError: A file is not the one that the signed state names.
    """
    roots = versions_on_disk(files, ROOT)
    if not roots or not files.exists("metadata/timestamp.json"):
        raise RepositoryError(
            "is no repository",
            where=str(files.root),
            expected="metadata/1.root.json and metadata/timestamp.json",
            hint="make one with `edgeonnx repo init`",
        )
    found: dict[str, AnyMetadata] = {ROOT: parse(files.read(metadata_path(ROOT, roots[-1])), ROOT, Root)}
    found[TIMESTAMP] = parse(files.read("metadata/timestamp.json"), TIMESTAMP, Timestamp)
    found[SNAPSHOT] = _listed(files, SNAPSHOT, found[TIMESTAMP].signed.snapshot_meta, Snapshot)
    for role in LISTED:
        found[role] = _listed(files, role, found[SNAPSHOT].signed.meta.get(f"{role}.json"), Targets)
    return State(metadata={role: found[role] for role in ROLES})


def _listed(files: Files, role: str, listed: MetaFile | None, kind: type) -> AnyMetadata:
    """The metadata of a role that the snapshot, or the timestamp, lists."""
    if listed is None:
        raise UntrustedError("the snapshot does not list the role", where=f"{role}.json")
    path = metadata_path(role, listed.version)
    data = files.read(path)
    try:
        listed.verify_length_and_hashes(data)
    except TufError as error:
        raise UntrustedError("is not the file that was signed", where=path, found=first_line(error)) from None
    return parse(data, path, kind)


def parse(data: bytes, where: str, kind: type) -> AnyMetadata:
    """Metadata of a kind.

    Raises:
        UntrustedError: It is something else.
    """
    try:
        metadata: AnyMetadata = Metadata.from_bytes(data)
    except DeserializationError as error:
        raise UntrustedError("is no metadata", where=where, found=first_line(error)) from None
    if not isinstance(metadata.signed, kind):
        raise UntrustedError(
            "is metadata of another role", where=where, expected=kind.__name__, found=metadata.signed.type
        )
    return metadata


def signed_at(metadata: AnyMetadata) -> datetime:
    """When metadata says that it was signed.

    Raises:
        UntrustedError: It does not say so.
    """
    found = metadata.signed.unrecognized_fields.get(SIGNED_AT)
    moment = read_stamp(found)
    if moment is None:
        raise UntrustedError(
            f"has no {SIGNED_AT}",
            where=metadata.signed.type,
            expected="a time, such as 2026-11-30T12:00:00Z",
            found=repr(found)[:60],
        )
    return moment


def read_target(files: Files, target: TargetFile) -> bytes:
    """The bytes of a signed target.

    Raises:
        RepositoryError: It is missing.
        UntrustedError: It is not what was signed.
    """
    data = files.read(target_path(target))
    try:
        target.verify_length_and_hashes(data)
    except TufError as error:
        raise UntrustedError(
            "is not the file that was signed", where=target_path(target), found=first_line(error)
        ) from None
    return data


def read_release(files: Files, releases: Targets, name: str, version: str) -> Release | None:
    """A release that is signed, or None if there is none of that name and version."""
    path = release_target(name, version)
    target = releases.targets.get(path)
    return None if target is None else Release.from_bytes(read_target(files, target), file=path)


def read_releases(files: Files, releases: Targets) -> list[Release]:
    """All releases that are signed, sorted by path."""
    return [
        Release.from_bytes(read_target(files, target), file=path) for path, target in sorted(releases.targets.items())
    ]


def read_channel(files: Files, rollout: Targets, channel: str) -> Channel | None:
    """A channel's policy, or None if there is no such channel."""
    path = channel_target(channel)
    target = rollout.targets.get(path)
    return None if target is None else Channel.from_bytes(read_target(files, target), file=path)


def read_channels(files: Files, rollout: Targets) -> list[Channel]:
    """The policies of all channels, sorted by name."""
    return [
        Channel.from_bytes(read_target(files, target), file=path) for path, target in sorted(rollout.targets.items())
    ]
