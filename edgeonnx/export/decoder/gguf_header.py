"""The header of a GGUF file, read with bounds before any library sees the file.

Layout (ggml's docs/gguf.md, versions 2 and 3, little-endian): magic, version, number of tensors, number of metadata
pairs; the pairs; name, sizes, type and offset of each tensor; padding; data. Counts and lengths come from the file, so
each is held against the bytes that are left before anything is read or allocated by it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from edgeonnx.errors import CorruptSourceError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ENTRIES = 1 << 16
"""Metadata pairs, and tensors: real files have below a hundred and a few thousand."""
MAX_NAME_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 20
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 40

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9

Scalar = int | float | bool | str


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """A tensor of a GGUF file.

    Attributes:
        sizes: Sizes of the axes, the innermost first.
        kind: ggml's number of the element type.
        offset: Where its bytes begin, from the beginning of the data.
    """

    sizes: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """All of a GGUF file but its weights.

    Attributes:
        scalars: Metadata that is one number or text.
        lengths: Number of elements of metadata that is an array.
        tensors: The tensors by name.
        data_start: Where the data begins in the file.
        size: Bytes of the file.
    """

    scalars: dict[str, Scalar]
    lengths: dict[str, int]
    tensors: dict[str, GgufTensor]
    data_start: int
    size: int


def read_header(file: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        CorruptSourceError: It is no GGUF file, ends too early, or states counts that it cannot have.
        UnsupportedModelError: It is of another version or byte order.
    """
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data, str(file)))
    except (OSError, ValueError) as error:  # ValueError: mmap refuses an empty file
        raise CorruptSourceError("cannot be read as GGUF", where=str(file), found=str(error)) from None


class _Cursor:
    """A place in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self.data, self.where, self.place = data, where, 0

    def fail(self, message: str, *, expected: str, found: object) -> NoReturn:
        raise CorruptSourceError(message, where=self.where, expected=expected, found=str(found)[:120])

    def skip(self, count: int) -> int:
        """Move on by so many bytes; gives the place before."""
        start, left = self.place, len(self.data) - self.place
        if count > left:
            self.fail(
                "is not a whole GGUF file",
                expected=f"{count} bytes at {start}",
                found=f"{left} bytes there: copy or download the file again",
            )
        self.place += count
        return start

    def scalar(self, kind: int) -> Scalar:
        form = _SCALARS.get(kind)
        if form is None:
            self.fail("has metadata of an unknown type", expected="a type from 0 to 12", found=kind)
        value: Scalar = struct.unpack_from(form, self.data, self.skip(struct.calcsize(form)))[0]
        return value

    def number(self, kind: int, limit: int, what: str) -> int:
        value = int(self.scalar(kind))
        if value > limit:
            self.fail(f"states {what} that no model has", expected=f"at most {limit}", found=value)
        return value

    def text(self, limit: int) -> str:
        length = self.number(10, limit, "a length of text")
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", "replace")


def _parse(cursor: _Cursor) -> GgufHeader:
    start = cursor.skip(8)
    magic, version = struct.unpack_from("<4sI", cursor.data, start)
    if magic != MAGIC:
        cursor.fail("is no GGUF file", expected=f"a file that begins with {MAGIC!r}", found=repr(magic))
    if version not in VERSIONS:
        raise UnsupportedModelError(
            "is a GGUF file of another version or byte order",
            where=cursor.where,
            expected=f"version {' or '.join(map(str, VERSIONS))}, little-endian",
            found=str(version),
        )
    tensor_count = cursor.number(10, MAX_ENTRIES, "a number of tensors")
    pair_count = cursor.number(10, MAX_ENTRIES, "a number of metadata entries")
    scalars, lengths = _metadata(cursor, pair_count)
    tensors = _tensors(cursor, tensor_count)
    alignment = scalars.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or not 0 < alignment <= 1 << 20:
        cursor.fail("has no usable alignment", expected="a number from 1 to 1048576", found=alignment)
    return GgufHeader(
        scalars=scalars,
        lengths=lengths,
        tensors=tensors,
        data_start=-(-cursor.place // alignment) * alignment,
        size=len(cursor.data),
    )


def _metadata(cursor: _Cursor, count: int) -> tuple[dict[str, Scalar], dict[str, int]]:
    scalars: dict[str, Scalar] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        key = cursor.text(MAX_NAME_BYTES)
        kind = int(cursor.scalar(4))
        if key in scalars or key in lengths:
            cursor.fail("states an entry of its metadata twice", expected="one", found=key)
        if kind == _STRING:
            scalars[key] = cursor.text(MAX_TEXT_BYTES)
        elif kind == _ARRAY:
            lengths[key] = _skip_array(cursor)
        else:
            scalars[key] = cursor.scalar(kind)
    return scalars, lengths


def _skip_array(cursor: _Cursor) -> int:
    kind, count = int(cursor.scalar(4)), int(cursor.scalar(10))
    if kind == _STRING:
        for _ in range(count):  # ends at the end of the file at the latest: each text has 8 bytes of length
            cursor.text(MAX_TEXT_BYTES)
    elif kind in _SCALARS:
        cursor.skip(count * struct.calcsize(_SCALARS[kind]))
    else:
        cursor.fail("has an array of an unknown type", expected="numbers or texts", found=kind)
    return count


def _tensors(cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for _ in range(count):
        name = cursor.text(MAX_NAME_BYTES)
        if name in tensors:
            cursor.fail("has two tensors of one name", expected="one", found=name)
        axes = cursor.number(4, MAX_DIMENSIONS, "a number of axes")
        sizes = tuple(cursor.number(10, MAX_ELEMENTS, "a size") for _ in range(axes))
        tensors[name] = GgufTensor(sizes=sizes, kind=int(cursor.scalar(4)), offset=int(cursor.scalar(10)))
    return tensors
