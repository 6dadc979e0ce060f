"""Contents on the device: what is here is checked, what is missing is fetched, as a delta if that works.

A content is here if a file of its digest lies in the store and still has that digest: a disk may forget. A delta is a
way to save bytes, never a reason to fail: whatever goes wrong with one, the full blob is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from device_agent.update.transfer.partial import note_of
from edgeonnx.blobs import delta as deltas
from edgeonnx.blobs.codec import CHUNK_BYTES, decompressed, most_wire_bytes, verified
from edgeonnx.errors import BlobError, FetchError
from edgeonnx.spec.release import DELTA_ENCODINGS, blob_path, delta_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from device_agent.slots.store import Store
    from device_agent.update.transfer.downloader import Downloader
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.release import Delta, Release

    Decode = Callable[[Iterable[bytes]], Iterator[bytes]]

logger = logging.getLogger("edgeonnx.update")


class Contents:
    """The contents of a release, fetched into the store. `ensure_all` works in threads, on different contents.

    Args:
        store: The state directory.
        downloader: Fetches from the repository.
        release: Names the deltas that there are.
    """

    def __init__(self, store: Store, downloader: Downloader, release: Release) -> None:
        self._store = store
        self._downloader = downloader
        self._deltas = _by_target(release.deltas)
        self._checked: set[str] = set()
        self._counting = threading.Lock()
        self.fetched = 0
        """Contents that came over the wire."""

    def has(self, digest: str) -> bool:
        """Whether a content is here, whole; one that is damaged is removed."""
        if digest in self._checked:
            return True
        path = self._store.blob(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            descriptor = -1
        if descriptor >= 0 and _digest_of(descriptor) == digest:
            self._checked.add(digest)
            return True
        logger.warning("the content %s on this disk is damaged and is fetched again", digest)
        with self._store.writing("the store"):
            self._store.disk.remove(path)
        return False

    def read(self, digest: str) -> bytes:
        """A content that is here.

        Raises:
            StateError: The disk does not give it.
        """
        with self._store.writing("the store"):
            return self._store.blob(digest).read_bytes()

    def pieces(self, digest: str) -> Iterator[bytes]:
        """A content that is here, in pieces."""
        with self._store.writing("the store"), self._store.blob(digest).open("rb") as file:
            yield from _pieces(file)

    def wire_bytes(self, entries: Iterable[FileEntry]) -> int:
        """The most bytes that fetching some contents takes, deltas used where there are any."""
        total = 0
        for entry in entries:
            sizes = [delta.size for delta in self._deltas.get(entry.sha256, ()) if self.has(delta.base)]
            total += min(sizes, default=most_wire_bytes(entry.size))
        return total

    def ensure_all(self, entries: Iterable[FileEntry], connections: int) -> None:
        """Have all of some contents.

        Args:
            entries: The contents.
            connections: How many are fetched at one time.

        Raises:
            FetchError, BlobError, NoSpaceError, StateError: As for `ensure`, from the first that fails; what is
                being fetched meanwhile is finished.
        """
        by_digest = {entry.sha256: entry for entry in entries}
        with ThreadPoolExecutor(connections, thread_name_prefix="fetch") as pool:
            waiting = [pool.submit(self.ensure, each.sha256, each.size) for each in by_digest.values()]
            try:
                for one in waiting:
                    one.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def ensure(self, digest: str, size: int) -> Path:
        """Have a content, and return where it lies.

        Args:
            digest: SHA-256 of the content.
            size: Its size in bytes.

        Raises:
            FetchError: It could not be fetched.
            BlobError: The repository has something else under its name.
            NoSpaceError, StateError: It could not be written.
        """
        path = self._store.blob(digest)
        if self.has(digest):
            return path
        for delta in self._deltas.get(digest, ()):
            if delta.encoding not in DELTA_ENCODINGS or not self.has(delta.base):
                continue
            try:
                self._take(digest, delta_path(delta), delta.size, partial(self._patched, delta, size))
            except (FetchError, BlobError) as error:
                logger.warning("a delta for %s is not used, the whole content is fetched: %s", digest[:16], error)
            else:
                return path
        self._take(digest, blob_path(digest), most_wire_bytes(size), partial(decompressed, size=size))
        return path

    def _take(self, digest: str, path: str, limit: int, decode: Decode) -> None:
        """Fetch a blob, decode it, and give it its name once its digest is right."""
        part = self._store.incoming / f"{path.rpartition('/')[2]}.part"
        self._downloader.download(path, part, limit=limit)
        try:
            with part.open("rb") as wire:
                self._keep(digest, decode(_pieces(wire)))
        except BlobError as error:
            self._drop(part)
            error.where = error.where or path
            raise
        self._drop(part)
        with self._counting:
            self._checked.add(digest)
            self.fetched += 1

    def _keep(self, digest: str, pieces: Iterable[bytes]) -> None:
        target = self._store.blob(digest)
        fresh = self._store.incoming / f"{digest}.new"
        with self._store.writing("a content"):
            self._store.disk.remove(fresh)
            self._store.disk.make_folder(target.parent)
            self._store.disk.create(fresh, verified(pieces, sha256=digest), mode=0o444)
            self._store.disk.move(fresh, target)

    def _patched(self, delta: Delta, size: int, wire: Iterable[bytes]) -> Iterator[bytes]:
        with self._store.blob(delta.base).open("rb") as base:
            yield from deltas.decode(delta.encoding, wire, base, size=size)

    def _drop(self, part: Path) -> None:
        with contextlib.suppress(OSError):
            for path in (part, note_of(part)):
                self._store.disk.remove(path)


def _digest_of(descriptor: int) -> str | None:
    """The SHA-256 of a regular file, which is closed; None if it cannot be read."""
    with os.fdopen(descriptor, "rb") as file, contextlib.suppress(OSError):
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def _by_target(found: Iterable[Delta]) -> dict[str, list[Delta]]:
    """Deltas by the content that they give, the smallest first."""
    table: dict[str, list[Delta]] = {}
    for delta in sorted(found, key=lambda each: each.size):
        table.setdefault(delta.target, []).append(delta)
    return table


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece
