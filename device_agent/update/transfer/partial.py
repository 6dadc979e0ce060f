"""A file that is being downloaded: what of it is durable, and of which state of which file it is.

    incoming/<name>.part         the bytes so far
    incoming/<name>.part.json    path, validator, and how many of those bytes were synced when this was written

The part is synced before the note beside it says so. After a power cut only the bytes that the note vouches for are
kept: what lies behind them may be zeros. A note that is torn, or is of another file, means starting anew; whoever
asked for the file compares its digest in any case.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import EdgeOnnxError, NoSpaceError, StateError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from device_agent.slots.disk import Disk

NOTE_SCHEMA = "1.0"
NOTE_BYTES = 4 << 20
"""Bytes after which the note is renewed: the most that a power cut takes back on a fast link."""
NOTE_SECONDS = 30.0
"""Time after which it is renewed on a slow link."""
MAX_NOTE_BYTES = 8 << 10


def note_of(part: Path) -> Path:
    """Where the note beside a part lies."""
    return part.with_name(f"{part.name}.json")


@dataclass(frozen=True, kw_only=True)
class Note:
    """What is known of a part.

    Attributes:
        path: The file's path in the repository.
        validator: Of the state of the file that the bytes are of.
        synced: How many bytes are durable.
    """

    path: str
    validator: str
    synced: int

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        """Read a note.

        Raises:
            ManifestError, SchemaVersionError: It is torn, or of another version.
        """
        node = parse_document(data, "the note").version("schema_version", known=NOTE_SCHEMA)
        node.only(("schema_version", "path", "validator", "synced"))
        return cls(path=node.text("path"), validator=node.text("validator"), synced=node.integer("synced"))

    def to_bytes(self) -> bytes:
        """The note's canonical bytes."""
        return canonical_json(
            {
                "schema_version": NOTE_SCHEMA,
                "path": self.path,
                "validator": self.validator,
                "synced": self.synced,
            }
        )


class PartialFile:
    """The part of one download, opened; what an earlier run left durable is kept.

    Args:
        part: Where the bytes lie.
        path: The file's path in the repository.
        disk: What writes.

    Attributes:
        position: Bytes that are there.
        validator: Of the state of the file that they are of, or None.

    Raises:
        NoSpaceError, StateError: The disk does not take it, here and in each method.
    """

    def __init__(self, part: Path, path: str, disk: Disk) -> None:
        self._part = part
        self._path = path
        self._disk = disk
        self.position = 0
        self.validator: str | None = None
        self._noted = 0
        self._noted_at: float | None = None
        with self._writing():
            note = self._earlier()
            if note is None:
                self._clear()
                self._descriptor = disk.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
                return
            self._descriptor = disk.open(part, os.O_WRONLY | os.O_APPEND)
            disk.truncate(self._descriptor, note.synced)
        self.position = self._noted = note.synced
        self.validator = note.validator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is not None:  # what came is kept for the next run, if the disk takes it
                with contextlib.suppress(NoSpaceError, StateError):
                    self.keep()
        finally:
            self._disk.close(self._descriptor)

    def begin(self, *, validator: str | None, offset: int) -> None:
        """Get ready for bytes that start at `offset`, which is `position` or 0."""
        if offset == 0 and self.position:
            self.restart()
        self.validator = validator

    def restart(self) -> None:
        """Forget all bytes; the note goes first, so that it never vouches for others."""
        with self._writing():
            if self._noted:
                self._disk.remove(note_of(self._part))
                self._disk.sync_folder(self._part.parent)
            self._disk.truncate(self._descriptor, 0)
        self.position = self._noted = 0
        self.validator = None

    def write(self, piece: bytes, *, now: float) -> None:
        """Add bytes; from time to time they are made durable and noted.

        Args:
            piece: The bytes.
            now: The time in seconds, on a clock that never goes back.
        """
        with self._writing():
            self._disk.write_all(self._descriptor, piece)
        self.position += len(piece)
        if self._noted_at is None:
            self._noted_at = now
        if self.position - self._noted >= NOTE_BYTES or now - self._noted_at >= NOTE_SECONDS:
            self.keep()
            self._noted_at = now

    def keep(self) -> None:
        """Make what is there durable, and note it. Without a validator nothing could be gone on with."""
        if self.validator is None or self.position == self._noted:
            return
        note = Note(path=self._path, validator=self.validator, synced=self.position)
        with self._writing():
            self._disk.sync(self._descriptor)
            self._disk.replace(note_of(self._part), note.to_bytes())
        self._noted = self.position

    def finish(self) -> None:
        """All bytes are there: make them durable.

        A large file keeps its note until its owner removes both: a power cut while it is being decoded then costs a
        question to the server, not the file.
        """
        if self.position >= NOTE_BYTES:
            self.keep()
        with self._writing():
            if self._noted != self.position:
                self._disk.sync(self._descriptor)
                if self._noted:
                    self._disk.remove(note_of(self._part))

    def discard(self) -> None:
        """Remove the part and its note: nothing of it can be used."""
        with self._writing():
            self._disk.remove(note_of(self._part))
            self._disk.remove(self._part)
        self.validator = None  # nothing is noted when it is closed

    def _clear(self) -> None:
        """Remove what cannot be used, durably: else a power cut could give it back its name under a new note."""
        left = [path for path in (note_of(self._part), self._part) if os.path.lexists(path)]
        for path in left:
            self._disk.remove(path)
        if left:
            self._disk.sync_folder(self._part.parent)

    def _earlier(self) -> Note | None:
        """What an earlier run left, or None if nothing of it can be used."""
        try:
            note = Note.from_bytes(_read(note_of(self._part)))
            status = self._part.lstat()
        except (OSError, EdgeOnnxError):
            return None
        whole = stat.S_ISREG(status.st_mode) and status.st_size >= note.synced > 0
        return note if whole and note.path == self._path and note.validator else None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpaceError(
                    "a download cannot be kept: the disk is full", where=str(self._part), hint="make room"
                ) from error
            raise StateError(
                "a download cannot be kept", where=str(self._part), found=error.strerror or str(error)
            ) from error


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, MAX_NOTE_BYTES)
    finally:
        os.close(descriptor)
