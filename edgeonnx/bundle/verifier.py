"""Hashing only what is used, before it is used: a device with two variants of a model serves one.

A `Verifier` knows which files it has hashed. `variant_files` says which files ONNX Runtime can open for a variant: the
variant's own, and those tensors whose names occur in its graph. The name of a tensor's file is its digest, and the
graph holds the name of every external file literally, because protobuf stores strings as they are; so a tensor whose
name is not in the graph's bytes cannot be opened through that graph.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edgeonnx.bundle.reader import open_regular, raise_faults
from edgeonnx.spec.contents import CONTENTS_FILE
from edgeonnx.spec.paths import asset_directory, split_asset_reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgeonnx.bundle.reader import Bundle
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.manifest import Variant

CHUNK_BYTES = 1 << 20
HASHING_THREADS = 2
"""Hashing releases the interpreter lock; more threads would take cores from whatever else happens meanwhile."""

_TENSOR_FILE = re.compile(r"[0-9a-f]{64}")
_TENSOR_NAME = re.compile(rb"(?=([0-9a-f]{64}))")
_NAME_BYTES = 64


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
        folder = f"{component}/{variant.name}/"
        own = [entry for entry in self.bundle.contents.files if entry.path.startswith(folder)]
        self._verify(own, graphs=True)
        if variant.tensors is None:
            return
        named = frozenset().union(*(self._names[entry.path] for entry in own))
        self._verify(named_tensors(self.bundle, variant, named))

    def changed(self) -> tuple[str, ...]:
        """Paths of verified files that were written, replaced or removed since they were hashed."""
        with self._lock:
            stamps = dict(self._stamps)
        return tuple(path for path, stamp in stamps.items() if _stamp(self.bundle, path) != stamp)

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

    def _hash(self, entry: FileEntry, *, graph: bool) -> str | None:
        """Hash one file, note its stamp and, of a graph, the names in it; what is wrong with the file, or None."""
        digest = hashlib.sha256()
        names: set[bytes] = set()
        tail = b""
        try:
            with os.fdopen(open_regular(self.bundle.root / entry.path), "rb", buffering=0) as file:
                stamp = Stamp.of(os.fstat(file.fileno()))
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    if graph:
                        names.update(_TENSOR_NAME.findall(tail + chunk))
                        tail = chunk[1 - _NAME_BYTES :]
        except OSError as error:
            return f"{entry.path}: cannot be read ({error.strerror})"
        found = digest.hexdigest()
        if found != entry.sha256:
            return f"{entry.path}: sha256 {found[:16]}... on disk, {entry.sha256[:16]}... in {CONTENTS_FILE}"
        self._names[entry.path] = frozenset(names)
        self._stamps[entry.path] = stamp
        return None


def common_files(bundle: Bundle) -> list[FileEntry]:
    """The files that belong to no single variant: metadata, evidence, tokenizer, golden set."""
    manifest = bundle.manifest
    pairs = [(component, variant) for component in manifest.components.values() for variant in component.variants]
    folders = {f"{component.name}/{variant.name}/" for component, variant in pairs}
    shared = {_asset(manifest.processing.tokenizer), _asset(manifest.golden)}
    folders |= {_asset(variant.tensors) for _, variant in pairs if variant.tensors is not None} - shared
    return [entry for entry in bundle.contents.files if not entry.path.startswith(tuple(folders))]


def named_tensors(bundle: Bundle, variant: Variant, names: frozenset[bytes]) -> list[FileEntry]:
    """The files of a variant's folder of tensors that its graph can open.

    Args:
        bundle: The bundle.
        variant: A variant with external tensors.
        names: Every run of 64 hexadecimal digits in the variant's graph.

    Returns:
        The files whose names are among `names`, and those that are not named by a digest at all.
    """
    folder = _asset(variant.tensors or "")
    inside = [entry for entry in bundle.contents.files if entry.path.startswith(folder)]
    return [entry for entry in inside if not _is_tensor(entry.path) or _name(entry.path).encode() in names]


def _asset(reference: str) -> str:
    return asset_directory(split_asset_reference(reference, where="manifest.json")[0]) + "/"


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_tensor(path: str) -> bool:
    return _TENSOR_FILE.fullmatch(_name(path)) is not None


def _stamp(bundle: Bundle, path: str) -> Stamp | None:
    try:
        return Stamp.of((bundle.root / path).lstat())
    except OSError:
        return None
