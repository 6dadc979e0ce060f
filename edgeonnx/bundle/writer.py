"""Writing a bundle: all or nothing, and the same bytes for the same input.

Everything goes to a hidden folder beside the target; only a complete, synced folder gets the target's name. A build
that fails or is killed leaves no bundle behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.bundle.reader import EVIDENCE_FILE, MANIFEST_FILE
from edgeonnx.errors import BundleError, UsageError
from edgeonnx.spec.contents import CONTENTS_FILE, UNSEALED_FILES, Contents, FileEntry, asset_digest, canonical_json
from edgeonnx.spec.paths import asset_directory, check_relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.manifest import Manifest

    Buffer = bytes | memoryview

TOKEN = "[0-9a-f]" * 8
"""What tells the hidden folders of one bundle apart: exact, as `minilm-1.0` must not take one of `minilm-1.0.0`."""
PARTIAL = ".partial"
RETIRED = ".retired"


class BundleWriter:
    """Collects the files of one bundle and gives them their name in the end.

    Use it as a context manager: `add` files, `finish` with the metadata, look at `staging` if you like, `publish`.
    What no two builds measure alike goes in by `add_unsealed`, at any time before `publish`. Leaving it without
    `publish` removes everything that was written.

    Args:
        target: The bundle's folder. It must not exist, unless `replace` is set.
        replace: Replace an existing folder; until `publish` it stays as it is.

    Raises:
        UsageError: The target exists, or its parent cannot be written.
    """

    def __init__(self, target: Path, *, replace: bool = False) -> None:
        self._target = target
        self._replace = replace
        self._entries: dict[str, FileEntry] = {}
        self._staging = target.parent / f".{target.name}.{secrets.token_hex(4)}{PARTIAL}"
        self._lock: int | None = None
        check_target(target, replace=replace)

    def __enter__(self) -> Self:
        try:
            self._staging.mkdir(parents=True)
            self._lock = _lock_folder(self._staging)
        except OSError as error:
            raise UsageError(
                "the output folder cannot be written",
                where=str(self._target.parent),
                found=error.strerror or str(error),
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def add(self, path: str, data: Buffer) -> FileEntry:
        """Write one file at `path` (relative, POSIX) and list it."""
        return self._write(path, data, hashlib.sha256(data).hexdigest())

    def add_asset(self, files: Mapping[str, Buffer]) -> str:
        """Write a content-addressed shared asset and return its reference `sha256:<hex>`."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        digest = asset_digest(digests.items())
        for name, data in files.items():
            path = f"{asset_directory(digest)}/{name}"
            if path not in self._entries:
                self._write(path, data, digests[name])
        return f"sha256:{digest}"

    def add_unsealed(self, name: str, data: Buffer) -> None:
        """Write one of `UNSEALED_FILES`: it is in the bundle, but not in the list and not covered by the digest."""
        if name not in UNSEALED_FILES:
            raise ValueError(f"{name} must be sealed: only {' and '.join(UNSEALED_FILES)} may lie outside the digest")
        if os.path.lexists(self._staging / name):
            raise ValueError(f"{name} was written already")
        self._put(name, data)
        with self._disk(name):
            _sync_folder(self._staging)

    def _write(self, path: str, data: Buffer, digest: str) -> FileEntry:
        check_relative_path(path, where="bundle writer")
        if path in self._entries:
            raise ValueError(f"{path} was written already")
        if path.lower() in UNSEALED_FILES:
            raise ValueError(f"{path} cannot be sealed: no list may name it")
        self._put(path, data)
        entry = FileEntry(path=path, size=len(data), sha256=digest)
        self._entries[path] = entry
        return entry

    def _put(self, path: str, data: Buffer) -> None:
        """Write the bytes of a file and make them durable."""
        file = self._staging / path
        with self._disk(path):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())

    @contextlib.contextmanager
    def _disk(self, path: str) -> Iterator[None]:
        """What the disk refuses (full, read-only, a name too long) is an error of ours that says so."""
        try:
            yield
        except OSError as error:
            raise BundleError(
                "the bundle cannot be written",
                where=str(self._target.parent / path),
                found=error.strerror or str(error),
                hint="nothing was kept; make room or choose another --out",
            ) from error

    @property
    def staging(self) -> Path:
        """The hidden folder that holds what was written so far; after `finish` it is a complete bundle."""
        return self._staging

    def finish(self, manifest: Manifest, evidence: Evidence) -> Contents:
        """Write the metadata and make everything durable. Returns the list of the bundle's files."""
        self.add(MANIFEST_FILE, canonical_json(manifest.to_dict()))
        for name, component in manifest.components.items():
            self.add(f"{name}/component.json", canonical_json(component.to_dict()))
        self.add(EVIDENCE_FILE, canonical_json(evidence.to_dict()))
        contents = Contents.of(self._entries.values())
        self._write(CONTENTS_FILE, contents.to_bytes(), contents.digest)
        with self._disk(""):
            for folder, _, _ in os.walk(self._staging):
                _sync_folder(Path(folder))
        return contents

    def publish(self) -> None:
        """Give the finished bundle its name. From here on it exists."""
        check_target(self._target, replace=self._replace)
        with self._disk(self._target.name):
            self._give_name()
            _sync_folder(self._target.parent)

    def _give_name(self) -> None:
        if not self._target.exists():
            self._staging.rename(self._target)
            return
        retired = self._staging.with_suffix(RETIRED)
        try:
            self._target.rename(retired)
            self._staging.rename(self._target)
        except BaseException:  # an interrupt, too, must not leave the old bundle without its name
            if not self._target.exists() and retired.exists():
                retired.rename(self._target)
            raise
        shutil.rmtree(retired, ignore_errors=True)


