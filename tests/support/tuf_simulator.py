"""A repository in memory whose owner may be hostile: every role's metadata can be changed, signed and served at will.

`edgeonnx.repository` refuses to write what these tests need, so the metadata is made directly with `tuf.api`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from device_agent.slots.disk import Disk
from device_agent.update.transfer.sources import NotFound
from device_agent.update.trust.clock import Clock
from device_agent.update.trust.metadata import TrustedMetadata
from edgeonnx.errors import FetchError
from edgeonnx.spec.release import RELEASES_PATHS, ROLLOUT_PATHS
from edgeonnx.spec.signing import SIGNED_AT, stamp

START = datetime(2026, 6, 1, tzinfo=UTC)
TOP = ("root", "timestamp", "snapshot", "targets")
EXPIRES = {"root": 365, "targets": 365, "releases": 365, "rollout": 90, "snapshot": 14, "timestamp": 3}
"""Days."""
CHANNEL = "channels/stable.json"
RELEASE = "releases/tiny/1.0.0.json"

_KEYS = [CryptoSigner.generate_ed25519() for _ in range(8)]


class Simulator:
    """A repository and the people who hold its keys.

    Attributes:
        now: Their time.
        signers: Who signs each role, all of them each time.
        metadata: Each role's metadata, to be changed before `publish`.
        files: What is served, by path.
        requests: What was asked for.
        consistent: Whether names of targets have digests in them.
    """

    def __init__(self, *, now: datetime = START, release_threshold: int = 1) -> None:
        self.now = now
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        keys = iter(_KEYS)
        self.signers = {role: [next(keys)] for role in EXPIRES}
        self.signers["releases"] += [next(keys) for _ in range(release_threshold - 1)]
        root = Root(1, expires=now, consistent_snapshot=True)
        for role in TOP:
            root.add_key(self.signers[role][0].public_key, role)
        self.metadata: dict[str, Metadata[Any]] = {
            "root": Metadata(root),
            "timestamp": Metadata(Timestamp(1, expires=now)),
            "snapshot": Metadata(Snapshot(1, expires=now)),
            "targets": Metadata(Targets(1, expires=now, delegations=self._delegations(release_threshold))),
            "releases": Metadata(Targets(1, expires=now)),
            "rollout": Metadata(Targets(1, expires=now)),
        }
        self.add_target("releases", RELEASE, b'{"release": 1}')
        self.add_target("rollout", CHANNEL, b'{"channel": 1}')
        for role in EXPIRES:
            self.publish(role, bump=False)

    def _delegations(self, threshold: int) -> Delegations:
        roles, keys = {}, {}
        for name, paths in (("releases", RELEASES_PATHS), ("rollout", ROLLOUT_PATHS)):
            ids = [signer.public_key.keyid for signer in self.signers[name]]
            keys.update({signer.public_key.keyid: signer.public_key for signer in self.signers[name]})
            needed = threshold if name == "releases" else 1
            roles[name] = DelegatedRole(name, ids, needed, terminating=True, paths=list(paths))
        return Delegations(keys, roles)

    def signed(self, role: str) -> Any:
        """The signed part of a role's metadata."""
        return self.metadata[role].signed

    @property
    def root(self) -> bytes:
        """The first root."""
        return self.files["metadata/1.root.json"]

    def add_target(self, role: str, path: str, data: bytes) -> None:
        """Let a role list a target, and serve it."""
        info = TargetFile.from_data(path, data, ["sha256"])
        self.signed(role).targets[path] = info
        folder, _, name = path.rpartition("/")
        self.files[f"targets/{folder}/{info.hashes['sha256']}.{name}"] = data
        self.files[f"targets/{path}"] = data

    def publish(self, role: str, *, bump: bool = True, expires: datetime | None = None) -> bytes:
        """Sign a role's metadata and serve it, and let the role above list its version; returns the bytes."""
        signed = self.signed(role)
        signed.version += bump
        signed.expires = expires or self.now + timedelta(days=EXPIRES[role])
        signed.unrecognized_fields[SIGNED_AT] = stamp(self.now)
        data = self.sign(role)
        self.serve(role, data)
        if role == "snapshot":
            self.signed("timestamp").snapshot_meta = MetaFile(signed.version)
        elif role not in ("root", "timestamp"):
            self.signed("snapshot").meta[f"{role}.json"] = MetaFile(signed.version)
        return data

    def release(self, *roles: str) -> None:
        """Publish roles and what lists them: snapshot and timestamp."""
        for role in (*roles, "snapshot", "timestamp"):
            self.publish(role)

    def sign(self, role: str) -> bytes:
        """A role's metadata, signed by all of its signers."""
        metadata = self.metadata[role]
        metadata.signatures.clear()
        for signer in self.signers[role]:
            metadata.sign(signer, append=True)
        return metadata.to_bytes()

    def serve(self, role: str, data: bytes) -> None:
        """Serve these bytes as a role's present metadata."""
        version = "" if role == "timestamp" else f"{self.signed(role).version}."
        self.files[f"metadata/{version}{role}.json"] = data

    def rotate(self, role: str) -> None:
        """Give a top-level role a new key; publish the root afterwards."""
        root = self.signed("root")
        for keyid in list(root.roles[role].keyids):
            root.revoke_key(keyid, role)
        fresh = CryptoSigner.generate_ed25519()
        root.add_key(fresh.public_key, role)
        self.signers[role] = [*self.signers[role], fresh] if role == "root" else [fresh]

    def resign(self, role: str, change: Callable[[dict[str, Any]], None]) -> bytes:
        """A role's metadata changed as plain JSON and signed again, also where python-tuf could not express it."""
        document = json.loads(self.sign(role))
        change(document["signed"])
        canonical = encode_canonical(document["signed"]).encode()
        document["signatures"] = [
            {"keyid": signer.public_key.keyid, "sig": signer.sign(canonical).signature} for signer in self.signers[role]
        ]
        return json.dumps(document).encode()


