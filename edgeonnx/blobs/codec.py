"""Blobs on the wire: zstd, decoded within bounds and checked against the digest of the raw content.

The bytes of a blob are not trusted before they are decoded: a signed list names the digest and the size of the
content, and the decoder stops at that size, with a bounded window, before a hostile blob can take memory or disk.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from edgeonnx.errors import BlobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEVEL = 19
CHUNK_BYTES = 1 << 18
MAX_WINDOW_BYTES = 8 << 20
"""The most memory that a frame may ask the decoder for: what level 19 uses, and what every zstd decoder accepts."""


def compress(data: bytes | memoryview, level: int = LEVEL) -> bytes:
    """A zstd frame that states its content's size."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def most_wire_bytes(size: int) -> int:
    """The largest size that a full blob of a content may have on the wire: zstd's own bound, and some slack."""
    return size + (size >> 8) + 1024


def decompressed(source: Iterable[bytes], *, size: int, dictionary: memoryview | None = None) -> Iterator[bytes]:
    """The raw content of one zstd frame, in pieces.

    Args:
        source: The frame, in pieces.
        size: The size that the content has in bytes; not a byte more is given.
        dictionary: Raw content that the frame refers to.

    Raises:
        BlobError: It is no such frame, or gives another size.
    """
    found = 0
    try:
        known = (
            None if dictionary is None else zstandard.ZstdCompressionDict(dictionary, zstandard.DICT_TYPE_RAWCONTENT)
        )
        decoder = zstandard.ZstdDecompressor(dict_data=known, max_window_size=MAX_WINDOW_BYTES).decompressobj(
            write_size=CHUNK_BYTES
        )
        for piece in source:
            for start in range(0, len(piece), 4096):
                out = decoder.decompress(piece[start : start + 4096])
                found += len(out)
                if found > size:
                    raise BlobError("decodes to more than the size that was signed", expected=f"{size} bytes")
                if out:
                    yield out
            if decoder.eof:
                break
    except zstandard.ZstdError as error:
        raise BlobError("is no zstd frame", found=str(error)) from None
    if found != size or not decoder.eof:
        raise BlobError("ends early", expected=f"{size} bytes", found=f"{found}")


def write_verified(pieces: Iterable[bytes], out: BinaryIO, *, sha256: str) -> None:
    """Write a content and check its digest.

    Raises:
        BlobError: The digest is another one; what was written must not be used.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        out.write(piece)
    if digest.hexdigest() != sha256:
        raise BlobError("is another content", expected=f"sha256 {sha256}", found=digest.hexdigest())
