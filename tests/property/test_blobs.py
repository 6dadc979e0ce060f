"""Deltas and blobs: what was encoded comes back, and what was changed on the way is an error and nothing else."""

from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.blobs.codec import compress, decompressed, verified
from edgeonnx.blobs.delta import DICTIONARY, decode, encode
from edgeonnx.errors import BlobError
from edgeonnx.spec.release import DELTA_ENCODINGS

CONTENTS = st.binary(max_size=200) | st.integers(0, 3000).map(lambda size: b"the cat sat on a mat. " * (size // 22))
ENCODINGS = st.sampled_from(DELTA_ENCODINGS)
CUTS = st.integers(1, 64)


@st.composite
def deltas(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """An encoding with a base and a content that it fits."""
    encoding, target = draw(ENCODINGS), draw(CONTENTS)
    if encoding == DICTIONARY:
        return encoding, draw(CONTENTS), target
    return encoding, draw(st.binary(min_size=len(target), max_size=len(target))), target


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[place : place + size] for place in range(0, len(data), size)]


@settings(max_examples=100)
@given(deltas(), CUTS)
def test_what_is_encoded_comes_back(delta: tuple[str, bytes, bytes], cut: int) -> None:
    encoding, base, target = delta
    wire = pieces(encode(encoding, base, target), cut)
    assert b"".join(decode(encoding, wire, base, size=len(target))) == target
    assert b"".join(decode(encoding, wire, io.BytesIO(base), size=len(target))) == target


@st.composite
def changed(draw: st.DrawFn, wire: bytes) -> bytes:
    """Bytes on the wire that somebody changed: cut off, put in, flipped."""
    place = draw(st.integers(0, len(wire)))
    way = draw(st.sampled_from(["flip", "cut", "insert", "append", "drop"]))
    if way == "flip":
        damaged = bytearray(wire)
        for at in draw(st.lists(st.integers(0, len(wire) - 1), min_size=1, max_size=4)):
            damaged[at] ^= 1 << draw(st.integers(0, 7))
        return bytes(damaged)
    other = draw(st.binary(min_size=1, max_size=20))
    return {
        "cut": wire[:place],
        "insert": wire[:place] + other + wire[place:],
        "append": wire + draw(st.sampled_from([other, wire, compress(other)])),
        "drop": wire[:place] + wire[place + len(other) :],
    }[way]


@settings(max_examples=250)
@given(st.data(), deltas())
def test_what_is_changed_on_the_way_is_refused(data: st.DataObject, delta: tuple[str, bytes, bytes]) -> None:
    encoding, base, target = delta
    wire = data.draw(changed(encode(encoding, base, target)))
    refused_or_right(decode(encoding, [wire], base, size=len(target)), target)


@settings(max_examples=100)
@given(st.data(), CONTENTS)
def test_a_changed_blob_is_refused(data: st.DataObject, content: bytes) -> None:
    wire = data.draw(changed(compress(content)))
    refused_or_right(decompressed([wire], size=len(content)), content)


@settings(max_examples=100)
@given(ENCODINGS, st.binary(max_size=60), st.binary(max_size=60), st.integers(0, 100))
def test_noise_is_refused(encoding: str, wire: bytes, base: bytes, size: int) -> None:
    refused_or_right(decode(encoding, [b"\x28\xb5\x2f\xfd" + wire], base, size=size), None)


def refused_or_right(found: object, content: bytes | None) -> None:
    """A `BlobError` is raised, or exactly the content is written: a flipped bit may be one that says nothing."""
    out = Bounded(None if content is None else len(content))
    digest = hashlib.sha256(content if content is not None else b"never").hexdigest()
    try:
        out.writelines(verified(found, sha256=digest))  # type: ignore[arg-type]
    except BlobError:
        return
    assert out.getvalue() == content


class Bounded(io.BytesIO):
    """Fails where more than a content's size is written."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self._size = size

    def write(self, data: bytes) -> int:  # type: ignore[override]
        written = super().write(data)
        assert self._size is None or self.tell() <= self._size
        return written


def test_the_bound_of_these_tests_holds() -> None:
    with pytest.raises(AssertionError):
        Bounded(2).write(b"123")
