"""Disks that fail: at the n-th operation, once or from then on, or by ending the process."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.installed import QuickDisk


class CountingDisk(QuickDisk):
    """Counts the operations that change the disk, and asks `before` about each, which may raise or not return.

    Attributes:
        count: Operations so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def before(self, kind: str, path: Path | None, undo: Callable[[], object] | None = None) -> None:
        """Called before each operation.

        Args:
            kind: The operation's name in `Disk`.
            path: What it is about, if it is about a path.
            undo: Does a part of the operation, where there can be one.
        """

    def _next(self, kind: str, path: Path | None = None, part: Callable[[], object] | None = None) -> None:
        with self._lock:
            self.count += 1
            self.before(kind, path, part)

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self._next("open", path)
        return super().open(path, flags, mode)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._next("write", None, lambda: super(CountingDisk, self).write(descriptor, data[: len(data) // 2]))
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        self._next("truncate")
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._next("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._next("rename", target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._next("link", target)
        super().link(source, target)

    def symlink(self, text: str, target: Path) -> None:
        self._next("symlink", target)
        super().symlink(text, target)

    def unlink(self, path: Path) -> None:
        self._next("unlink", path)
        super().unlink(path)

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        self._next("mkdir", path)
        super().mkdir(path, mode)

    def rmdir(self, path: Path) -> None:
        self._next("rmdir", path)
        super().rmdir(path)

    def chmod(self, descriptor: int, mode: int) -> None:
        self._next("chmod")
        super().chmod(descriptor, mode)


class KillingDisk(CountingDisk):
    """Ends the process without a word before its n-th operation; in a write, after half of it."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def before(self, kind: str, path: Path | None, part: Callable[[], object] | None = None) -> None:
        if self.count == self._at:
            if part is not None:
                part()
            os.kill(os.getpid(), signal.SIGKILL)


ROOM = ("open", "write", "rename", "link", "symlink", "mkdir", "sync", "truncate")
"""Operations that may need room on the disk; what removes something needs none."""


class FaultyDisk(CountingDisk):
    """Fails at the n-th operation; with `lasting`, also at every later one that may fail so.

    Args:
        at: Which operation.
        number: The error; ENOSPC and EDQUOT strike only what needs room.
        lasting: The disk stays like that.
        short: The write that fails does half of its work before.

    Attributes:
        struck: How many operations failed.
    """

    def __init__(self, at: int, number: int = errno.ENOSPC, *, lasting: bool = False, short: bool = False) -> None:
        super().__init__()
        self._at = at
        self._number = number
        self._lasting = lasting
        self._short = short
        self.struck = 0

    def before(self, kind: str, path: Path | None, part: Callable[[], object] | None = None) -> None:
        now = self.count == self._at or (self._lasting and self.count > self._at)
        if not now or (self._number in (errno.ENOSPC, errno.EDQUOT) and kind not in ROOM):
            return
        if self._short and part is not None:
            part()
        self.struck += 1
        raise OSError(self._number, os.strerror(self._number), None if path is None else str(path))
