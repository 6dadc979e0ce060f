"""The files of a repository on the build host: each written whole and durably, by one publisher at a time.

    metadata/  targets/  blobs/  deltas/     what a web server serves; nothing else is ever copied there
    .edgeonnx/                               what only the build host needs: the lock, settings, a pending release

The rule of every write: beside, sync, rename, sync the folder. So a name exists only when its content is complete, and
whoever serves the folder while it is being written serves the old state or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.errors import RepositoryBusyError, RepositoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVED = ("metadata", "targets", "blobs", "deltas")
HOST = ".edgeonnx"
LOCK = f"{HOST}/lock"
"""Held while the signed state changes: for as long as it takes to sign and write a few files."""
BLOBS_LOCK = f"{HOST}/blobs.lock"
"""Held while blobs are written or removed, which may take minutes; a rollout can be halted meanwhile."""
CLEARED = {LOCK: ("metadata", "targets", HOST), BLOBS_LOCK: ("blobs", "deltas")}
"""The folders that whoever has a lock clears of half-written files."""
WAIT_SECONDS = 5.0
"""How long the lock of the signed state is waited for: longer than any change takes that does not hang."""
POLL_SECONDS = 0.05
TEMPORARY = ".new"
"""End of the names of files that are being written; the next publisher removes what bears it."""


class Files:
    """A repository's folder. Paths are relative to it, POSIX.

    The four methods with a single system call's name decide nothing; tests replace them to stop the process there.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._synced: set[Path] = set()

    # One step each.

    def put(self, path: Path, data: bytes | memoryview, mode: int) -> None:
        """Write a new file and sync it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its name, in place of what bore it."""
        source.rename(target)

    def sync(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    # What is made of them.

    def write(self, path: str, data: bytes | memoryview, mode: int = 0o644) -> None:
        """Give a name a content, in one durable step.

        Raises:
            RepositoryError: The disk refuses; the name is as it was.
        """
        target = self.root / path
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
        with self._disk(path):
            self.make_folder(target.parent)
            try:
                self.put(beside, data, mode)
                self.rename(beside, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    self.unlink(beside)
                raise
            self.sync(target.parent)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, durably."""
        if folder in self._synced or folder == self.root.parent:
            return
        self.make_folder(folder.parent) if folder != self.root else None
        made = not folder.is_dir()
        folder.mkdir(exist_ok=True, parents=folder == self.root)
        if made:
            self.sync(folder.parent)
        self._synced.add(folder)

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            RepositoryError: It is not there, or cannot be read.
        """
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise RepositoryError(
                "a file of the repository cannot be read",
                where=str(self.root / path),
                found=error.strerror or str(error),
                hint="`edgeonnx repo verify` names everything that is damaged",
            ) from None

    def exists(self, path: str) -> bool:
        """Whether there is a file of that name."""
        return (self.root / path).is_file()

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if it is not there."""
        with self._disk(path), contextlib.suppress(FileNotFoundError):
            self.unlink(self.root / path)

    def walk(self, *folders: str) -> Iterator[str]:
        """The paths of all files in some folders, sorted; those being written are left out."""
        found = [
            Path(parent, name).relative_to(self.root).as_posix()
            for folder in folders
            for parent, _, names in os.walk(self.root / folder)
            for name in names
            if not name.endswith(TEMPORARY)
        ]
        yield from sorted(found)

    def clear_leftovers(self, *folders: str) -> None:
        """Remove half-written files of a publisher that was stopped. The folders' lock must be held."""
        for folder in folders:
            for parent, _, names in os.walk(self.root / folder):
                for name in names:
                    if name.startswith(".") and name.endswith(TEMPORARY):
                        with contextlib.suppress(OSError):
                            self.unlink(Path(parent, name))

    @contextlib.contextmanager
    def lock(self, name: str = LOCK) -> Iterator[None]:
        """Keep other publishers out, as long as the block lasts or this process lives.

        Where both locks are needed, `BLOBS_LOCK` is taken first.

        Args:
            name: `LOCK` or `BLOBS_LOCK`.

        Raises:
            RepositoryBusyError: Another process has it; the lock of the signed state is waited for a little.
        """
        with self._disk(name):
            self.make_folder(self.root / HOST)
            descriptor = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(descriptor, WAIT_SECONDS if name == LOCK else 0.0)
            self.clear_leftovers(*CLEARED[name])
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise RepositoryBusyError(
                        "another process is changing the repository",
                        where=str(self.root),
                        hint="wait until it has ended, then run the command again",
                    ) from None
                time.sleep(POLL_SECONDS)
            else:
                return

    @contextlib.contextmanager
    def _disk(self, path: str) -> Iterator[None]:
        """What the disk refuses (full, read-only) is an error of ours that says so."""
        try:
            yield
        except OSError as error:
            raise RepositoryError(
                "the repository cannot be written",
                where=str(self.root / path),
                found=error.strerror or str(error),
                hint="what was published before stays valid; make room or set the rights, then run the command again",
            ) from error
