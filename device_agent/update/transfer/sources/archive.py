"""A repository in one file: a tar archive, plain or compressed with gzip or zstd, for devices without a network.

The archive is unpacked below the state directory and read as a folder. Nothing of it is trusted while that happens:
names are checked, links and special files are refused, and the sizes of what is unpacked, of each header and of the
decoder's memory are bounded, so that a small file that unpacks to a full disk does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import secrets
import tarfile
import zlib
from typing import TYPE_CHECKING, BinaryIO, Self

import zstandard

from device_agent.slots.disk import TEMPORARY
from device_agent.update.transfer.sources import PIECE_BYTES, check_path
from device_agent.update.transfer.sources.folder import FolderSource
from edgeonnx.blobs.codec import MAX_WINDOW_BYTES
from edgeonnx.errors import FetchError, NoSpaceError, StateError, first_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from device_agent.slots.disk import Disk

TOPS = frozenset({"metadata", "targets", "blobs", "deltas"})
"""Folders of a repository. They lie at the archive's top, or in one folder there; everything else is left out."""

MOST_BYTES = 64 << 30
"""The most that an archive may unpack to; the disk usually sets an earlier end (`RESERVE_BYTES`)."""
MOST_FILES = 200_000
MOST_HEADER_BYTES = 1 << 20
"""The most that a tar header with a long name may have: the library reads it into memory whole."""
RESERVE_BYTES = 64 << 20
"""What unpacking leaves free on the disk."""

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@contextlib.contextmanager
def unpacked(archive: Path, folder: Path, disk: Disk, *, most_bytes: int = MOST_BYTES) -> Iterator[FolderSource]:
    """The files of an archive; what was unpacked is removed at the end.

    Args:
        archive: The archive.
        folder: Where it is unpacked, in a new folder whose name ends in `TEMPORARY`.
        disk: What writes.
        most_bytes: The most that it may unpack to.

    Raises:
        FetchError: It is no such archive, is damaged, or holds what a repository does not.
        NoSpaceError, StateError: The disk does not take it.
    """
    if not archive.is_file():
        raise FetchError("is no file", where=str(archive), expected="an archive of a repository")
    target = folder / f"import.{secrets.token_hex(4)}{TEMPORARY}"
    try:
        with _writing(target):
            disk.mkdir(target)
        with _understood(archive), _opened(archive, most_bytes) as tar:
            _unpack(tar, target, disk, str(archive))
        yield FolderSource(target)
    finally:
        with _writing(target):
            disk.remove(target)


@contextlib.contextmanager
def _understood(archive: Path) -> Iterator[None]:
    """Whatever the libraries say of a damaged archive becomes one error."""
    try:
        yield
    except (tarfile.TarError, zstandard.ZstdError, zlib.error, EOFError, OSError, ValueError, RecursionError) as error:
        raise FetchError(
            "cannot be read as an archive of a repository",
            where=str(archive),
            expected="a tar archive, plain or compressed with gzip or zstd (window of at most 8 MiB)",
            found=getattr(error, "strerror", None) or first_line(error),
        ) from None


class _SmallHeaders(tarfile.TarInfo):
    """Headers of which none is large.

    The library reads long names and maps of sparse files into memory whole. `_proc_member`, which chooses the method
    for a header, is the place that it leaves for subclasses.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        plain = self.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if self.type == tarfile.GNUTYPE_SPARSE or (not plain and self.size > MOST_HEADER_BYTES):
            raise tarfile.ReadError("a header that is too large, or a sparse file")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse file")


class _Bounded(io.RawIOBase):
    """A stream that ends in an error after so many bytes, whatever they were for."""

    def __init__(self, inner: BinaryIO, most: int) -> None:
        self._inner = inner
        self._left = most

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(min(size, PIECE_BYTES) if size >= 0 else PIECE_BYTES)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than is allowed")
        return data


@contextlib.contextmanager
def _opened(archive: Path, most_bytes: int) -> Iterator[tarfile.TarFile]:
    with archive.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        plain: BinaryIO
        if magic.startswith(GZIP_MAGIC):
            plain = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
        elif magic == ZSTD_MAGIC:
            decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
            plain = decoder.stream_reader(file, read_across_frames=True)
        else:
            plain = file
        most = most_bytes + MOST_FILES * 2 * tarfile.BLOCKSIZE
        with tarfile.open(fileobj=_Bounded(plain, most), mode="r|", tarinfo=_SmallHeaders) as tar:
            yield tar


def _unpack(tar: tarfile.TarFile, target: Path, disk: Disk, where: str) -> None:
    known: set[str] = set()
    for _ in range(MOST_FILES):
        member = tar.next()
        if member is None:
            break
        tar.members = []  # type: ignore[attr-defined] # the library keeps every header
        path = _path_of(member, where)
        if path is None:
            continue
        data = tar.extractfile(member)
        if data is None or member.issparse():
            raise _foreign(member, where)
        _make_folders(target, path, known, disk)
        _write(data, member.size, target / path, disk)
    else:
        raise FetchError("holds too many files", where=where, expected=f"at most {MOST_FILES}")
    if not known:
        raise FetchError("holds no repository", where=where, expected="a folder metadata/ at its top")


def _path_of(member: tarfile.TarInfo, where: str) -> str | None:
    """Where a member belongs in the repository; None: nowhere.

    Raises:
        FetchError: It is a link or a special file, or its name leaves the archive.
    """
    name = member.name.removeprefix("./")
    if member.isdir():
        return None
    if not member.isreg():
        raise _foreign(member, where)
    parts = check_path(name).split("/")
    if parts[0] in TOPS:
        return name
    return "/".join(parts[1:]) if len(parts) > 2 and parts[1] in TOPS else None


def _foreign(member: tarfile.TarInfo, where: str) -> FetchError:
    return FetchError(
        "holds a link or a special file",
        where=where,
        expected="regular files only",
        found=printable(member.name[:120]),
        hint="pack the repository with its content (tar --dereference)",
    )


def _make_folders(target: Path, path: str, known: set[str], disk: Disk) -> None:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        if folder not in known:
            with _writing(target / folder):
                disk.mkdir(target / folder)
            known.add(folder)


def _write(data: object, size: int, file: Path, disk: Disk) -> None:
    """Write a file; it is not synced, since what is unpacked does not outlive this run."""
    room = os.statvfs(file.parent)
    if room.f_bavail * room.f_frsize < size + RESERVE_BYTES:
        raise NoSpaceError(
            "the archive cannot be unpacked: the disk has no room",
            where=str(file),
            expected=f"{size + RESERVE_BYTES} bytes free",
            hint="make room, or unpack it elsewhere and give the folder",
        )
    with _writing(file):
        descriptor = disk.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        while piece := data.read(PIECE_BYTES):  # type: ignore[attr-defined]
            with _writing(file):
                disk.write_all(descriptor, piece)
    finally:
        disk.close(descriptor)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise FetchError("is in the archive twice", where=path.name) from None
    except OSError as error:
        kind = NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StateError
        raise kind("the archive cannot be unpacked", where=str(path), found=error.strerror or str(error)) from error
