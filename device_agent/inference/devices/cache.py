"""What a first load has worked out, kept for the next one: compiled engines and measurements.

An entry is a folder, named by the digest of its key, with a manifest that states the key and the SHA-256 of every
file. The rules:

- An entry appears whole or not at all: it is written beside, synced, and renamed.
- An entry is used only if its key is exactly the one asked for, every file has its digest, nothing else lies there,
  and nobody but this user could have written it. Otherwise it is removed, with one line in the log.
- Nothing that goes wrong here keeps a model from being loaded: the work is then done again.
- The cache is bounded; the entries that were not used for longest go first.

Optimized graphs are not kept: they were optimized on the build host, see `session`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger("edgeonnx.agent")

MANIFEST = "cache.json"
VALUE = "value.json"
SCHEMA = 1
MAX_MANIFEST_BYTES = 1 << 20
MAX_VALUE_BYTES = 1 << 20
MAX_FILES = 1000
MAX_BYTES = 4 << 30
"""What all entries may take: a TensorRT engine is about as large as its model."""

_WORK = "work-"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, kw_only=True)
class CacheKey:
    """What an entry depends on; if anything here differs, it is another entry.

    Attributes:
        kind: What is kept ("engines", "measurements").
        bundle: Digest of the bundle.
        variant: Name of the variant.
        runtime: Version of ONNX Runtime.
        provider: The execution provider.
        device: The GPU with its driver, or the processor with its instruction sets; see `machine.Machine.key`.
    """

    kind: str
    bundle: str
    variant: str
    runtime: str
    provider: str
    device: str

    @property
    def name(self) -> str:
        """The name of the entry's folder."""
        canonical = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return f"{self.kind[:20]}-{hashlib.sha256(canonical.encode()).hexdigest()[:40]}"


class _RejectedError(Exception):
    """Why an entry is not used."""


# A manifest that somebody else wrote may be anything, deeply nested JSON included.
_UNUSABLE = (_RejectedError, OSError, ValueError, RecursionError)


