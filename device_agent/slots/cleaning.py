"""Removing what no model needs, and copying a content where it cannot be linked.

What stays is decided by names alone: the slots that the states name, and the contents that their lists of files name.
The list of what is being installed lies among the contents, as the first one that was fetched. A content that some slot
still holds (more than one hard link) stays also when no list names it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
from typing import TYPE_CHECKING

from device_agent.slots.disk import TEMPORARY, entries_of, read_file
from edgeonnx.bundle.reader import MAX_CONTENTS_BYTES
from edgeonnx.errors import EdgeOnnxError
from edgeonnx.spec.contents import CONTENTS_FILE, Contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from device_agent.slots.disk import Disk
    from device_agent.slots.store import Store

_LEADING_DIGEST = re.compile(r"([0-9a-f]{64})\b")
_PIECE_BYTES = 1 << 18

logger = logging.getLogger("edgeonnx.slots")


def collect(store: Store, keep: frozenset[str]) -> int:
    """Remove what no model needs; see `Store.collect`.

    Raises:
        OSError: Something could not be removed, the first of it; the rest was.
    """
    cleaner = _Cleaner(store.disk)
    needed = set(keep)
    for model in store.models():
        cleaner.slots(store, model)
        needed |= needed_contents(store, model)
    for folder in entries_of(store.blobs):
        for path in entries_of(folder):
            if path.name not in needed and not _shared(path):
                cleaner.remove(path)
    for path in entries_of(store.incoming):
        if not _is_wanted_download(store, path.name, needed):
            cleaner.remove(path)
    if cleaner.failure is not None:
        raise cleaner.failure
    return cleaner.freed


def remove_unfinished(store: Store) -> None:
    """Remove files that were being written when the power went. Hold the update lock and the state lock.

    Raises:
        OSError: One could not be removed.
    """
    for folder in (store.root, *(store.model(model) for model in store.models())):
        for path in entries_of(folder):
            if path.name.startswith(".") and path.name.endswith(TEMPORARY):
                store.disk.remove(path)


class _Cleaner:
    """Removes one thing after the other, also after a failure."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.freed = 0
        self.failure: OSError | None = None

    def slots(self, store: Store, model: str) -> None:
        """Remove the slots that a model's state does not name; none if the state is lost."""
        state = store.read_files(model)
        if state is None:
            logger.warning("the state of %s is lost: none of its slots is removed", model)
            return
        kept = state.in_use()
        for path in entries_of(store.slots(model)):
            if path.name not in kept:
                self.remove(path, discard)

    def remove(self, path: Path, how: Callable[[Disk, Path], None] | None = None) -> None:
        """Remove one path and count what that frees."""
        try:
            size = own_bytes(path)
            if how is None:
                self._disk.remove(path)
            else:
                how(self._disk, path)
        except OSError as error:
            self.failure = self.failure or error
        else:
            self.freed += size


def discard(disk: Disk, slot: Path) -> None:
    """Remove a slot: first its name, durably, then its files, so that no half slot ever bears the name of a whole one.

    Raises:
        OSError: It could not be removed.
    """
    if not os.path.lexists(slot):
        return
    if not slot.name.startswith("."):
        hidden = slot.with_name(f".{slot.name}.old")
        disk.remove(hidden)
        disk.rename(slot, hidden)
        disk.sync_folder(slot.parent)
        slot = hidden
    disk.remove(slot)


def needed_contents(store: Store, model: str) -> set[str]:
    """Digests of the contents that a model's slots and its running attempt name."""
    state = store.read_files(model)
    kept = {path.name for path in entries_of(store.slots(model))} if state is None else state.in_use()
    needed: set[str] = set()
    for digest in kept:
        needed.add(digest)
        for path in (store.slot(model, digest) / CONTENTS_FILE, store.blob(digest)):
            with contextlib.suppress(OSError, EdgeOnnxError):
                listed = Contents.from_bytes(read_file(path, limit=MAX_CONTENTS_BYTES))
                needed.update(entry.sha256 for entry in listed.files)
                break
    return needed


def own_bytes(path: Path) -> int:
    """Bytes that only this path holds: its own size, or that of what lies in it; hard links to other names are none."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size if status.st_nlink == 1 else 0
    return sum(own_bytes(each) for each in entries_of(path))


def checked_pieces(source: Path, sha256: str) -> Iterator[bytes]:
    """A content in pieces, for a copy; an error after the last one if it is not what its name says.

    Raises:
        OSError: It cannot be read, or is another content.
    """
    digest = hashlib.sha256()
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != sha256:
        raise OSError(errno.EIO, "gives other bytes than those that were verified", str(source))


def _shared(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def _is_wanted_download(store: Store, name: str, needed: set[str]) -> bool:
    """Whether a file in `incoming` belongs to the download of a content that is needed and is not here."""
    found = _LEADING_DIGEST.match(name)
    if found is None or name.endswith(TEMPORARY):
        return False
    return found.group(1) in needed and not os.path.lexists(store.blob(found.group(1)))
