"""A repository in a folder: a copy on a stick or a mounted share. The checks are the same as for a server.

Whoever hands over a stick may have written anything onto it, so no link below the folder is followed, and only regular
files are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from device_agent.update.transfer.sources import PIECE_BYTES, Body, NotFound, RangeError, check_path
from edgeonnx.errors import FetchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FolderSource:
    """The files below a folder. The folder itself may be reached through links.

    Args:
        folder: Where `metadata/` and the others lie.

    Raises:
        UsageError: There is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError(
                "is no folder", where=str(folder), hint="give the folder that holds the repository's metadata/"
            )
        self._folder = folder

    def __repr__(self) -> str:
        return f"FolderSource({str(self._folder)!r})"

    @contextlib.contextmanager
    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
        """Read a file; see `Source.open`."""
        where = str(self._folder / check_path(path))
        descriptor = self._descriptor(path, where)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FetchError("is no regular file", where=where)
            found = f"{status.st_size}-{status.st_mtime_ns}"
            start = offset if validator in (None, found) else 0
            if start > status.st_size:
                raise RangeError("ends before the place to go on at", where=where)
            pieces = _pieces(descriptor, start, status.st_size, where)
            yield Body(offset=start, total=status.st_size, validator=found, pieces=pieces)
        finally:
            os.close(descriptor)

    def _descriptor(self, path: str, where: str) -> int:
        """Open a file folder by folder, so that a link is noticed in any place of the path."""
        *folders, name = path.split("/")
        inside = -1
        try:
            inside = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for folder in folders:
                deeper = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
                os.close(inside)
                inside = deeper
            # O_NONBLOCK: a pipe without a writer would be waited for.
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
        except OSError as error:
            raise _explained(error, where) from None
        finally:
            if inside >= 0:
                os.close(inside)


def _explained(error: OSError, where: str) -> FetchError:
    if error.errno == errno.ENOENT:
        return NotFound("is not in the repository", where=where)
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
        return FetchError(
            "is no regular file in plain folders", where=where, hint="copy the repository with its content (cp -rL)"
        )
    return FetchError("cannot be read", where=where, found=error.strerror or str(error))


def _pieces(descriptor: int, start: int, end: int, where: str) -> Iterator[bytes]:
    """The bytes from `start` to `end`; fewer if the file became shorter."""
    while start < end:
        try:
            piece = os.pread(descriptor, min(PIECE_BYTES, end - start), start)
        except OSError as error:
            raise _explained(error, where) from None
        if not piece:
            return
        start += len(piece)
        yield piece
