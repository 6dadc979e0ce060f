"""Writing a bundle's contents as blobs: each once, compressed, and checked before it counts."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.blobs.codec import compress, decompressed
from edgeonnx.errors import BlobError
from edgeonnx.spec.contents import CONTENTS_FILE
from edgeonnx.spec.release import blob_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgeonnx.bundle import Bundle
    from edgeonnx.repository.files import Files


@dataclass(frozen=True, kw_only=True)
class Content:
    """One content that a release needs.

    Attributes:
        digest: SHA-256 of the raw content.
        size: Its size in bytes.
        source: A file that has it.
    """

    digest: str
    size: int
    source: Path


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was added to the repository.

    Attributes:
        blobs: Number of blobs that were written.
        wire_bytes: Their size, compressed.
        present: Number of blobs that were there already.
    """

    blobs: int
    wire_bytes: int
    present: int


def contents_of(bundle: Bundle) -> list[Content]:
    """The distinct contents of a bundle, `contents.json` first, then the largest first."""
    entries = {entry.sha256: entry for entry in bundle.contents.files}
    first = bundle.root / CONTENTS_FILE
    found = [
        Content(digest=entry.sha256, size=entry.size, source=bundle.root / entry.path) for entry in entries.values()
    ]
    found.sort(key=lambda content: (-content.size, content.digest))
    return [Content(digest=bundle.digest, size=first.stat().st_size, source=first), *found]


def write_blobs(files: Files, bundle: Bundle, on_blob: Callable[[int, int], None] | None = None) -> Written:
    """Write the blobs of a bundle that the repository lacks, or has damaged.

    Args:
        files: The repository's files. The lock must be held.
        bundle: A bundle whose files are verified.
        on_blob: Called with how many contents are done, and of how many.
    """
    contents = contents_of(bundle)
    sizes = []
    # Compression releases the interpreter lock and takes nearly all of the time.
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done, size in enumerate(pool.map(lambda content: _write(files, content), contents), start=1):
            sizes.append(size)
            if on_blob is not None:
                on_blob(done, len(contents))
    written = [size for size in sizes if size is not None]
    return Written(blobs=len(written), wire_bytes=sum(written), present=len(sizes) - len(written))


def _write(files: Files, content: Content) -> int | None:
    """Write one blob if it is needed; returns its compressed size, or None if it was there."""
    path = blob_path(content.digest)
    if files.exists(path) and blob_fault(files, content.digest, content.size) is None:
        return None
    data = content.source.read_bytes()
    if hashlib.sha256(data).hexdigest() != content.digest:
        raise BlobError("the bundle changed while it was published", where=str(content.source))
    packed = compress(data)
    files.write(path, packed)
    return len(packed)


def blob_size(files: Files, digest: str) -> int:
    """Bytes of a blob on the wire; 0 if it is missing."""
    return file_size(files, blob_path(digest))


def file_size(files: Files, path: str) -> int:
    """Bytes of a file of the repository; 0 if it is missing."""
    return (files.root / path).stat().st_size if files.exists(path) else 0


def blob_fault(files: Files, digest: str, size: int) -> str | None:
    """What is wrong with a blob in the repository, or None if it decodes to its content."""
    hasher = hashlib.sha256()
    try:
        with (files.root / blob_path(digest)).open("rb") as file:
            for piece in decompressed(iter(lambda: file.read(1 << 18), b""), size=size):
                hasher.update(piece)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except BlobError as error:
        return str(error)
    return None if hasher.hexdigest() == digest else "decodes to another content"
