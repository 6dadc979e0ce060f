"""How rows are cut and padded: what the caller decides about a batch, and the arithmetic of it.

The arithmetic is that of Hugging Face `tokenizers` (utils/truncation.rs, and `Encoding::truncate` for the windows).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Final, Literal

Side = Literal["right", "left"]
Strategy = Literal["longest_first", "only_first", "only_second"]

SIDES: Final = ("right", "left")
STRATEGIES: Final = ("longest_first", "only_first", "only_second")

# Ids, positions and lengths travel as int32 in the kernels.
LIMIT: Final = 2**31


def _expect_index(value: int, name: str, least: int = 0) -> None:
    if isinstance(value, bool) or not least <= operator.index(value) < LIMIT:
        raise ValueError(f"{name}: expected an integer from {least} to {LIMIT - 1}, found {value!r}")


def _expect_one_of(value: str, name: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, found {value!r}")


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """How rows that are too long are cut.

    Attributes:
        max_length: Most tokens of a row, special tokens included.
        strategy: Which text of a pair is cut: "longest_first" (the longer one, then both), "only_first" or
            "only_second". A text alone is its own first.
        side: Where tokens are lost: at the "right" (the end of the text) or at the "left".
        overflow: What is cut off makes further rows (windows of the same length, in order of their distance from the
            kept end) behind the text's own row; `Tokenized.sources` tells whose they are. For pairs not with
            "longest_first".
        stride: Tokens that a window shares with the one before; less than a window's room. Needs `overflow`.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A value out of range, or `stride` without `overflow`.
    """

    max_length: int
    strategy: Strategy = "longest_first"
    side: Side = "right"
    overflow: bool = False
    stride: int = 0

    def __post_init__(self) -> None:
        _expect_index(self.max_length, "max_length")
        _expect_index(self.stride, "stride")
        _expect_one_of(self.strategy, "strategy", STRATEGIES)
        _expect_one_of(self.side, "side", SIDES)
        if self.stride and not self.overflow:
            raise ValueError(f"stride: expected 0 where overflow is off, found {self.stride}")

    def budget(self, specials: int) -> int:
        """Return how many tokens are left for texts, next to `specials` special tokens.

        Raises:
            ValueError: Fewer than none.
        """
        if self.max_length < specials:
            raise ValueError(
                f"max_length: expected at least the {specials} special tokens of a row, found {self.max_length}"
            )
        return self.max_length - specials

    def check_pairs(self, *, pairs: bool) -> None:
        """Check the strategy against what is tokenized.

        Raises:
            ValueError: "only_second" without pairs, or overflow of pairs that are cut on both sides.
        """
        if self.strategy == "only_second" and not pairs:
            raise ValueError("strategy: expected pairs with 'only_second', found texts alone")
        if self.overflow and pairs and self.strategy == "longest_first":
            raise ValueError(
                "strategy: expected 'only_first' or 'only_second' with overflow of pairs, found 'longest_first': "
                "windows over both texts have no single order"
            )


@dataclass(frozen=True, kw_only=True)
class Padding:
    """What fills a row up to the width of its buffer.

    Attributes:
        pad_id: Fills the ids, in [0, 2**31).
        pad_type_id: Fills the token type ids, in [0, 2**31).
        side: Where the filling stands: "right" (behind the tokens) or "left".

    Raises:
        TypeError: A number is not an integer.
        ValueError: A value out of range.
    """

    pad_id: int = 0
    pad_type_id: int = 0
    side: Side = "right"

    def __post_init__(self) -> None:
        _expect_index(self.pad_id, "pad_id")
        _expect_index(self.pad_type_id, "pad_type_id")
        _expect_one_of(self.side, "side", SIDES)


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Return how many tokens of each text of a pair stay within `budget`, the longer one cut first."""
    if first + second <= budget:
        return first, second
    shorter, longer = min(first, second), max(first, second)
    longer = max(shorter, budget - shorter)
    if shorter + longer > budget:
        shorter, longer = budget // 2, budget - budget // 2
    return (shorter, longer) if first <= second else (longer, shorter)


def kept_lengths(first: int, second: int, budget: int, strategy: Strategy) -> tuple[int, int] | None:
    """Return how many tokens of each text stay; None if the one text that may be cut is too short for it."""
    if first + second <= budget or budget == 0:
        return (first, second) if budget else (0, 0)
    if strategy == "longest_first":
        return longest_first(first, second, budget)
    cut = first + second - budget
    if strategy == "only_first":
        return (first - cut, second) if first > cut else None
    return (first, second - cut) if second > cut else None


def windows(length: int, room: int, stride: int, side: Side) -> list[tuple[int, int]]:
    """Return the windows of `room` tokens over `length` tokens, the kept one first, each `stride` into the one before.

    Args:
        length: Tokens of the text.
        room: Tokens of a window; more than `stride`, unless all tokens fit.
        stride: Tokens that neighbours share.
        side: "right": from the start on; "left": from the end on.
    """
    if length <= room:
        return [(0, length)]
    found: list[tuple[int, int]] = []
    for shift in range(0, length, room - stride):
        start, stop = (
            (shift, min(shift + room, length))
            if side == "right"
            else (
                max(0, length - shift - room),
                length - shift,
            )
        )
        found.append((start, stop))
        if stop == length if side == "right" else start == 0:
            break
    return found


def padded_width(longest: int, width: int | None, multiple: int | None) -> int:
    """Return the width of a batch whose longest row has `longest` tokens.

    Args:
        longest: Tokens of the longest row.
        width: A fixed width, or None.
        multiple: Round `longest` up to a multiple of this, or None. Not together with `width`.

    Raises:
        ValueError: Both, a width below the longest row, or a multiple below 1.
    """
    if width is not None and multiple is not None:
        raise ValueError(f"expected width or pad_to_multiple_of, found both ({width} and {multiple})")
    if width is not None:
        if width < longest:
            raise ValueError(f"width: expected at least {longest}, the longest row, found {width}")
        return width
    if multiple is None:
        return longest
    if multiple < 1:
        raise ValueError(f"pad_to_multiple_of: expected 1 or more, found {multiple}")
    return -(-longest // multiple) * multiple
