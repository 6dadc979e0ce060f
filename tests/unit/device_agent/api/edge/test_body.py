from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import time
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from device_agent.api.edge.body import (
    check_ids,
    check_integers,
    check_texts,
    of_type,
    parse_object,
    read_body,
    required,
)
from device_agent.api.edge.exchange import EXTENSION, Exchange, exchange
from device_agent.config import Limits, ServerConfig
from edgeonnx.errors import (
    ClientGoneError,
    InvalidRequestError,
    RequestTooLargeError,
    SlowClientError,
    UnsupportedEncodingError,
)

LIMITS = Limits(max_texts=3, max_text_characters=10, max_body_bytes=1000)
SERVER = ServerConfig(body_seconds=0.05)


@given(st.binary(max_size=200))
def test_bytes_are_an_object_or_an_invalid_request(data: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(parse_object(data), dict)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty body"),
        (b"{", "at character 1"),
        (b"[1]", "an array"),
        (b'"text"', "a string"),
        (b'{"a": NaN}', "at character"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": "\\udc00x"}', "lone surrogate"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b"[" * 100_000, "at character"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, found: str) -> None:
    with pytest.raises(InvalidRequestError, match=found):
        parse_object(data)


@pytest.mark.parametrize("content", [b"[" + b"[]," * 50_000 + b"[]]", b"[" + b"[]," * 50_000 + b"x"])
def test_the_garbage_collector_rests_while_a_large_body_is_parsed(content: bytes) -> None:
    runs: list[str] = []

    def count(phase: str, _info: object) -> None:
        runs.append(phase)

    gc.collect()
    gc.callbacks.append(count)
    try:
        with pytest.raises(InvalidRequestError):
            parse_object(content)
        assert len(runs) < 20  # 50,000 arrays would make it run 70 times
    finally:
        gc.callbacks.remove(count)
    assert gc.isenabled()


def test_types_are_exact() -> None:
    assert of_type(1, int, "n") == 1
    for value in (True, 1.0, "1", None, []):
        with pytest.raises(InvalidRequestError, match=r"^n: is of the wrong type; expected an integer; found "):
            of_type(value, int, "n")


def test_a_missing_member_is_named_with_its_parent() -> None:
    with pytest.raises(InvalidRequestError, match=r"inputs\[2\]\.shape: is missing"):
        required({}, "shape", "inputs[2]")


def test_texts() -> None:
    assert check_texts(["", "\x00", "ä"], "input", LIMITS) == ["", "\x00", "ä"]
    with pytest.raises(InvalidRequestError, match="input: is empty"):
        check_texts([], "input", LIMITS)
    with pytest.raises(RequestTooLargeError, match="input: has too many texts; expected at most 3; found 4"):
        check_texts(["a"] * 4, "input", LIMITS)
    with pytest.raises(RequestTooLargeError, match=r"input\[1\]: the text is too long"):
        check_texts(["a", "b" * 11], "input", LIMITS)
    with pytest.raises(InvalidRequestError, match=r"input\[1\]: .* expected a string; found an integer"):
        check_texts(["a", 1], "input", LIMITS)


def test_integers() -> None:
    check_integers([], "x")
    check_integers([1, -(2**70)], "x")
    with pytest.raises(InvalidRequestError, match=r"x\[1\]: .* found true or false"):
        check_integers([1, True, "a"], "x")


def test_ids() -> None:
    check_ids(np.array([0, 9]), "x", 10)
    check_ids(np.array([0, 10**9]), "x", 0)
    with pytest.raises(InvalidRequestError, match="expected 0 to 9; found 10"):
        check_ids(np.array([[0, 10]]), "x", 10)
    with pytest.raises(InvalidRequestError, match="found -1"):
        check_ids(np.array([-1]), "x", 0)


def read(*pieces: bytes | float | None, headers: dict[str, str] | None = None, known: Exchange | None = None) -> bytes:
    """Read a body that arrives in pieces; a number is a pause in seconds, None says that the client left."""
    messages = list(pieces)

    async def receive() -> dict[str, Any]:
        while True:
            piece = messages.pop(0)
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            elif piece is None:
                return {"type": "http.disconnect"}
            else:
                return {"type": "http.request", "body": piece, "more_body": bool(messages)}

    scope: dict[str, Any] = {
        "type": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    if known is not None:
        scope["extensions"] = {EXTENSION: known}
    return asyncio.run(read_body(Request(scope, receive), LIMITS, SERVER))  # type: ignore[arg-type]


@pytest.mark.parametrize("pieces", [(b"",), (b"a",), (b"a", b"", b"b" * 998), (b"x" * 1000,), (b"", b"")])
def test_a_body_in_pieces(pieces: tuple[bytes, ...]) -> None:
    assert read(*pieces) == b"".join(pieces)
    assert read(*pieces, headers={"Content-Encoding": "identity"}) == b"".join(pieces)


@pytest.mark.parametrize("pieces", [(b"a" * 1001,), (b"a" * 600, b"a" * 600)])
def test_a_body_beyond_the_limit(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(RequestTooLargeError, match="body: the body is too large; expected at most 1,000 bytes"):
        read(*pieces)


@pytest.mark.parametrize("length", ["1001", "9" * 400])
def test_an_announced_length_beyond_the_limit_is_refused_before_anything_is_read(length: str) -> None:
    with pytest.raises(RequestTooLargeError, match="bytes announced"):
        read(headers={"Content-Length": length})  # there is no message to receive
    with pytest.raises(RequestTooLargeError, match="bytes announced"):
        read(headers={"Content-Length": length, "Content-Encoding": "gzip"})


def test_a_compressed_body() -> None:
    for encoding, packed in (("gzip", gzip.compress(b"a" * 1000)), ("deflate", zlib.compress(b"a" * 1000))):
        assert read(packed[:9], packed[9:], headers={"Content-Encoding": encoding}) == b"a" * 1000
    assert read(b"", headers={"Content-Encoding": "gzip"}) == b""
    with pytest.raises(InvalidRequestError, match="ends too early"):
        read(gzip.compress(b"a")[:-1], headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize("size", [1001, 500_000])
def test_the_limit_counts_what_comes_out(size: int) -> None:
    packed = gzip.compress(bytes(size))
    assert len(packed) < 1000
    with pytest.raises(RequestTooLargeError, match="found more after decompression"):
        read(packed, headers={"Content-Encoding": "gzip"})


def test_the_limit_counts_what_arrives_too() -> None:
    with pytest.raises(RequestTooLargeError, match="found more; "):
        read(*([gzip.compress(b"")] * 51), headers={"Content-Encoding": "gzip"})


def test_an_unknown_encoding() -> None:
    with pytest.raises(UnsupportedEncodingError):
        read(b"x", headers={"Content-Encoding": "br"})


@pytest.mark.parametrize("pieces", [(1.0, b"a"), (b"a", 1.0, b"b"), (b"a", 0.03, b"a", 0.03, b"b")])
def test_the_whole_body_has_to_arrive_in_time(pieces: tuple[bytes | float, ...]) -> None:
    started = time.monotonic()
    with pytest.raises(SlowClientError, match=r"expected all of it within 0\.05 s"):
        read(*pieces)
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("pieces", [(None,), (b"a", b"b", None)])
def test_a_client_that_leaves(pieces: tuple[bytes | None, ...]) -> None:
    with pytest.raises(ClientGoneError):
        read(*pieces)


def test_a_body_that_has_arrived_needs_no_timer() -> None:
    known = Exchange()
    with pytest.raises(SlowClientError):
        read(0.1, b"a", known=known)
    known.body_arrived = True
    assert read(0.1, b"a", known=known) == b"a"  # twice the time limit: nothing measured it


def test_an_exchange_tells_once_that_the_client_left() -> None:
    known = Exchange()
    calls: list[int] = []
    known.on_disconnect(lambda: calls.append(1))
    known.on_disconnect(lambda: calls.append(2))
    known.leave()
    known.leave()
    known.on_disconnect(lambda: calls.append(3))
    assert calls == [1, 2, 3]
    assert exchange({}) is exchange({"extensions": {}}) is None
    assert exchange({"extensions": {EXTENSION: known}}) is known
