"""python-tuf's client with what it lacks: durable writes, a memory that survives a torn file, and our clock.

`tuf.ngclient.Updater` verifies; nothing here repeats or relaxes one of its checks. It is extended at methods whose
names begin with an underscore, because it has no other places for it, so the releases that are accepted are bounded
in pyproject.toml, and `tests/contract/test_tuf_client.py` fails if one of the places changes.

Written through `Disk`: python-tuf renames files that are not synced, and takes away the link `root.json` before the
new one is there. What is already on disk is not written again, so a refresh without news writes nothing.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import Metadata, Signed, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient.config import UpdaterConfig
from tuf.ngclient.fetcher import FetcherInterface
from tuf.ngclient.updater import Updater

from device_agent.slots.disk import read_file
from device_agent.update.transfer.sources import NotFound, looks_like_html
from device_agent.update.trust.floor import MAX_VERSION, Floor, Record, signed_at
from edgeonnx.errors import ManifestError, UntrustedError, printable
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from device_agent.slots.disk import Disk
    from device_agent.update.transfer.downloader import Downloader
    from device_agent.update.trust.clock import Clock
    from edgeonnx.spec.parse import Node

LIMITS = UpdaterConfig(
    max_root_rotations=256,  # in one refresh; a device that missed more takes the rest in the next one
    max_delegations=32,  # roles that are asked for one target
    root_max_length=256_000,  # bytes; a root of ours has 3,000
    timestamp_max_length=16_384,
    snapshot_max_length=256_000,  # it lists roles, not files
    targets_max_length=2_000_000,  # `releases` has 130 bytes for each release, so 15,000 of them
)
"""What a repository may make this device fetch and parse."""

METADATA = "metadata/"
TARGETS = "targets/"
HISTORY = "root_history"

_logger = logging.getLogger(__name__)


class Fetcher(FetcherInterface):
    """Gives python-tuf what our downloader fetches.

    Args:
        downloader: Fetches from the repository.

    Attributes:
        path: What was asked for last.
        data: What came last.
    """

    def __init__(self, downloader: Downloader) -> None:
        self._downloader = downloader
        self.path = ""
        self.data = b""

    def _fetch(self, url: str) -> Iterator[bytes]:
        yield self.download_bytes(url, LIMITS.targets_max_length)

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """One metadata file, within the smaller one of python-tuf's limit and ours.

        Raises:
            DownloadHTTPError: There is none; python-tuf asks for roots until that happens.
            FetchError: It could not be fetched.
            UntrustedError: What came is no metadata.
        """
        self.path, self.data = url, b""
        try:
            self.data = self._downloader.read(url, limit=min(max_length, LIMITS.targets_max_length))
        except NotFound as error:
            raise DownloadHTTPError(str(error), 404) from error
        check_document(self.data, url)
        return self.data


def check_document(data: bytes, where: str) -> None:
    """Refuse what is no metadata before python-tuf sees it, in words that name the cause.

    JSON that two readers could understand differently, or whose versions no reader can represent, is refused, too.

    Raises:
        UntrustedError: It is no metadata.
    """
    try:
        _check_fields(parse_document(data, where).required("signed"))
    except ManifestError as error:
        start = printable(data[:60].decode("utf-8", "replace"))
        is_page = looks_like_html(data)
        raise UntrustedError(
            "a web page came instead of metadata" if is_page else "what came is not metadata",
            where=where,
            expected="signed JSON metadata of TUF",
            found=f"{start!r}..., {len(data)} bytes" if data else "0 bytes",
            details=() if is_page else (str(error),),
            hint="check the repository's address; a login page of the network may have answered in its place"
            if is_page
            else "check the repository's address, and that whole files were copied to it",
        ) from None


def _check_fields(signed: Node) -> None:
    """What python-tuf takes as it comes: versions of any size, names of roles of any type."""
    signed.integer("version", minimum=1, maximum=MAX_VERSION)
    listed = signed.child("meta")
    for _, entry in listed.members() if listed is not None else ():
        entry.integer("version", minimum=1, maximum=MAX_VERSION)
    delegations = signed.child("delegations")
    roles = delegations.child("roles") if delegations is not None and delegations.value is not None else None
    for role in roles.items() if roles is not None else ():
        role.text("name")


class Verifier(Updater):
    """One refresh, and the targets that follow from it.

    Args:
        folder: Where the metadata is kept.
        fetcher: Fetches it.
        disk: Writes it.
        clock: Says what has expired.
        floor: What was accepted before.
        root: The pinned root; the chain of roots begins there, each time.

    Attributes:
        floor: What is accepted now.
        loading: The role that is being loaded, for messages.

    Raises:
        tuf.api.exceptions.RepositoryError: The root is none.
    """

    def __init__(self, folder: Path, *, fetcher: Fetcher, disk: Disk, clock: Clock, floor: Floor, root: bytes) -> None:
        self._disk = disk
        self._clock = clock
        self._source = fetcher
        self.floor = floor
        self.loading = "root"
        super().__init__(
            str(folder),
            METADATA,
            target_dir=str(folder / "targets"),
            target_base_url=TARGETS,
            fetcher=fetcher,
            config=LIMITS,
            bootstrap=root,
        )
        self._at(clock.effective())

    @property
    def signed(self) -> dict[str, Signed]:
        """What is trusted now, by role."""
        return {role: self._trusted_set[role] for role in ("root", *_ORDER) if role in self._trusted_set}

    @property
    def reference_time(self) -> datetime:
        """The time by which things expire."""
        return self._trusted_set.reference_time

    def _at(self, seconds: float) -> None:
        self._trusted_set.reference_time = datetime.fromtimestamp(seconds, UTC)

    def _name(self, role: str) -> None:
        """From now on errors are about this role."""
        self.loading, self._source.path = role, ""

    # Each role in turn: python-tuf loads it, then it is held against the floor.

    def _load_root(self) -> None:
        super()._load_root()
        root = self._trusted_set.root
        record = _record(root)
        self.floor.check("root", record)
        self.floor = self.floor.with_record("root", record)
        replaced = {
            role: self.floor.records[role]
            for role in _ORDER
            if role in self.floor.records
            and not self.floor.records[role].stands(root.roles[role].keyids, root.roles[role].threshold)
        }
        if replaced:
            self._forget(replaced)
        self._learn()

    def _forget(self, replaced: dict[str, Record]) -> None:
        """What replaced keys had signed no longer counts; a time that only they proved is taken back at once."""
        _logger.warning("the root has replaced the keys of %s: versions start anew", ", ".join(sorted(replaced)))
        self.floor = self.floor.without(replaced)
        left = self.floor.latest or 0.0
        if any(record.signed_at is not None and record.signed_at > left for record in replaced.values()):
            self._clock.revoked(left)
            self._at(self._clock.effective())

    def _learn(self) -> None:
        """What was verified so far proves a time; what comes next must not have expired before it."""
        self._at(max(self.reference_time.timestamp(), self.floor.latest or 0.0))

    def _load_timestamp(self) -> None:
        self._name(Timestamp.type)
        super()._load_timestamp()
        self._accept(Timestamp.type)

    def _load_snapshot(self) -> None:
        self._name(Snapshot.type)
        super()._load_snapshot()
        self._accept(Snapshot.type)

    def _load_targets(self, role: str, parent_role: str) -> Targets:
        self._name(role)
        targets = super()._load_targets(role, parent_role)
        if role == Targets.type:
            self._accept(role)
        return targets

    def _accept(self, role: str) -> None:
        """Hold a role that was loaded against the floor, and raise the floor to it."""
        new = _record(self._trusted_set[role])
        self.floor.check(role, new)
        known = self.floor.records.get(role)
        if known is None or (known.version, known.signed_at, known.listed) != (new.version, new.signed_at, new.listed):
            new = _record(self._trusted_set[role], self._signers(role))
            self.floor = self.floor.with_record(role, new)
        self._learn()

    def _signers(self, role: str) -> tuple[str, ...]:
        """The keys whose signatures counted. The local file is what is trusted, now that the role is loaded."""
        metadata: Metadata[Any] = Metadata.from_bytes(self._load_local_metadata(role))
        result = self._trusted_set.root.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        return tuple(sorted(result.signed))

    # Writes.

    def _persist_metadata(self, rolename: str, data: bytes) -> None:
        if rolename in _ORDER:
            self.floor.check(rolename, _record(self._trusted_set[rolename]))
        super()._persist_metadata(rolename, data)

    def _persist_root(self, version: int, data: bytes) -> None:
        folder = Path(self._dir, HISTORY)
        self._disk.make_folder(folder)
        self._persist_file(str(folder / f"{version}.root.json"), data)

    def _persist_file(self, filename: str, data: bytes) -> None:
        path = Path(filename)
        if not _holds(path, data):
            self._disk.replace(path, data)

    def _update_root_symlink(self) -> None:
        link = Path(self._dir, "root.json")
        text = f"{HISTORY}/{self._trusted_set.root.version}.root.json"
        if not (link.is_symlink() and str(link.readlink()) == text):
            self._disk.replace_link(link, text)

    # Targets.

    def remote_path(self, info: TargetFile) -> str:
        """Where a target lies, relative to the repository: with the digest in its name, if snapshots are consistent."""
        folder, slash, name = info.path.rpartition("/")
        if self._trusted_set.root.consistent_snapshot and self.config.prefix_targets_with_hash:
            name = f"{next(iter(info.hashes.values()))}.{name}"
        return f"{TARGETS}{folder}{slash}{name}"

    def local_path(self, info: TargetFile) -> Path:
        """Where a verified target is kept."""
        return Path(self._generate_target_file_path(info))


_ORDER = (Timestamp.type, Snapshot.type, Targets.type)


def _record(signed: Signed, signers: tuple[str, ...] = ()) -> Record:
    """The record of trusted metadata."""
    listed: dict[str, int] = {}
    if isinstance(signed, Timestamp):
        listed = {"snapshot.json": signed.snapshot_meta.version}
    elif isinstance(signed, Snapshot):
        listed = {file: info.version for file, info in signed.meta.items()}
    return Record(
        version=signed.version,
        signers=signers,
        signed_at=signed_at(signed.unrecognized_fields, signed.expires),
        listed=listed,
    )


def _holds(path: Path, data: bytes) -> bool:
    try:
        return read_file(path, limit=len(data)) == data
    except OSError:
        return False
