from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator

import pytest
import zstandard

from edgeonnx.blobs.codec import CHUNK_BYTES, compress, decompressed, most_wire_bytes, verified
from edgeonnx.errors import BlobError, FetchError

TEXT = b"the cat sat on the mat. " * 50_000


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 1_200_000])
def test_a_content_comes_back_in_pieces_of_a_bounded_size(size: int) -> None:
    pieces = list(decompressed([compress(TEXT[:size], level=3)], size=size))
    assert b"".join(pieces) == TEXT[:size]
    assert max(map(len, pieces), default=0) <= CHUNK_BYTES


def test_a_blob_may_come_byte_by_byte_and_with_empty_pieces() -> None:
    wire = compress(TEXT[:999])
    pieces = [b"", *(wire[place : place + 1] for place in range(len(wire))), b""]
    assert b"".join(decompressed(pieces, size=999)) == TEXT[:999]


def test_frames_in_a_row_give_their_contents_together() -> None:
    wire = compress(b"one") + compress(b"") + compress(b"two")
    assert b"".join(decompressed([wire], size=6)) == b"onetwo"


def test_a_full_blob_is_never_larger_than_its_limit() -> None:
    for size in (0, 1, 1000, 1 << 20):
        assert len(compress(os.urandom(size), level=1)) <= most_wire_bytes(size)


def test_not_a_byte_more_than_the_size_is_given() -> None:
    given: list[bytes] = []
    with pytest.raises(BlobError, match="more than the size"):
        given.extend(decompressed([compress(TEXT)], size=300_000))
    assert b"".join(given) == TEXT[:CHUNK_BYTES]


@pytest.mark.parametrize("wire", [b"", compress(TEXT)[:-40], compress(TEXT[:-1])])
def test_too_little_is_refused(wire: bytes) -> None:
    with pytest.raises(BlobError, match="ends early"):
        list(decompressed([wire], size=len(TEXT)))


def test_nothing_at_all_is_not_an_empty_content() -> None:
    assert list(decompressed([compress(b"")], size=0)) == []
    with pytest.raises(BlobError, match="ends early"):
        list(decompressed([], size=0))


def test_an_error_of_the_source_is_passed_on() -> None:
    def broken() -> Iterator[bytes]:
        yield compress(TEXT)[:20]
        raise FetchError("the connection was reset")

    with pytest.raises(FetchError, match="reset"):
        list(decompressed(broken(), size=len(TEXT)))


def test_a_blob_is_read_only_as_far_as_it_is_decoded() -> None:
    asked = 0
    wire = compress(os.urandom(1 << 20), level=1)

    def counted() -> Iterator[bytes]:
        nonlocal asked
        for place in range(0, len(wire), 500):
            asked += 1
            yield wire[place : place + 500]

    next(decompressed(counted(), size=1 << 20))
    assert asked < 1000  # of 2,000


def test_a_frame_may_refer_to_a_dictionary() -> None:
    known = zstandard.ZstdCompressionDict(TEXT[:5000], zstandard.DICT_TYPE_RAWCONTENT)
    wire = zstandard.ZstdCompressor(dict_data=known).compress(TEXT[100:4000])
    assert b"".join(decompressed([wire], size=3900, dictionary=TEXT[:5000])) == TEXT[100:4000]


def test_a_verified_content_is_written() -> None:
    out = io.BytesIO()
    out.writelines(verified([b"one", b"two"], sha256=hashlib.sha256(b"onetwo").hexdigest()))
    assert out.getvalue() == b"onetwo"


def test_another_content_is_refused() -> None:
    with pytest.raises(BlobError, match="another content"):
        io.BytesIO().writelines(verified([b"one"], sha256=hashlib.sha256(b"two").hexdigest()))
