from __future__ import annotations

import asyncio
import gzip
import itertools
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from device_agent.api.edge.compression import (
    MAX_MEMBERS,
    MIN_ANSWER_BYTES,
    STEP_BYTES,
    Decompressor,
    chosen_encoding,
    compressed,
)
from edgeonnx.errors import InvalidRequestError, UnsupportedEncodingError

TEXT = b'{"model": "tiny", "input": "the cat"}'
DATA = random.Random(0).randbytes(1000) + TEXT * 100


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


FORMS = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": (" X-GZip ", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw": ("Deflate", raw_deflate),
}
forms = pytest.mark.parametrize("form", FORMS)


def expand(encoding: str, *pieces: bytes) -> bytes:
    decompressor = Decompressor(encoding)
    out = b"".join(step for piece in pieces for step in decompressor.feed(piece))
    decompressor.finish()
    return out


@forms
@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 3000), max_size=5))
def test_whatever_was_compressed_comes_back_however_it_was_cut(form: str, data: bytes, cuts: list[int]) -> None:
    encoding, compress = FORMS[form]
    packed = compress(data)
    places = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    assert expand(encoding, *(packed[a:b] for a, b in itertools.pairwise(places))) == data


@forms
def test_byte_by_byte(form: str) -> None:
    encoding, compress = FORMS[form]
    packed = compress(DATA)
    assert expand(encoding, *(packed[i : i + 1] for i in range(len(packed)))) == DATA


@forms
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_body_or_an_invalid_request(form: str, data: bytes) -> None:
    try:
        expand(FORMS[form][0], data)
    except InvalidRequestError as error:
        assert "cannot be decompressed" in str(error)  # noqa: PT017 - either outcome is right


@forms
def test_a_stream_that_ends_early(form: str) -> None:
    encoding, compress = FORMS[form]
    packed = compress(DATA)
    for end in (1, 2, len(packed) // 2, len(packed) - 1):
        with pytest.raises(InvalidRequestError, match="ends too early"):
            expand(encoding, packed[:end])


@forms
@pytest.mark.parametrize("garbage", [b"\0", b"x", b"\0" * 100, TEXT])
def test_bytes_after_the_end(form: str, garbage: bytes) -> None:
    encoding, compress = FORMS[form]
    for pieces in ((compress(DATA) + garbage,), (compress(DATA), garbage)):
        with pytest.raises(InvalidRequestError, match="bytes after the end"):
            expand(encoding, *pieces)


@pytest.mark.parametrize("change", [8, 20, -8, -1])
def test_a_damaged_stream(change: int) -> None:
    packed = bytearray(gzip.compress(DATA))
    packed[change] ^= 0xFF
    if change == 8:  # a hint about the compressor, which nobody checks
        assert expand("gzip", bytes(packed)) == DATA
        return
    with pytest.raises(InvalidRequestError):
        expand("gzip", bytes(packed))


def test_members_of_gzip_follow_each_other() -> None:
    packed = gzip.compress(TEXT) + gzip.compress(b"") + gzip.compress(DATA)
    assert expand("gzip", packed) == TEXT + DATA
    assert expand("gzip", *(packed[i : i + 1] for i in range(len(packed)))) == TEXT + DATA
    for rest in (gzip.compress(TEXT)[:-1], b"\x1f", b"\x1f\x8b"):
        with pytest.raises(InvalidRequestError, match="ends too early"):
            expand("gzip", packed + rest)
    for other in (zlib.compress(TEXT), b"\x1fx"):
        with pytest.raises(InvalidRequestError, match="bytes after the end"):
            expand("gzip", packed + other)


def test_the_number_of_members_is_bounded() -> None:
    empty = gzip.compress(b"")
    assert expand("gzip", empty * MAX_MEMBERS) == b""
    with pytest.raises(InvalidRequestError, match="more than 1,024 members"):
        expand("gzip", empty * (MAX_MEMBERS + 1))


@forms
def test_a_bomb_comes_in_steps(form: str) -> None:
    encoding, compress = FORMS[form]
    decompressor = Decompressor(encoding)
    steps = decompressor.feed(compress(bytes(8 << 20)))
    assert len(next(steps)) <= STEP_BYTES
    assert sum(map(len, steps)) > 7 << 20


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip, deflate", "identity, gzip", "x", "gzip;q=1"])
def test_other_encodings(encoding: str) -> None:
    with pytest.raises(UnsupportedEncodingError, match="expected one of gzip, deflate and identity"):
        Decompressor(encoding)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("GZIP;q=0.5", "gzip"),
        ("gzip, identity;q=0", "gzip"),
        ("gzip, identity;q=0.5", "gzip"),
        ("gzip, deflate;q=0", "gzip"),
        ("gzip;q=x", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0.1, identity;q=0.5", None),
        ("identity", None),
        ("", None),
        ("br", None),
        ("x-gzip", None),
        ("*", None),
        ("gzip, deflate", None),
        ("gzip, deflate, br, zstd", None),
        (";;,,=", None),
    ],
)
def test_how_an_answer_is_compressed(accepted: str, encoding: str | None) -> None:
    assert chosen_encoding(accepted) == encoding


def answered(size: int, accepted: str | None) -> Response:
    headers = [] if accepted is None else [(b"accept-encoding", accepted.encode())]
    request = Request({"type": "http", "headers": headers})
    response = Response(TEXT * (size // len(TEXT) + 1), media_type="application/json")
    return asyncio.run(compressed(response, request))


@pytest.mark.parametrize("size", [MIN_ANSWER_BYTES, 1 << 20])
@pytest.mark.parametrize("accepted", ["gzip", "deflate"])
def test_answers(size: int, accepted: str) -> None:
    response = answered(size, accepted)
    assert response.headers["content-encoding"] == accepted
    assert int(response.headers["content-length"]) == len(response.body)
    assert response.headers["vary"] == "Accept-Encoding"
    whole = gzip.decompress(response.body) if accepted == "gzip" else zlib.decompress(response.body)
    assert whole == TEXT * (size // len(TEXT) + 1)


@pytest.mark.parametrize(("size", "accepted"), [(100, "gzip"), (1 << 16, None), (1 << 16, "br"), (1 << 16, "gzip, br")])
def test_answers_that_stay_as_they_are(size: int, accepted: str | None) -> None:
    response = answered(size, accepted)
    assert "content-encoding" not in response.headers
    assert response.body == TEXT * (size // len(TEXT) + 1)
