from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest

from edgeonnx.blobs.codec import CHUNK_BYTES, MAX_WINDOW_BYTES, compress
from edgeonnx.blobs.delta import (
    DICTIONARY,
    DIFFERENCE,
    MAX_DICTIONARY_BYTES,
    PLANE_BYTES,
    PLANES2,
    PLANES4,
    decode,
    encode,
    fits,
)
from edgeonnx.errors import BlobError
from edgeonnx.spec.release import DELTA_ENCODINGS

RNG = np.random.default_rng(7)
ZEROS = bytes(10 << 20)


def sparse(size: int) -> bytes:
    """Bytes of which few are not 0: they are compressed quickly."""
    data = np.zeros(size, np.uint8)
    data[RNG.integers(0, size, size // 1000)] = RNG.integers(0, 256, size // 1000)
    data[-1] = 7
    return data.tobytes()


def decoded(encoding: str, wire: bytes, base: bytes, size: int) -> bytes:
    return b"".join(decode(encoding, [wire], base, size=size))


def test_the_encodings_are_those_that_a_release_may_name() -> None:
    assert set(DELTA_ENCODINGS) == {DIFFERENCE, PLANES2, PLANES4, DICTIONARY}


def test_steps_of_8_bit_weights_become_a_few_per_cent() -> None:
    old = RNG.integers(-127, 128, 1 << 16, dtype=np.int8)
    moved = (RNG.random(old.size) < 0.075).astype(np.int8) - (RNG.random(old.size) < 0.075).astype(np.int8)
    new = old + moved  # wraps around at the ends, as uint8 does
    wire = encode(DIFFERENCE, old.tobytes(), new.tobytes())
    assert len(wire) < 0.13 * len(compress(new.tobytes(), level=3))
    assert decoded(DIFFERENCE, wire, old.tobytes(), new.nbytes) == new.tobytes()


@pytest.mark.parametrize(("encoding", "dtype", "share"), [(PLANES4, np.float32, 0.6), (PLANES2, np.float16, 0.3)])
def test_small_changes_of_floats_cost_less_than_the_floats(encoding: str, dtype: type, share: float) -> None:
    old: np.ndarray = (RNG.standard_normal(1 << 15) * 0.05).astype(dtype)
    new: np.ndarray = (old.astype(np.float64) + RNG.standard_normal(old.size) * 1e-5).astype(dtype)
    wire = encode(encoding, old.tobytes(), new.tobytes())
    assert len(wire) < share * len(compress(new.tobytes(), level=3))
    assert decoded(encoding, wire, old.tobytes(), new.nbytes) == new.tobytes()


def test_planes_hold_the_bytes_of_numbers_by_their_place() -> None:
    old, new = bytes(10), bytes([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    planes = bytes([1, 5, 2, 6, 3, 7, 4, 8, 9, 10])
    assert decoded(PLANES4, compress(planes), old, 10) == new
    assert decoded(PLANES2, compress(bytes([1, 3, 5, 7, 9, 2, 4, 6, 8, 10])), old, 10) == new


@pytest.mark.parametrize("encoding", [DIFFERENCE, PLANES2, PLANES4])
@pytest.mark.parametrize("size", [CHUNK_BYTES - 1, 2 * PLANE_BYTES + 1, 4 * PLANE_BYTES + 3, 5 * PLANE_BYTES])
def test_contents_of_several_blocks(encoding: str, size: int) -> None:
    old, new = sparse(size), sparse(size)
    assert decoded(encoding, encode(encoding, old, new), old, size) == new


def test_a_dictionary_is_not_forgotten_where_the_usual_window_ends() -> None:
    base = RNG.bytes(1 << 15)
    target = ZEROS[: MAX_WINDOW_BYTES + 1] + base
    wire = encode(DICTIONARY, base, target)
    assert len(wire) < 2000
    assert decoded(DICTIONARY, wire, base, len(target)) == target


def test_a_base_may_be_larger_than_the_usual_window() -> None:
    end = RNG.bytes(1 << 15)
    base = end[::-1] + ZEROS[: MAX_WINDOW_BYTES + 1] + end
    target = end + end[::-1]
    wire = encode(DICTIONARY, base, target)
    assert len(wire) < 2000
    assert decoded(DICTIONARY, wire, base, len(target)) == target


@pytest.mark.parametrize("base", [b"", b"seven b", bytes(8)])
def test_any_base_is_a_dictionary(base: bytes) -> None:
    for target in (b"", b"x", base, base + b"more"):
        assert decoded(DICTIONARY, encode(DICTIONARY, base, target), base, len(target)) == target


class Parts(io.RawIOBase):
    """A file that gives less than it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self.asked = 0

    def read(self, size: int = -1) -> bytes:
        self.asked = max(self.asked, size)
        return self._data.read(min(size, 1000))


@pytest.mark.parametrize("encoding", DELTA_ENCODINGS)
def test_the_base_may_be_a_file(encoding: str) -> None:
    old, new = sparse(900_001), sparse(900_001)
    base = Parts(old)
    pieces = decode(encoding, [encode(encoding, old, new)], base, size=len(new))  # type: ignore[arg-type]
    assert b"".join(pieces) == new
    if encoding != DICTIONARY:
        assert base.asked <= 4 * PLANE_BYTES


@pytest.mark.parametrize("encoding", [DIFFERENCE, PLANES2, PLANES4])
@pytest.mark.parametrize("base", [b"12345", b"1234567", b""])
def test_a_base_of_another_size_is_refused(encoding: str, base: bytes) -> None:
    wire = encode(encoding, b"123456", b"654321")
    with pytest.raises(BlobError, match="does not fit its base"):
        decoded(encoding, wire, base, 6)


@pytest.mark.parametrize("encoding", [DIFFERENCE, PLANES2, PLANES4, "unknown"])
def test_contents_of_different_sizes_have_no_such_delta(encoding: str) -> None:
    assert not fits(encoding, 5, 6)
    with pytest.raises(ValueError, match="does not fit"):
        encode(encoding, b"12345", b"123456")


def test_a_dictionary_is_bounded() -> None:
    assert fits(DICTIONARY, MAX_DICTIONARY_BYTES, MAX_DICTIONARY_BYTES)
    assert not fits(DICTIONARY, MAX_DICTIONARY_BYTES + 1, 1)
    assert not fits(DICTIONARY, 1, MAX_DICTIONARY_BYTES + 1)
    large = bytes(MAX_DICTIONARY_BYTES + 1)
    with pytest.raises(BlobError, match="does not fit its base"):
        decoded(DICTIONARY, compress(b"x"), large, 1)
    with pytest.raises(BlobError, match="too large for its encoding"):
        decoded(DICTIONARY, compress(b"x"), b"x", MAX_DICTIONARY_BYTES + 1)


def test_an_encoding_of_a_later_release_is_refused_before_anything_is_read() -> None:
    def unread() -> Iterator[bytes]:
        raise AssertionError("was read")
        yield b""

    with pytest.raises(BlobError, match="this release does not know"):
        list(decode("planes8", unread(), b"base", size=4))
