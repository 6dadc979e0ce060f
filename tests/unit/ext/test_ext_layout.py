from __future__ import annotations

from typing import Any

import pytest
from edgeonnx_ext.layout import Padding, Truncation, kept_lengths, longest_first, padded_width, windows


@pytest.mark.parametrize(
    ("first", "second", "budget", "expected"),
    [
        (3, 4, 7, (3, 4)),  # all fit
        (3, 9, 10, (3, 7)),  # only the longer one is cut
        (9, 3, 10, (7, 3)),
        (8, 9, 10, (5, 5)),  # both are
        (9, 9, 11, (5, 6)),  # the odd token goes to the longer one, or to the second
        (9, 10, 11, (5, 6)),
        (10, 9, 11, (6, 5)),
        (30, 40, 5, (2, 3)),  # even the shorter one is over the budget
        (0, 9, 4, (0, 4)),
        (5, 5, 0, (0, 0)),
    ],
)
def test_longest_first(first: int, second: int, budget: int, expected: tuple[int, int]) -> None:
    assert longest_first(first, second, budget) == expected


@pytest.mark.parametrize(
    ("strategy", "lengths", "budget", "expected"),
    [
        ("only_first", (9, 3), 10, (7, 3)),
        ("only_first", (9, 9), 10, (1, 9)),
        ("only_first", (9, 10), 10, None),  # no token of the first would be left
        ("only_second", (3, 9), 10, (3, 7)),
        ("only_second", (10, 9), 10, None),
        ("only_second", (3, 4), 10, (3, 4)),
        ("only_first", (5, 0), 3, (3, 0)),
        ("only_first", (5, 5), 0, (0, 0)),
    ],
)
def test_one_text_is_cut(strategy: Any, lengths: tuple[int, int], budget: int, expected: Any) -> None:
    assert kept_lengths(*lengths, budget, strategy) == expected


@pytest.mark.parametrize(
    ("length", "room", "stride", "right", "left"),
    [
        (5, 5, 2, [(0, 5)], [(0, 5)]),
        (6, 3, 0, [(0, 3), (3, 6)], [(3, 6), (0, 3)]),
        (7, 3, 0, [(0, 3), (3, 6), (6, 7)], [(4, 7), (1, 4), (0, 1)]),
        (7, 3, 1, [(0, 3), (2, 5), (4, 7)], [(4, 7), (2, 5), (0, 3)]),
        (6, 4, 3, [(0, 4), (1, 5), (2, 6)], [(2, 6), (1, 5), (0, 4)]),
    ],
)
def test_windows(length: int, room: int, stride: int, right: list, left: list) -> None:
    assert windows(length, room, stride, "right") == right
    assert windows(length, room, stride, "left") == left


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_length": -1}, "max_length: expected an integer from 0 to 2147483647, found -1"),
        ({"max_length": True}, "max_length: expected an integer"),
        ({"max_length": 2**31}, "max_length: expected an integer"),
        ({"max_length": 4, "strategy": "longest"}, "strategy: expected one of longest_first, only_first, only_second"),
        ({"max_length": 4, "side": "Left"}, "side: expected one of right, left, found 'Left'"),
        ({"max_length": 4, "stride": 1}, "stride: expected 0 where overflow is off, found 1"),
    ],
)
def test_a_truncation_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Truncation(**fields)


def test_numbers_must_be_integers() -> None:
    with pytest.raises(TypeError):
        Truncation(max_length=4.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Padding(pad_id="0")  # type: ignore[arg-type]


def test_a_padding_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="pad_type_id: expected an integer from 0"):
        Padding(pad_type_id=-1)
    with pytest.raises(ValueError, match="side: expected one of right, left"):
        Padding(side="both")  # type: ignore[arg-type]


def test_the_width_of_a_batch() -> None:
    assert [padded_width(5, None, None), padded_width(5, 9, None), padded_width(5, None, 8)] == [5, 9, 8]
    assert padded_width(16, None, 8) == 16
    with pytest.raises(ValueError, match="width: expected at least 5"):
        padded_width(5, 4, None)
    with pytest.raises(ValueError, match="pad_to_multiple_of: expected 1 or more"):
        padded_width(5, None, 0)
    with pytest.raises(ValueError, match="found both"):
        padded_width(5, 8, 8)
