"""What the repository's keys signed, as this device has it: pinned once, refreshed, never taken back.

    metadata/
      anchor/root.json                 the root that the operator pinned at enrolment; each refresh begins with it
      anchor/floor.json                what was accepted (`device_agent.update.trust.floor`)
      root_history/<version>.root.json the chain of roots that follows from it
      root.json                        a link to the newest of them
      timestamp.json, snapshot.json, targets.json, <delegated role>.json
      targets/<quoted path>            verified targets
      *.damaged                        what did not parse, set aside for a person to look at

No file of TUF's can bear a name in `anchor/`, whatever the roles are called: a slash in a role's name is quoted.
"""

from __future__ import annotations

import contextlib
import logging
import os
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tuf.api.exceptions import DownloadError, LengthOrHashMismatchError, RepositoryError
from tuf.api.metadata import Metadata, Root, TargetFile
from tuf.api.serialization import DeserializationError

from device_agent.slots.disk import TEMPORARY, read_file
from device_agent.update.trust.explain import explained
from device_agent.update.trust.floor import Floor, signed_at
from device_agent.update.trust.verifier import HISTORY, LIMITS, Fetcher, Verifier, check_document
from edgeonnx.errors import BundleError, EdgeOnnxError, NoSpaceError, StateError, UntrustedError, first_line
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_agent.slots.disk import Disk
    from device_agent.update.transfer.downloader import Downloader
    from device_agent.update.trust.clock import Clock

MAX_TARGET_BYTES = 4 << 20
"""A release has a few hundred bytes, and a hundred for each delta; a channel about 200 for each offer."""
MAX_CACHED_TARGETS = 64
"""Verified targets that are kept; the oldest go first."""
MAX_FLOOR_BYTES = 4 << 20
FULL_DISK = (28, 122)
"""ENOSPC and EDQUOT."""

_logger = logging.getLogger(__name__)


