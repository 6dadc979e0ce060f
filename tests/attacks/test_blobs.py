"""Hostile blobs and deltas: bounded memory, not a byte beyond the size that was signed, and only `BlobError`."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator

import pytest

from edgeonnx.blobs.codec import CHUNK_BYTES, MAX_WINDOW_BYTES, compress, decompressed
from edgeonnx.blobs.delta import MAX_DICTIONARY_BYTES, PLANE_BYTES, decode, encode
from edgeonnx.errors import BlobError
from edgeonnx.spec.release import DELTA_ENCODINGS

MAGIC = bytes.fromhex("28b52ffd")
SKIPPABLE = bytes.fromhex("502a4d18")
GIGABYTE = 1 << 30


def header(*, window_log: int) -> bytes:
    """A frame header (RFC 8878, section 3.1.1.1) with a window and no size of the content."""
    return MAGIC + bytes([0x00, (window_log - 10) << 3])


def stated(size: int) -> bytes:
    """A frame header of a single segment that states the content's size in 8 bytes."""
    return MAGIC + bytes([0xE0]) + size.to_bytes(8, "little")


def run_of_zeros(size: int, *, last: bool = False) -> bytes:
    """A block of 4 bytes that stands for `size` bytes, at most 128 KiB (RFC 8878, section 3.1.1.2)."""
    return (size << 3 | 1 << 1 | last).to_bytes(3, "little") + b"\0"


BOMB = header(window_log=17) + run_of_zeros(1 << 17) * 8192
"""32 KiB that yield a gigabyte."""


def skippable(data: bytes) -> bytes:
    return SKIPPABLE + len(data).to_bytes(4, "little") + data


def with_dictionary_id(data: bytes) -> bytes:
    """A frame that wants a trained dictionary of which nobody knows."""
    return MAGIC + bytes([0x23]) + (7777).to_bytes(4, "little") + bytes([len(data)]) + raw_block(data)


def raw_block(data: bytes) -> bytes:
    return (len(data) << 3 | 1).to_bytes(3, "little") + data


HOSTILE: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 4),
    "not zstd": (b"<html>404</html>", 16),
    "a gigabyte for 100 bytes": (BOMB, 100),
    "a gigabyte for none": (BOMB, 0),
    "a gigabyte, as signed": (BOMB[:2000], GIGABYTE),
    "a window of 2 GiB": (header(window_log=31) + run_of_zeros(4, last=True), 4),
    "a window above the limit": (header(window_log=25) + run_of_zeros(4, last=True), 4),
    "states an exabyte": (stated(1 << 60) + run_of_zeros(4, last=True), 4),
    "states a gigabyte, as signed": (stated(GIGABYTE) + run_of_zeros(4, last=True), GIGABYTE),
    "garbage after the frame": (compress(b"data") + b"garbage", 4),
    "one byte after the frame": (compress(b"data") + b"x", 4),
    "a second frame": (compress(b"data") + compress(b"more"), 4),
    "a second frame that is a bomb": (compress(b"data") + BOMB, 4),
    "a skippable frame alone": (skippable(b"data"), 4),
    "a skippable frame cut off": (compress(b"data") + skippable(b"data")[:10], 9),
    "a dictionary that nobody has": (with_dictionary_id(b"data"), 4),
    "a reserved block": (header(window_log=10) + bytes([7, 0, 0]), 4),
    "cut off": (compress(b"data")[:-2], 4),
}


def pieces_of(name: str, way: str) -> Iterator[bytes]:
    wire, size = HOSTILE[name]
    if way == "zstd":
        return decompressed([wire], size=size)
    return decode(way, [wire], bytes(min(size, 1 << 20)), size=size)


def refused_after(pieces: Iterable[bytes]) -> list[int]:
    """The sizes of the pieces that came before the refusal."""
    sizes: list[int] = []
    with pytest.raises(BlobError):
        sizes.extend(len(piece) for piece in pieces)
    return sizes


@pytest.mark.parametrize("way", ["zstd", *DELTA_ENCODINGS])
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_little_memory(name: str, way: str) -> None:
    given = refused_after(pieces_of(name, way))
    assert sum(given) <= HOSTILE[name][1]
    assert max(given, default=0) <= max(CHUNK_BYTES, 4 * PLANE_BYTES)


def test_a_frame_of_no_meaning_before_the_content_changes_nothing() -> None:
    assert b"".join(decompressed([skippable(b"x" * 50) + compress(b"data")], size=4)) == b"data"


def test_frames_without_content_end_with_the_wire() -> None:
    with pytest.raises(BlobError, match="ends early"):
        list(decompressed([compress(b"") * 20_000], size=4))


def test_what_python_holds_is_bounded() -> None:
    """The pieces, the wire and what is between them; zstd's own memory is the window, seen in the next test."""
    tracemalloc.start()
    try:
        given = refused_after(decompressed(iter([BOMB]), size=64 << 20))
        assert sum(given) == 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 4 * CHUNK_BYTES
    finally:
        tracemalloc.stop()


CHILD = """
import resource, sys
from edgeonnx.blobs.delta import decode
from edgeonnx.blobs.codec import decompressed
from edgeonnx.errors import BlobError
import numpy
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wire = sys.stdin.buffer.read()
class Zeros:
    def read(self, size):
        return bytes(size)
for way in sys.argv[1:]:
    try:
        found = decompressed([wire], size=1 << 27) if way == "zstd" else decode(way, [wire], Zeros(), size=1 << 27)
        for piece in found:
            pass
    except BlobError as error:
        print(error.message)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_process_that_decodes_a_bomb_stays_small() -> None:
    wire = header(window_log=23) + run_of_zeros(1 << 17) * 1050
    ways = ["zstd", "difference", "planes4"]
    done = subprocess.run([sys.executable, "-c", CHILD, *ways], input=wire, capture_output=True, check=True, timeout=60)
    *said, grown = done.stdout.decode().splitlines()
    assert said == ["decodes to more than the size that was signed"] * 3
    assert int(grown) < (2 * MAX_WINDOW_BYTES >> 20) + 8


def test_a_dictionary_may_have_a_larger_window_and_no_more() -> None:
    fits = stated(MAX_DICTIONARY_BYTES) + run_of_zeros(4, last=True)
    with pytest.raises(BlobError, match=r"does not decode|ends early") as found:
        list(decode("dictionary", [fits], b"base", size=4))
    assert "memory" not in str(found.value)
    beyond = stated(MAX_DICTIONARY_BYTES + 1) + run_of_zeros(4, last=True)
    with pytest.raises(BlobError, match="memory"):
        list(decode("dictionary", [beyond], b"base", size=4))


@pytest.mark.parametrize("change", [lambda wire: wire[:-1], lambda wire: wire + b"\0" * 9, lambda wire: wire[5:]])
@pytest.mark.parametrize("encoding", DELTA_ENCODINGS)
def test_a_delta_that_is_cut_or_extended(encoding: str, change: Callable[[bytes], bytes]) -> None:
    base, target = b"the cat sat on the mat" * 20, b"the dog sat on the mat" * 20
    with pytest.raises(BlobError):
        list(decode(encoding, [change(encode(encoding, base, target))], base, size=len(target)))


def test_a_trained_dictionary_as_a_base_is_raw_content() -> None:
    """Bytes that look like a dictionary of zstd are not read as one: its tables would be interpreted."""
    base = bytes.fromhex("37a430ec") + b"\xff" * 200
    wire = encode("dictionary", base, base + b"more")
    assert b"".join(decode("dictionary", [wire], base, size=len(base) + 4)) == base + b"more"
