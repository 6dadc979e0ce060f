"""A content as a difference to an earlier one: what a fine-tune changed, and not what it left alone.

Four encodings, each of them zstd in the end:

- `difference`: new minus old, byte by byte, modulo 256. For 8-bit integers: a light fine-tune moves few of them, and
  those by one step.
- `planes2`, `planes4`: new XOR old, then all first bytes of the numbers, all second bytes and so on, block by block.
  For floats of 2 and 4 bytes: what stayed the same, sign, exponent and first bits of the mantissa, becomes runs of
  zeros. A block has `PLANE_BYTES` numbers, so that a plane fills a block of zstd, which has a code of its own.
- `dictionary`: the new content with the old one as zstd's dictionary. For everything else (lists, graphs,
  vocabularies), and the only one for contents of different lengths.

All but `dictionary` are decoded in step with the base, block by block, in a memory that does not depend on the size.
A dictionary is held whole, and so is what it makes: both are at most `MAX_DICTIONARY_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import zstandard

from edgeonnx.blobs.codec import CHUNK_BYTES, LEVEL, decompressed
from edgeonnx.errors import BlobError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

Buffer = bytes | memoryview

PLANE_BYTES = 1 << 17
"""Numbers in a block of planes, and so bytes in a plane: the size of zstd's own blocks."""
DIFFERENCE_LEVEL, PLANES_LEVEL = 17, 9
"""What pays (MiniLM, weights moved as by a fine-tune): differences take 14.8 % at level 9, 11.6 % at 17, no less at 19;
planes of fp32 52.6 % at 9 and 51.8 % at 19, which takes 20 times as long."""
MAX_DICTIONARY_BYTES = 24 << 20
"""Largest base, and largest content, of `dictionary`: the vocabulary of a multilingual model takes 17 MB.

A match reaches into the dictionary only as long as what was decoded fits into the window; then the dictionary is
forgotten. So the window must be as large as the content, larger than that of full blobs.
"""


def encode(encoding: str, base: Buffer, target: Buffer) -> bytes:
    """The bytes on the wire that `decode` turns into `target`, given `base`.

    Raises:
        ValueError: The encoding does not fit the two contents; see `fits`.
    """
    if not fits(encoding, len(base), len(target)):
        raise ValueError(f"{encoding} does not fit a base of {len(base)} and a target of {len(target)} bytes")
    if encoding == DICTIONARY:
        return _compress_after(base, target)
    import numpy as np

    step = _STEPS[encoding]
    packer = zstandard.ZstdCompressor(level=step.level, write_content_size=True).compressobj(size=len(target))
    old, new = np.frombuffer(base, np.uint8), np.frombuffer(target, np.uint8)
    parts = [
        packer.compress(step.apart(new[start : start + step.block], old[start : start + step.block]))
        for start in range(0, len(target), step.block)
    ]
    return b"".join([*parts, packer.flush()])


def fits(encoding: str, base_size: int, size: int) -> bool:
    """Whether contents of these sizes in bytes can be encoded so."""
    if encoding == DICTIONARY:
        return max(base_size, size) <= MAX_DICTIONARY_BYTES
    return encoding in _STEPS and base_size == size


def decode(encoding: str, source: Iterable[bytes], base: BinaryIO | Buffer, *, size: int) -> Iterator[bytes]:
    """The content that a delta stands for, in pieces.

    Args:
        encoding: How it was made.
        source: The delta's bytes, in pieces; nobody vouches for them.
        base: The verified content that it refers to; a file is read from its start to its end, in step.
        size: The size that the content has in bytes; not a byte more is given.

    Raises:
        BlobError: It cannot be decoded, gives another size, or the base does not fit. A wrong base of the right size
            gives wrong bytes: check the digest.
    """
    old = _Base(base)
    if encoding == DICTIONARY:
        if size > MAX_DICTIONARY_BYTES:
            raise BlobError("is too large for its encoding", expected=f"{MAX_DICTIONARY_BYTES} bytes", found=str(size))
        yield from decompressed(source, size=size, dictionary=old.whole() or None, max_window=MAX_DICTIONARY_BYTES)
        return
    step = _STEPS.get(encoding)
    if step is None:
        raise BlobError(
            "is made in a way that this release does not know",
            expected=" or ".join((*_STEPS, DICTIONARY)),
            found=encoding[:40],
            hint="take the full blob",
        )
    for block in _blocks(decompressed(source, size=size), step.block):
        yield step.together(_numbers(block), _numbers(old.take(len(block))))
    if old.take_up_to(1):
        raise _other_base(f"{size} bytes", "more")


