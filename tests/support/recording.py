"""A disk that notes every operation, so that `tests.support.crash_model` can tell what a power cut leaves of them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from device_agent.slots.disk import Disk

MUTATIONS = ("open", "write", "truncate", "sync", "rename", "link", "symlink", "unlink", "mkdir", "rmdir", "chmod")
"""Operations that change the disk, or make a change durable. Reading and closing are none."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation that succeeded; paths are relative to the recorded folder.

    Attributes:
        kind: One of `MUTATIONS`, where "open" also stands for opening what was there; or "mark", which does nothing:
            at that point the state of the number `offset` was promised to be durable.
        path: What it is about.
        other: The target of a rename or a link, or the text of a symbolic link.
        handle: Which opened file it is about; each opening has its own number.
        offset: Where a write began, the size of a truncation, or the flags of an opening.
        data: What was written.
    """

    kind: str
    path: str = ""
    other: str = ""
    handle: int = -1
    offset: int = 0
    data: bytes = b""


class RecordingDisk(Disk):
    """Does everything, and notes it. What lies outside the recorded folder is an error.

    Args:
        root: The recorded folder.
        quick: Do not wait for the real disk.
    """

    def __init__(self, root: Path, *, quick: bool = True) -> None:
        self.operations: list[Operation] = []
        self._root = root
        self._quick = quick
        self._handles: dict[int, int] = {}
        self._next = 0
        self._lock = threading.Lock()

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        with self._lock:
            descriptor = super().open(path, flags, mode)
            self._handles[descriptor] = self._next
            self.operations.append(Operation(kind="open", path=self._name(path), handle=self._next, offset=flags))
            self._next += 1
            return descriptor

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        with self._lock:
            written = super().write(descriptor, data)
            offset = os.lseek(descriptor, 0, os.SEEK_CUR) - written
            self._note("write", descriptor, offset=offset, data=bytes(data[:written]))
            return written

    def truncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            super().truncate(descriptor, size)
            self._note("truncate", descriptor, offset=size)

    def sync(self, descriptor: int) -> None:
        with self._lock:
            if not self._quick:
                super().sync(descriptor)
            self._note("sync", descriptor)

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._handles.pop(descriptor, None)
            super().close(descriptor)

    def chmod(self, descriptor: int, mode: int) -> None:
        with self._lock:
            super().chmod(descriptor, mode)
            self._note("chmod", descriptor)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            super().rename(source, target)
            self.operations.append(Operation(kind="rename", path=self._name(source), other=self._name(target)))

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            super().link(source, target)
            self.operations.append(Operation(kind="link", path=self._name(source), other=self._name(target)))

    def symlink(self, text: str, target: Path) -> None:
        with self._lock:
            super().symlink(text, target)
            self.operations.append(Operation(kind="symlink", path=self._name(target), other=text))

    def unlink(self, path: Path) -> None:
        with self._lock:
            super().unlink(path)
            self.operations.append(Operation(kind="unlink", path=self._name(path)))

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        with self._lock:
            super().mkdir(path, mode)
            self.operations.append(Operation(kind="mkdir", path=self._name(path)))

    def rmdir(self, path: Path) -> None:
        with self._lock:
            super().rmdir(path)
            self.operations.append(Operation(kind="rmdir", path=self._name(path)))

    def mark(self, number: int) -> None:
        """Note that a state was promised to be durable."""
        with self._lock:
            self.operations.append(Operation(kind="mark", offset=number))

    def _note(self, kind: str, descriptor: int, *, offset: int = 0, data: bytes = b"") -> None:
        self.operations.append(Operation(kind=kind, handle=self._handles[descriptor], offset=offset, data=data))


def promised(operations: list[Operation], count: int) -> int:
    """The number of the last state that the first `count` operations promised to be durable; 0 for none."""
    return max((each.offset for each in operations[:count] if each.kind == "mark"), default=0)