def clear_leftovers(target: Path) -> None:
    """Put right what builds of this bundle left behind that could not end by themselves (power cut, SIGKILL).

    A bundle that was set aside and not yet replaced gets its name back. Half-written folders are removed, but not those
    of builds that run: each holds a lock on its own.
    """
    if not target.parent.is_dir():
        return
    for retired in sorted(target.parent.glob(f".{target.name}.{TOKEN}{RETIRED}")):
        if os.path.lexists(target):
            shutil.rmtree(retired, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                retired.rename(target)
    for partial in target.parent.glob(f".{target.name}.{TOKEN}{PARTIAL}"):
        with contextlib.suppress(OSError):
            lock = _lock_folder(partial)
            if lock is not None:
                shutil.rmtree(partial, ignore_errors=True)
                os.close(lock)


def _lock_folder(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed or the process ends; None if another one has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def check_target(target: Path, *, replace: bool) -> None:
    """Refuse a target that must not be written: called before a long build, and again by the writer.

    Raises:
        UsageError: The target exists and `replace` is not set, it is something else than a bundle, or its folder cannot
            be written.
    """
    if not os.path.lexists(target):
        _check_parent(target)
        return
    if not replace:
        raise UsageError(
            "the bundle exists already",
            where=str(target),
            hint="bundles are immutable: raise --version, or use --force",
        )
    if target.is_symlink() or not (target / MANIFEST_FILE).is_file():
        raise UsageError(
            "will not be replaced: it is not a bundle", where=str(target), hint="choose another --out or move it away"
        )


def _check_parent(target: Path) -> None:
    """The nearest folder that exists must let us write: said before minutes of work, not after them."""
    nearest = next(folder for folder in target.absolute().parents if os.path.lexists(folder))
    if not nearest.is_dir():
        raise UsageError(
            "the output folder cannot be made: a file is in its place", where=str(nearest), hint="choose another --out"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError("the output folder cannot be written", where=str(nearest), hint="choose another --out")


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (POSIX: a rename is on disk only when its folder is)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
