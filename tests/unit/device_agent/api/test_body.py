from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.api.body import check_ids, check_integers, check_texts, of_type, parse_object, required
from device_agent.config import AgentConfig
from edgeonnx.errors import InvalidRequestError, RequestTooLargeError

CONFIG = AgentConfig(max_texts=3, max_text_characters=10)


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


def test_types_are_exact() -> None:
    assert of_type(1, int, "n") == 1
    for value in (True, 1.0, "1", None, []):
        with pytest.raises(InvalidRequestError, match=r"^n: is of the wrong type; expected an integer; found "):
            of_type(value, int, "n")


def test_a_missing_member_is_named_with_its_parent() -> None:
    with pytest.raises(InvalidRequestError, match=r"inputs\[2\]\.shape: is missing"):
        required({}, "shape", "inputs[2]")


def test_texts() -> None:
    assert check_texts(["", "\x00", "ä"], "input", CONFIG) == ["", "\x00", "ä"]
    with pytest.raises(InvalidRequestError, match="input: is empty"):
        check_texts([], "input", CONFIG)
    with pytest.raises(RequestTooLargeError, match="input: has too many texts; expected at most 3; found 4"):
        check_texts(["a"] * 4, "input", CONFIG)
    with pytest.raises(RequestTooLargeError, match=r"input\[1\]: the text is too long"):
        check_texts(["a", "b" * 11], "input", CONFIG)
    with pytest.raises(InvalidRequestError, match=r"input\[1\]: .* expected a string; found an integer"):
        check_texts(["a", 1], "input", CONFIG)


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