class TrustedMetadata:
    """The repository's signed metadata.

    Args:
        folder: `metadata/` of the state directory.
        downloader: Fetches from the repository, whose root has the folders `metadata/` and `targets/`.
        clock: Says what has expired, and learns from what was signed.
        disk: Writes everything.

    Only the process that holds the update lock may use it.
    """

    def __init__(self, folder: Path, downloader: Downloader, clock: Clock, disk: Disk) -> None:
        self._folder = folder
        self._downloader = downloader
        self._clock = clock
        self._disk = disk
        self._fetcher = Fetcher(downloader)
        self._verifier: Verifier | None = None

    # The anchor.

    def bootstrap(self, root: bytes) -> None:
        """Pin the root that everything else follows from.

        The same root again changes nothing. Another one begins anew: what was accepted before is forgotten, because
        it may be another repository's. An expired root is fine as long as the repository has a newer one.

        Args:
            root: The file `root.json`, from whoever runs the repository, over a way that can be trusted.

        Raises:
            UntrustedError: It is no root, or is not signed by its own keys.
            StateError, NoSpaceError: It cannot be kept.
        """
        signed = read_root(root)
        anchor = self._folder / "anchor" / "root.json"
        time = signed_at(signed.unrecognized_fields, signed.expires) or 0.0
        with self._writing():
            if _read(anchor, LIMITS.root_max_length) != root:
                self._begin_anew(anchor)
                self._clock.revoked(time)
                self._disk.make_folder(anchor.parent)
                self._disk.replace(anchor, root)
            self._clock.verified(time)
        self._verifier = None
        if signed.expires.timestamp() <= self._clock.effective():
            _logger.warning("the pinned root expired on %s: the repository must have a newer one", _day(signed.expires))

    def _begin_anew(self, anchor: Path) -> None:
        """Remove all but the anchor, which is replaced last: until then the old one counts, without its memory."""
        for folder in (self._folder, anchor.parent):
            for path in _entries(folder):
                if path not in (anchor, anchor.parent):
                    self._disk.remove(path)

    def _pinned(self) -> bytes:
        """The pinned root: the anchor, or the copy of it that begins the chain."""
        copies = sorted((self._folder / HISTORY).glob("*.root.json"), key=_number)
        for path in (self._folder / "anchor" / "root.json", *copies[:1]):
            data = _read(path, LIMITS.root_max_length)
            if data is None:
                continue
            try:
                read_root(data)
            except UntrustedError as error:
                _logger.warning("%s is damaged: %s", path, error)
            else:
                return data
        raise StateError(
            "the pinned root is missing or damaged",
            where=str(self._folder),
            hint="enrol the device again with the repository's root.json; what is installed stays and serves",
        )

    # Refreshing.

    def refresh(self) -> None:
        """Bring the top-level metadata up to date.

        Raises:
            UntrustedError: What the repository offers is not signed as it must be, has expired, or goes back.
            FetchError: It cannot be fetched.
            StateError, NoSpaceError: The local files cannot be read or written.
        """
        self._verifier = None
        floor = self._floor()
        with self._writing():
            self._tidy()
        verifier = self._begin(floor)
        try:
            with self._explaining(verifier):
                verifier.refresh()
        except BaseException:
            # What was accepted before it failed is in the local files already, so the floor must have it, too.
            with contextlib.suppress(OSError, EdgeOnnxError):
                self._keep(floor, verifier.floor)
            raise
        with self._writing():
            self._keep(floor, verifier.floor)
        self._verifier = verifier

    def _begin(self, floor: Floor) -> Verifier:
        try:
            with self._writing():
                return Verifier(
                    self._folder,
                    fetcher=self._fetcher,
                    disk=self._disk,
                    clock=self._clock,
                    floor=floor,
                    root=self._pinned(),
                )
        except RepositoryError as error:
            raise UntrustedError("the pinned root cannot be used", found=first_line(error)) from None

    def _keep(self, before: Floor, after: Floor) -> None:
        """Write the floor first: a time without a record of who proved it could not be taken back."""
        if after != before:
            self._disk.make_folder(self._folder / "anchor")
            self._disk.replace(self._folder / "anchor" / "floor.json", after.to_bytes())
        if after.latest is not None:
            self._clock.verified(after.latest)

    def _floor(self) -> Floor:
        path = self._folder / "anchor" / "floor.json"
        data = _read(path, MAX_FLOOR_BYTES)
        try:
            return Floor() if data is None else Floor.from_bytes(data)
        except BundleError as error:
            _logger.warning("%s is damaged; until the next refresh only TUF's own files remember: %s", path, error)
            return Floor()

    def _tidy(self) -> None:
        """Remove what a crash left half-written, and set aside what does not parse, so that it is noticed."""
        for folder in (self._folder, self._folder / HISTORY, self._folder / "anchor", self._folder / "targets"):
            for path in _entries(folder):
                if path.name.endswith(TEMPORARY):
                    self._disk.remove(path)
                elif folder.name != "targets" and path.suffix == ".json" and _is_damaged(path):
                    _logger.warning("%s is damaged: it is set aside", path)
                    self._disk.move(path, path.with_name(f"{path.name}.damaged"))

    # Targets.

    def target(self, path: str) -> bytes | None:
        """The verified content of a target, from this device or from the repository; refreshes if that was not done.

        Args:
            path: Its path, such as `channels/stable.json`.

        Returns:
            Its bytes, or None if no role that may sign it has it.

        Raises:
            UntrustedError, FetchError, StateError, NoSpaceError: As for `refresh`.
        """
        if self._verifier is None:
            self.refresh()
        verifier = self._verifier
        if verifier is None:
            raise RuntimeError("refresh leaves a verifier")
        with self._explaining(verifier):
            info = verifier.get_targetinfo(path)
            return None if info is None else self._content(verifier, info)

    def _content(self, verifier: Verifier, info: TargetFile) -> bytes:
        if info.length > MAX_TARGET_BYTES:
            raise UntrustedError(
                "a signed target is too large",
                where=info.path,
                expected=f"at most {MAX_TARGET_BYTES} bytes",
                found=f"{info.length}",
            )
        kept = verifier.local_path(info)
        data = _read(kept, info.length)
        if data is not None:
            with contextlib.suppress(LengthOrHashMismatchError):
                info.verify_length_and_hashes(data)
                return data
        verifier.loading = f"target {info.path}"
        self._fetcher.path = verifier.remote_path(info)
        data = self._downloader.read(self._fetcher.path, limit=info.length)
        info.verify_length_and_hashes(data)
        self._make_room(kept)
        self._disk.make_folder(kept.parent)
        self._disk.replace(kept, data)
        return data

    def _make_room(self, coming: Path) -> None:
        others = [path for path in _entries(coming.parent) if path != coming]
        others.sort(key=lambda path: path.lstat().st_mtime_ns)
        for path in others[: max(0, len(others) - MAX_CACHED_TARGETS + 1)]:
            self._disk.remove(path)

    # Errors.

    @contextmanager
    def _explaining(self, verifier: Verifier) -> Iterator[None]:
        """What python-tuf and the disk refuse, in our errors."""
        with self._writing():
            try:
                yield
            except (RepositoryError, DownloadError) as error:
                raise explained(error, verifier, self._fetcher, self._clock) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = NoSpaceError if error.errno in FULL_DISK else StateError
            raise kind(
                "the metadata cannot be kept",
                where=str(error.filename or self._folder),
                found=error.strerror or str(error),
                hint="the version that serves is not touched; check the disk and who owns the state directory",
            ) from error


def read_root(data: bytes) -> Root:
    """A root that is signed by enough of its own keys.

    Raises:
        UntrustedError: It is none.
    """
    check_document(data, "root.json")
    try:
        metadata: Metadata[Root] = Metadata.from_bytes(data)
        if not isinstance(metadata.signed, Root):
            raise UntrustedError(
                "is not root metadata",
                where="root.json",
                expected="the root.json that `edgeonnx repo init` wrote",
                found=f"metadata of the role {metadata.signed.type}",
            )
        metadata.signed.verify_delegate(Root.type, metadata.signed_bytes, metadata.signatures)
    except DeserializationError as error:
        cause = error.__cause__ or error
        raise UntrustedError(
            "is not root metadata", where="root.json", expected="TUF's root metadata", found=first_line(cause)
        ) from None
    except RepositoryError as error:
        raise UntrustedError(
            "the root is not signed by enough of its own keys",
            where="root.json",
            found=first_line(error),
            hint="fetch the file again from whoever runs the repository; do not use this one",
        ) from None
    return metadata.signed


def _read(path: Path, limit: int) -> bytes | None:
    """A file's content; None if it is not there, cannot be read, is no regular file, or is longer than the limit."""
    try:
        return read_file(path, limit=limit)
    except OSError:
        return None


def _is_damaged(path: Path) -> bool:
    if path.is_symlink():
        return path.name != "root.json"
    data = _read(path, LIMITS.targets_max_length)
    if data is None:
        return not path.is_file() or os.access(path, os.R_OK)
    try:
        parse_document(data, path.name)
    except BundleError:
        return True
    return False


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _number(path: Path) -> int:
    head = path.name.partition(".")[0]
    return int(head) if head.isdecimal() else 1 << 62


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d")