class Cache:
    """A folder with entries. Every method is safe beside other processes on the same folder.

    Args:
        folder: The cache's folder; it is made if it is not there. None: nothing is kept.
        max_bytes: What all entries together may take.
    """

    def __init__(self, folder: Path | None, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.problem = ""
        """Why nothing is kept, although a folder was given; empty if the cache works."""
        self._folder: Path | None = None
        self._locks: dict[Path, int] = {}
        if folder is None:
            return
        try:
            self._folder = _prepare(folder)
        except (OSError, _RejectedError) as error:
            self.problem = str(error)
            logger.warning("the cache %s is not used: %s", printable(folder), printable(error))
            return
        self._remove_leftovers(self._folder)

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._folder is not None

    def read_json(self, key: CacheKey) -> object | None:
        """A value that was kept, or None if there is none (or none that may be used)."""
        found = self._find(key)
        if found is None or VALUE not in found[1]:
            return None
        entry, files = found
        try:
            data = _read(entry / VALUE, MAX_VALUE_BYTES)
            _check_digest(VALUE, hashlib.sha256(data).hexdigest(), files[VALUE])
            value: object = json.loads(data)
        except _UNUSABLE as error:
            _reject(entry, error)
            return None
        return value

    def write_json(self, key: CacheKey, value: object) -> bool:
        """Keep a value in place of an earlier one; False if it could not be kept."""
        work = self._new_folder()
        if work is None:
            return False
        try:
            (work / VALUE).write_text(json.dumps(value), encoding="utf-8")
        except (OSError, TypeError, ValueError) as error:
            logger.warning("a measurement is not kept: %s", printable(error))
            self.release(work)
            return False
        return self._seal(key, work)

    def work_folder(self, key: CacheKey) -> Path | None:
        """A folder for a provider to read and write in, private to this process, with a copy of the entry's files.

        Returns:
            The folder, to be given to `keep` and then to `release`; None if nothing is kept.
        """
        work = self._new_folder()
        found = None if work is None else self._find(key)
        if work is None or found is None:
            return work
        entry, files = found
        try:
            for name, digest in files.items():
                _copy(entry / name, work / name)
                _check_digest(name, _digest(work / name), digest)
        except _UNUSABLE as error:
            _reject(entry, error)
            self.release(work)
            return self._new_folder()
        return work

    def keep(self, key: CacheKey, work: Path) -> bool:
        """Make a copy of what lies in a work folder the entry for a key; the folder may be used on.

        Returns:
            Whether it is kept. An empty folder is not.
        """
        copy = self._new_folder()
        if copy is None:
            return False
        try:
            for name in _files(work):
                _copy(work / name, copy / name)
        except (OSError, _RejectedError) as error:
            logger.warning("nothing is kept for %s: %s", printable(key.name), printable(error))
            self.release(copy)
            return False
        return self._seal(key, copy)

    def release(self, work: Path) -> None:
        """Remove a work folder."""
        _remove(work)
        with contextlib.suppress(OSError):
            os.close(self._locks.pop(work, -1))

    def _new_folder(self) -> Path | None:
        """An empty folder that belongs to this process as long as it lives: a lock on it says so to others."""
        if self._folder is None:
            return None
        work = self._folder / f"{_WORK}{secrets.token_hex(16)}"
        try:
            work.mkdir(mode=0o700)
            self._locks[work] = handle = os.open(work, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            logger.warning("the cache %s cannot be written: %s", printable(self._folder), printable(error))
            self.release(work)
            return None
        return work

    def _seal(self, key: CacheKey, work: Path) -> bool:
        """Make a work folder the entry for a key, in place of an earlier one. The folder is gone afterwards."""
        if self._folder is None:
            return False
        entry = self._folder / key.name
        try:
            if not (names := [name for name in _files(work) if name != MANIFEST]):
                return False
            manifest = {"schema": SCHEMA, "key": asdict(key), "files": {name: _digest(work / name) for name in names}}
            (work / MANIFEST).write_text(json.dumps(manifest, sort_keys=True), encoding="utf-8")
            for name in (*names, MANIFEST, "."):
                _sync(work / name)
            self._take_place(work, entry)
            _sync(self._folder)
        except (OSError, _RejectedError) as error:
            logger.warning("nothing is kept for %s: %s", printable(key.name), printable(error))
            return False
        finally:
            self.release(work)
        self._shrink(keep=key.name)
        return True

    def state(self, key: CacheKey) -> str:
        """For people: whether an entry is there. It is not hashed for that."""
        if self._folder is None:
            return self.problem or "off"
        return "kept" if (self._folder / key.name / MANIFEST).is_file() else "nothing kept yet"

    def size(self) -> int:
        """Bytes that all entries take."""
        return 0 if self._folder is None else sum(_size(entry) for entry in _entries(self._folder))

    def _find(self, key: CacheKey) -> tuple[Path, dict[str, str]] | None:
        """The entry's folder and its files with their digests, if it may be used; one that may not is removed.

        What the files hold is not looked at yet: whoever reads them compares the digests of what was read.
        """
        if self._folder is None or not os.path.lexists(entry := self._folder / key.name):
            return None
        try:
            files = check_entry(entry, key)
            os.utime(entry)
        except _UNUSABLE as error:
            _reject(entry, error)
            return None
        return entry, files

    def _take_place(self, work: Path, entry: Path) -> None:
        """Rename a finished folder to an entry's name. A folder cannot replace a full one, so that one goes first."""
        for _ in range(3):
            if os.path.lexists(entry):
                aside = entry.parent / f"{_WORK}{secrets.token_hex(16)}"
                with contextlib.suppress(FileNotFoundError):
                    entry.rename(aside)
                _remove(aside)
            try:
                work.rename(entry)
            except OSError:
                # Another process was faster between the two; its entry is as good, but ours is newer.
                continue
            return
        raise _RejectedError("other processes keep writing the same entry")

    def _shrink(self, *, keep: str) -> None:
        """Remove the entries that were not used for longest until all fit."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            entries = sorted(_entries(self._folder), key=lambda entry: entry.stat().st_mtime)
            sizes = {entry: _size(entry) for entry in entries}
            total = sum(sizes.values())
            for entry in (entry for entry in entries if entry.name != keep):
                if total <= self._max_bytes:
                    return
                total -= sizes[entry]
                _remove(entry)
                logger.info("the cache entry %s made room for newer ones", printable(entry.name))

    def _remove_leftovers(self, folder: Path) -> None:
        """Remove the work folders of processes that have ended, whose locks ended with them."""
        for work in folder.glob(f"{_WORK}*"):
            with contextlib.suppress(OSError):
                handle = os.open(work, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(work)
                finally:
                    os.close(handle)


def _prepare(folder: Path) -> Path:
    """Make the cache's folder if it is not there, and check that nobody else may write there.

    Raises:
        OSError, _RejectedError: It cannot be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # With DynamicUser, systemd makes the service's CacheDirectory a link to the real folder.
    folder = folder.resolve()
    _check_ours(os.lstat(folder), "the folder")
    if not os.access(folder, os.W_OK):
        raise _RejectedError("the folder is not writable")
    return folder


def _reject(entry: Path, error: BaseException) -> None:
    logger.warning("the cache entry %s is not used and removed: %s", printable(entry.name), printable(error))
    _remove(entry)


def check_entry(entry: Path, key: CacheKey) -> dict[str, str]:
    """Check that an entry is ours, has exactly the files that it lists, and is the one that the key asks for.

    Returns:
        Its files with the digests that they must have.

    Raises:
        _RejectedError, OSError, ValueError, RecursionError: It may not be used.
    """
    _check_ours(os.lstat(entry), "the entry")
    manifest = json.loads(_read(entry / MANIFEST, MAX_MANIFEST_BYTES))
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise _RejectedError("its manifest is of another version")
    if manifest.get("key") != asdict(key):
        raise _RejectedError("it was made for something else")
    listed = manifest.get("files")
    if not isinstance(listed, dict) or not listed:
        raise _RejectedError("its manifest lists no files")
    present = set(_files(entry)) - {MANIFEST}
    if present != set(listed):
        raise _RejectedError(f"its files are not the listed ones: {', '.join(sorted(present ^ set(listed)))}")
    for name in present:
        _check_ours(os.lstat(entry / name), name)
    return {name: str(listed[name]) for name in sorted(present)}


def _check_digest(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise _RejectedError(f"{name} has other contents than its manifest says")


def _check_ours(status: os.stat_result, what: str) -> None:
    """Raise if somebody else owns something, or may write it, or if it is neither a folder nor a plain file."""
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise _RejectedError(f"{what} is a link or a special file")
    if status.st_uid != os.geteuid():
        raise _RejectedError(f"{what} belongs to another user ({status.st_uid})")
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise _RejectedError(f"{what} can be written by others (mode {stat.S_IMODE(status.st_mode):o})")


def _entries(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(_WORK)]


def _files(folder: Path) -> list[str]:
    """Names of the plain files in a folder, sorted.

    Raises:
        _RejectedError: It holds anything else, or too many.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    if len(entries) > MAX_FILES:
        raise _RejectedError(f"it holds more than {MAX_FILES} files")
    for entry in entries:
        if not entry.is_file(follow_symlinks=False):
            raise _RejectedError(f"{entry.name} is no plain file")
    return [entry.name for entry in entries]


def _open(path: Path) -> int:
    """Open a plain file for reading, never through a link."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def _read(path: Path, limit: int) -> bytes:
    with os.fdopen(_open(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _RejectedError(f"{path.name} is larger than {limit} bytes")
    return data


def _copy(source: Path, target: Path) -> None:
    with os.fdopen(_open(source), "rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


def _digest(path: Path) -> str:
    with os.fdopen(_open(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(entry: Path) -> int:
    with contextlib.suppress(OSError, _RejectedError):
        return sum(os.lstat(entry / name).st_size for name in _files(entry))
    return 0


def _remove(path: Path) -> None:
    """Remove an entry, whatever it is; a link itself, never what it points at."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
