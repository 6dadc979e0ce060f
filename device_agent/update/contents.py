"""Contents on the device: what is here is checked, what is missing is fetched, as a delta if that works.

A content is here if a file of its digest lies in the store and still has that digest: a disk may forget. A delta is a
way to save bytes, never a reason to fail: whatever goes wrong with one, the full blob is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from typing import TYPE_CHECKING

from edgeonnx.blobs import delta as deltas
from edgeonnx.blobs.codec import CHUNK_BYTES, decompressed, most_wire_bytes
from edgeonnx.errors import BlobError, FetchError
from edgeonnx.spec.release import blob_path, delta_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from device_agent.slots.store import Store
    from device_agent.update.downloader import Downloader
    from edgeonnx.spec.release import Delta, Release

logger = logging.getLogger("edgeonnx.update")


class Contents:
    """The contents of a release, fetched into the store.

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
        self.fetched = 0
        """Contents that came over the wire."""
        self.reused = 0
        """Contents that were here."""

    def has(self, digest: str) -> bool:
        """Whether a content is here, whole; one that is damaged is removed."""
        if digest in self._checked:
            return True
        path = self._store.blob(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        with os.fdopen(descriptor, "rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == digest
        if whole:
            self._checked.add(digest)
            return True
        logger.warning("the content %s on this disk is damaged and is fetched again", digest)
        with self._store.writing("the store"):
            self._store.disk.remove(path)
        return False

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
        if self.has(digest):
            self.reused += 1
            return self._store.blob(digest)
        for delta in self._deltas.get(digest, ()):
            if not self.has(delta.base):
                continue
            try:
                self._take(
                    digest, delta_path(delta), delta.size, lambda wire, delta=delta: self._patched(delta, wire, size)
                )
            except (FetchError, BlobError) as error:
                logger.info("the delta for %s is not used: %s", digest[:16], error)
                continue
            return self._store.blob(digest)
        self._take(digest, blob_path(digest), most_wire_bytes(size), lambda wire: decompressed(wire, size=size))
        return self._store.blob(digest)

    def _take(self, digest: str, path: str, limit: int, decode: object) -> None:
        """Fetch a blob, decode it, and give it its name once its digest is right."""
        part = self._store.incoming / f"{path.rpartition('/')[2]}.part"
        self._downloader.download(path, part, limit=limit)
        try:
            with part.open("rb") as wire:
                self._keep(digest, decode(_pieces(wire)))  # type: ignore[operator]
        except BlobError:
            self._drop(part)
            raise
        self._drop(part)
        self._checked.add(digest)
        self.fetched += 1

    def _keep(self, digest: str, pieces: Iterable[bytes]) -> None:
        target = self._store.blob(digest)
        fresh = self._store.incoming / f"{digest}.new"
        with self._store.writing("a content"):
            self._store.disk.remove(fresh)
            self._store.disk.make_folder(target.parent)
            self._store.disk.create(fresh, _verified(pieces, digest), mode=0o444)
            self._store.disk.move(fresh, target)

    def _patched(self, delta: Delta, wire: Iterable[bytes], size: int) -> Iterator[bytes]:
        with self._store.blob(delta.base).open("rb") as base:
            yield from deltas.decode(delta.encoding, wire, base, size=size)

    def _drop(self, part: Path) -> None:
        with contextlib.suppress(OSError):
            for path in (part, part.with_name(f"{part.name}.json")):
                self._store.disk.remove(path)


def _by_target(found: Iterable[Delta]) -> dict[str, list[Delta]]:
    """Deltas by the content that they give, the smallest first."""
    table: dict[str, list[Delta]] = {}
    for delta in sorted(found, key=lambda each: each.size):
        table.setdefault(delta.target, []).append(delta)
    return table


def _pieces(file: object) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):  # type: ignore[attr-defined]
        yield piece


def _verified(pieces: Iterable[bytes], sha256: str) -> Iterator[bytes]:
    """The pieces; an error after the last one if their digest is another one.

    Raises:
        BlobError: The content is not the one that was asked for.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != sha256:
        raise BlobError("is another content", expected=f"sha256 {sha256}", found=digest.hexdigest())