def _compress_after(base: Buffer, target: Buffer) -> bytes:
    """A frame with `base` as its dictionary, in a window that holds all of `target`."""
    if len(base) == 0:
        return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(target)
    settings = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=len(target),
        dict_size=len(base),
        window_log=max(zstandard.WINDOWLOG_MIN, (max(len(target), 1) - 1).bit_length()),
        write_content_size=1,
    )
    known = zstandard.ZstdCompressionDict(base, zstandard.DICT_TYPE_RAWCONTENT)
    return zstandard.ZstdCompressor(dict_data=known, compression_params=settings).compress(target)


class _Base:
    """The earlier content, read forward, whether it is a buffer or a file."""

    def __init__(self, content: BinaryIO | Buffer) -> None:
        self._content = memoryview(content).cast("B") if isinstance(content, Buffer) else content

    def take(self, size: int) -> Buffer:
        """The next `size` bytes."""
        taken = self.take_up_to(size)
        if len(taken) != size:
            raise _other_base("as many bytes as the content has", "fewer")
        return taken

    def take_up_to(self, size: int) -> Buffer:
        """The next `size` bytes, or what is left."""
        if isinstance(self._content, memoryview):
            taken, self._content = self._content[:size], self._content[size:]
            return taken
        parts = []
        while size > 0 and (part := self._content.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def whole(self) -> Buffer:
        """All of it, where that is little enough for a dictionary."""
        taken = self.take_up_to(MAX_DICTIONARY_BYTES + 1)
        if len(taken) > MAX_DICTIONARY_BYTES:
            raise _other_base(f"at most {MAX_DICTIONARY_BYTES} bytes", "more")
        return taken


def _other_base(expected: str, found: str) -> BlobError:
    return BlobError("does not fit its base", expected=f"a base of {expected}", found=found, hint="take the full blob")


def _blocks(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in blocks of `size`; the last may be shorter."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    if waiting:
        yield bytes(waiting)


def _numbers(data: Buffer) -> Bytes:
    import numpy as np

    return np.frombuffer(data, np.uint8)


def _subtract(new: Bytes, old: Bytes) -> bytes:
    return (new - old).tobytes()


def _add(wire: Bytes, old: Bytes) -> bytes:
    return (wire + old).tobytes()


def _to_planes(new: Bytes, old: Bytes, width: int) -> bytes:
    """XOR, then the bytes of the numbers by their place; what is left over at the end stays as it is."""
    changed = new ^ old
    whole = len(changed) - len(changed) % width
    return changed[:whole].reshape(-1, width).T.tobytes() + changed[whole:].tobytes()


def _from_planes(wire: Bytes, old: Bytes, width: int) -> bytes:
    whole = len(wire) - len(wire) % width
    return (_joined(wire[:whole], width) ^ old[:whole]).tobytes() + (wire[whole:] ^ old[whole:]).tobytes()


def _joined(planes: Bytes, width: int) -> Bytes:
    return planes.reshape(width, -1).T.reshape(-1)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What is done to a block before zstd, and undone after it.

    Attributes:
        block: Bytes in a block.
        level: Level of zstd.
        apart: From (new, old) to what travels.
        together: From (what travels, old) to new.
    """

    block: int
    level: int
    apart: Callable[[Bytes, Bytes], bytes]
    together: Callable[[Bytes, Bytes], bytes]


def _planes(width: int) -> _Step:
    return _Step(
        block=width * PLANE_BYTES,
        level=PLANES_LEVEL,
        apart=lambda new, old: _to_planes(new, old, width),
        together=lambda wire, old: _from_planes(wire, old, width),
    )


DICTIONARY = "dictionary"
DIFFERENCE = "difference"
PLANES2 = "planes2"
PLANES4 = "planes4"

_STEPS = {
    DIFFERENCE: _Step(block=CHUNK_BYTES, level=DIFFERENCE_LEVEL, apart=_subtract, together=_add),
    PLANES2: _planes(2),
    PLANES4: _planes(4),
}
