"""Blobs on the wire: zstd, decoded within bounds and checked against the digest of the raw content.

The bytes of a blob are not trusted before they are decoded: a signed list names the digest and the size of the
content, and the decoder stops at that size, with a bounded window, before a hostile blob can take memory or disk. A
few bytes of zstd can stand for gigabytes, so the decoder is asked for output in bounded pieces, never fed.
"""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING, cast

import zstandard

from edgeonnx.errors import BlobError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEVEL = 19
LARGE_LEVEL, LARGE_BYTES = 9, 1 << 20
"""Large contents are weights, of which level 19 saves nothing more, in 20 times the time. Of MiniLM's fp32 embeddings
78.6 % are left at level 9, 79.8 % at 19; of its int8 tensors 92.4 % at both."""
CHUNK_BYTES = 1 << 18
"""The largest piece of a content that is in memory at once."""
MAX_WINDOW_BYTES = 8 << 20
"""The most memory that a frame may ask the decoder for: what level 19 uses, and what every zstd decoder accepts."""

_READ_BYTES = 1 << 16


def compress(data: bytes | memoryview, level: int | None = None) -> bytes:
    """A zstd frame that states its content's size; `level` None chooses one by the size."""
    if level is None:
        level = LEVEL if len(data) < LARGE_BYTES else LARGE_LEVEL
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def most_wire_bytes(size: int) -> int:
    """The largest size that a full blob of a content may have on the wire: zstd's own bound, and some slack."""
    return size + (size >> 8) + 1024


def decompressed(
    source: Iterable[bytes],
    *,
    size: int,
    dictionary: bytes | memoryview | None = None,
    max_window: int = MAX_WINDOW_BYTES,
) -> Iterator[bytes]:
    """The raw content of a blob, in pieces of at most `CHUNK_BYTES`.

    A blob is one zstd frame. Several frames, one after the other, give their contents together, as they do in every
    zstd decoder; anything else after a frame is refused.

    Args:
        source: The blob, in pieces.
        size: The size that the content has in bytes; not a byte more is given.
        dictionary: Raw content that the frame refers to; it is copied.
        max_window: The most memory in bytes that a frame may ask for.

    Raises:
        BlobError: It is no such blob, or gives another size.
    """
    found = 0
    wire = _Wire(source)
    try:
        known = None if dictionary is None else _raw_dictionary(dictionary)
        decoder = zstandard.ZstdDecompressor(dict_data=known, max_window_size=max_window)
        reader = decoder.stream_reader(cast("IO[bytes]", wire), read_size=_READ_BYTES, read_across_frames=True)
        while piece := reader.read(min(CHUNK_BYTES, size - found + 1)):
            found += len(piece)
            if found > size:
                raise BlobError("decodes to more than the size that was signed", expected=f"{size} bytes")
            yield piece
    except zstandard.ZstdError as error:
        raise BlobError("does not decode", expected="a zstd frame", found=str(error)) from None
    if found != size or not wire.received:
        raise BlobError("ends early", expected=f"{size} bytes", found=f"{found}")


class _Wire:
    """Pieces as a file that zstd reads from.

    Attributes:
        received: Bytes that were read so far.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")
        self.received = 0

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        while not self._rest:
            try:
                self._rest = memoryview(next(self._pieces))
            except StopIteration:
                return b""
        taken, self._rest = self._rest[:size], self._rest[size:]
        self.received += len(taken)
        return bytes(taken)


def _raw_dictionary(content: bytes | memoryview) -> zstandard.ZstdCompressionDict:
    """Any bytes as a dictionary: what they contain may be repeated, nothing in them is interpreted."""
    return zstandard.ZstdCompressionDict(content, zstandard.DICT_TYPE_RAWCONTENT)


def verified(pieces: Iterable[bytes], *, sha256: str) -> Iterator[bytes]:
    """The pieces of a content; an error after the last one if their digest is another one.

    Raises:
        BlobError: The digest is another one; what was given must not be used.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != sha256:
        raise BlobError("is another content", expected=f"sha256 {sha256}", found=digest.hexdigest())