class MemoryDownloader:
    """Gives what a simulator serves, in the manner of `device_agent.update.transfer.downloader`."""

    def __init__(self, files: dict[str, bytes], requests: list[str] | None = None) -> None:
        self.files = files
        self.requests = [] if requests is None else requests

    def read(self, path: str, *, limit: int) -> bytes:
        self.requests.append(path)
        if path not in self.files:
            raise NotFound("is not in the repository", where=path)
        data = self.files[path]
        if len(data) > limit:
            raise FetchError("is longer than it may be", where=path, expected=f"at most {limit} bytes")
        return data


class Times:
    """Clocks of a machine, to be set.

    Attributes:
        system: The system clock, in seconds since 1970.
        uptime: Seconds since the boot.
        boot: The boot's id.
    """

    def __init__(self, *, system: float = START.timestamp(), uptime: float = 60.0) -> None:
        self.system = system
        self.uptime = uptime
        self.boot = "boot-1"

    def pass_by(self, seconds: float) -> None:
        """Let time pass, for both clocks."""
        self.system += seconds
        self.uptime += seconds

    def reboot(self, *, system: float) -> None:
        """Start again, with what the system clock then says."""
        self.boot += "+"
        self.uptime = 30.0
        self.system = system


class QuickDisk(Disk):
    """Does not sync: what a power cut does is tested elsewhere."""

    def sync(self, descriptor: int) -> None:
        pass


class Device:
    """A device that trusts a simulator's first root; each `open` is a new process.

    Args:
        folder: Its state directory.
        repository: What it is enrolled to.
        times: Its clocks.
        disk: Its disk; one that does not sync, if none is given.
    """

    def __init__(
        self, folder: Path, repository: Simulator, times: Times | None = None, disk: Disk | None = None
    ) -> None:
        self.folder = folder
        self.repository = repository
        self.times = times or Times()
        self.disk = disk or QuickDisk()
        folder.mkdir(parents=True, exist_ok=True)
        self.open().bootstrap(repository.root)

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata"

    def clock(self) -> Clock:
        return Clock(
            self.folder / "clock.json",
            self.disk,
            now=lambda: self.times.system,
            boottime=lambda: self.times.uptime,
            boot_id=lambda: self.times.boot,
        )

    def open(self) -> TrustedMetadata:
        downloader: Any = MemoryDownloader(self.repository.files, self.repository.requests)
        return TrustedMetadata(self.metadata, downloader, self.clock(), self.disk)

    def refresh(self) -> TrustedMetadata:
        """One update process: refresh, and what it then gives."""
        metadata = self.open()
        metadata.refresh()
        return metadata

    def take(self, target: str | None) -> bytes | None:
        """One update process that asks for one target, or for none."""
        metadata = self.refresh()
        return None if target is None else metadata.target(target)

    def versions(self) -> dict[str, int]:
        """What is trusted on disk, by role."""
        return {
            path.stem: json.loads(path.read_bytes())["signed"]["version"]
            for path in sorted(self.metadata.glob("*.json"))
        }
