"""Hashing only what is used, before it is used: a device with two variants of a model serves one.

A `Verifier` knows which files it has hashed. `edgeonnx.bundle.needs` says which files ONNX Runtime can open for a
variant: the variant's own, and those tensors whose names occur in its graph.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from edgeonnx.bundle.needs import common_files, graph_files, tensor_files, tensor_names
from edgeonnx.bundle.reader import open_regular, raise_faults
from edgeonnx.spec.contents import CONTENTS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from edgeonnx.bundle.reader import Bundle
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.manifest import Variant

CHUNK_BYTES = 1 << 20
HASHING_THREADS = 2
"""Hashing releases the interpreter lock; more threads would take cores from whatever else happens meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What changes when somebody writes to a file: device, inode, size in bytes, times of change in nanoseconds."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """The stamp in a file's status."""
        return cls(
            device=status.st_dev,
            inode=status.st_ino,
            size=status.st_size,
            modified=status.st_mtime_ns,
            changed=status.st_ctime_ns,
        )


class Verifier:
    """Hashes the files of a bundle, each once; safe in several threads.

    Args:
        bundle: An opened bundle.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._stamps: dict[str, Stamp] = {}
        self._names: dict[str, frozenset[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def verified(self) -> frozenset[str]:
        """Paths of the files whose bytes are those of `contents.json`."""
        return frozenset(self._stamps)

    def verify_common(self) -> None:
        """Hash what every variant needs: all files but the variants' graphs and tensors.

        Raises:
            IntegrityError: Bytes differ; every damaged file is named.
        """
        self._verify(common_files(self.bundle))

    def verify_variant(self, component: str, variant: Variant) -> None:
        """Hash a variant's graph, then the tensors that the graph names.

        Raises:
            IntegrityError: Bytes differ; every damaged file is named.
        """
        own = graph_files(self.bundle, component, variant)
        self._verify(own, graphs=True)
        named = frozenset().union(*(self._names[entry.path] for entry in own))
        self._verify(tensor_files(self.bundle, variant, named))

    def changed(self) -> tuple[str, ...]:
        """Paths of verified files that were written, replaced or removed since they were hashed.

        A file of which only the inode changed is hashed again: it may have got a further name, as an update gives to
        the files that two versions share, or somebody may have written to it and set its time back.
        """
        with self._lock:
            stamps = dict(self._stamps)
        return tuple(path for path, stamp in stamps.items() if not self._is_as_before(path, stamp))

    def _is_as_before(self, path: str, before: Stamp) -> bool:
        now = _stamp(self.bundle, path)
        if now == before:
            return True
        if now is None or replace(now, changed=before.changed) != before:
            return False
        entry = next(entry for entry in self.bundle.contents.files if entry.path == path)
        return self._hash(entry, graph=False, keep_names=True) is None

    def _verify(self, entries: Iterable[FileEntry], *, graphs: bool = False) -> None:
        hash_one = partial(self._hash, graph=graphs)
        with self._lock:
            pending = [entry for entry in entries if entry.path not in self._stamps]
            # The largest first, so that the threads end together.
            pending.sort(key=lambda entry: -entry.size)
            if not pending:
                return
            with ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="verify") as pool:
                faults = [fault for fault in pool.map(hash_one, pending) if fault is not None]
        raise_faults(self.bundle.root, faults)

    def _hash(self, entry: FileEntry, *, graph: bool, keep_names: bool = False) -> str | None:
        """Hash one file, note its stamp and, of a graph, the names in it; what is wrong with the file, or None."""
        digest = hashlib.sha256()
        try:
            with os.fdopen(open_regular(self.bundle.root / entry.path), "rb", buffering=0) as file:
                stamp = Stamp.of(os.fstat(file.fileno()))
                names = tensor_names(_hashed(file, digest)) if graph else _exhaust(_hashed(file, digest))
        except OSError as error:
            return f"{entry.path}: cannot be read ({error.strerror})"
        found = digest.hexdigest()
        if found != entry.sha256:
            return f"{entry.path}: sha256 {found[:16]}... on disk, {entry.sha256[:16]}... in {CONTENTS_FILE}"
        if not keep_names:
            self._names[entry.path] = names
        self._stamps[entry.path] = stamp
        return None


def _hashed(file: BinaryIO, digest: hashlib._Hash) -> Iterator[bytes]:
    """The bytes of a file, each piece hashed before it is given."""
    while piece := file.read(CHUNK_BYTES):
        digest.update(piece)
        yield piece


def _exhaust(pieces: Iterable[bytes]) -> frozenset[bytes]:
    """Take all pieces and find no names."""
    for _ in pieces:
        pass
    return frozenset()


def _stamp(bundle: Bundle, path: str) -> Stamp | None:
    try:
        return Stamp.of((bundle.root / path).lstat())
    except OSError:
        return None
