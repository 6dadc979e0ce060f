"""Every write of the agent to its state directory, durable and in one order.

The rule: a name exists only when its content is durable and verified. So a file is written beside under another name,
synced, renamed, and its folder synced; each step may be repeated after a power cut. A folder loses its name before it
is emptied, for the same reason. All writes go through a `Disk`, so that tests can record them, drop those that were
not synced, or let each fail.

The methods in the first half are single system calls and decide nothing; the second half composes them. Reading is no
write and needs no `Disk`: `read_file` reads what may have been damaged, exchanged, or made a trap of.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TEMPORARY = ".new"
"""End of the names of files that are being written; whatever bears it after a crash is removed."""


class Disk:
    """The file system as it is. Errors are `OSError`; callers turn them into errors of ours."""

    # One system call each.

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """`open`; a link in the last place is never followed."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """`write`; returns how many bytes were written."""
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        """`ftruncate`."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """`fsync`, of a file or a folder."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """`close`."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """`rename`: what bore the name `target` is replaced in one step."""
        os.rename(source, target)  # noqa: PTH104 - one system call, under its own name

    def link(self, source: Path, target: Path) -> None:
        """`link`: a second name for a file; fails if the name is taken."""
        os.link(source, target, follow_symlinks=False)

    def symlink(self, text: str, target: Path) -> None:
        """`symlink`."""
        os.symlink(text, target)  # noqa: PTH211

    def unlink(self, path: Path) -> None:
        """`unlink`."""
        os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        """`mkdir`."""
        os.mkdir(path, mode)  # noqa: PTH102

    def rmdir(self, path: Path) -> None:
        """`rmdir`."""
        os.rmdir(path)  # noqa: PTH106

    def chmod(self, descriptor: int, mode: int) -> None:
        """`fchmod`."""
        os.fchmod(descriptor, mode)

    # What is made of them.

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        descriptor = self.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)

    def write_all(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write all of the data."""
        rest = memoryview(data)
        while rest:
            written = self.write(descriptor, rest)
            if written == 0:
                raise OSError(errno.EIO, "the disk takes no more bytes and does not say why")
            rest = rest[written:]

    def create(self, path: Path, pieces: Iterable[bytes | memoryview], mode: int = 0o600) -> None:
        """Write a new file and sync it; its name is not durable before its folder is synced.

        If anything fails, also in `pieces`, the file is removed again.
        """
        descriptor = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            try:
                for piece in pieces:
                    self.write_all(descriptor, piece)
                self.sync(descriptor)
            finally:
                self.close(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(path)
            raise

    def replace(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        """Give a name a new content in one durable step: after a crash it has the old one or the new one, whole."""
        beside = beside_of(path)
        self.create(beside, [data], mode)
        self.move(beside, path)

    def replace_link(self, path: Path, text: str) -> None:
        """Point a symbolic link elsewhere in one durable step."""
        beside = beside_of(path)
        self.symlink(text, beside)
        self.move(beside, path)

    def move(self, source: Path, target: Path) -> None:
        """Rename durably; if that fails, the source is removed, and the target stays as it was."""
        try:
            self.rename(source, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(source)
            raise
        self.sync_folder(target.parent)
        if source.parent != target.parent:
            self.sync_folder(source.parent)

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, durably; nothing happens if it is there.

        Raises:
            NotADirectoryError: Something else has its name.
        """
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        try:
            self.mkdir(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "is no folder", str(folder)) from None
        self.sync_folder(folder.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, a link, or a folder with all that is in it; nothing happens if it is not there.

        Links are removed, never followed.
        """
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            self.unlink(path)
            return
        for entry in list(os.scandir(path)):
            self.remove(Path(entry.path))
        self.rmdir(path)


def read_file(path: Path, *, limit: int) -> bytes:
    """The bytes of a small regular file that nobody vouches for.

    A link is not followed, a pipe does not block, and what is larger than `limit` is not read.

    Raises:
        OSError: It cannot be read, is no regular file, or is too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(descriptor)


def entries_of(folder: Path) -> list[Path]:
    """What lies in a folder, sorted; nothing if it is not there or is no folder. A link is no folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        return sorted(folder / name for name in os.listdir(descriptor))  # noqa: PTH208 - by descriptor
    finally:
        os.close(descriptor)


def beside_of(path: Path) -> Path:
    """A name for what will replace `path`, in the same folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
