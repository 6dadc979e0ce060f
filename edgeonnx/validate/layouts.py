"""Which batches parity looks at. Pure.

An export that is wrong is usually wrong only for sizes that were not traced: another batch size, another length, rows
with padding. So every row is run alone, in batches of several sizes, next to longer rows, and with padding beyond the
longest row. The batches are laid out so that together they cost little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_SIZES = (1, 7, 32)
EXTRA_PADDING = 5
LONG_ROW = 96
"""Rows with more tokens than this share batches of three: a batch of 32 such rows takes seconds and proves no more."""
LONG_BATCH = 3


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One batch: which rows, in which order, filled up to which width."""

    name: str
    rows: tuple[int, ...]
    width: int


def plan_layouts(lengths: Sequence[int], *, max_length: int, sizes: Sequence[int] = BATCH_SIZES) -> tuple[Layout, ...]:
    """Lay rows out in batches.

    Args:
        lengths: Tokens of each row.
        max_length: No batch is wider than this.
        sizes: Batch sizes. Size 1 is run without padding; larger ones in the given order (rows of many lengths meet),
            every second batch with extra padding, and the first size above 1 also sorted by length (little padding).

    Returns:
        Every row is alone and, with others, in every size (rows longer than `LONG_ROW` in batches of `LONG_BATCH`
        instead); and every row shorter than `max_length` is at least once followed by padding.
    """
    long = [row for row, length in enumerate(lengths) if length > LONG_ROW]
    short = [row for row, length in enumerate(lengths) if length <= LONG_ROW]
    layouts: list[Layout] = []
    for size in sizes:
        if size == 1:
            layouts += [Layout(name="alone", rows=(row,), width=length) for row, length in enumerate(lengths)]
            continue
        layouts += _batches(f"batch of {size}", short, size, lengths, max_length)
    several = [size for size in sizes if size > 1]
    if several:
        ordered = sorted(short, key=lambda row: lengths[row])
        layouts += _batches(f"sorted batch of {several[0]}", ordered, several[0], lengths, max_length)
        layouts += _batches(f"long batch of {LONG_BATCH}", long, LONG_BATCH, lengths, max_length)
    return (*layouts, *_missing_padding(layouts, lengths, max_length))


def _missing_padding(layouts: Sequence[Layout], lengths: Sequence[int], max_length: int) -> list[Layout]:
    """Rows that were the longest of each of their batches, now alone with padding."""
    padded = {row for layout in layouts for row in layout.rows if lengths[row] < layout.width}
    return [
        Layout(name="alone, padded", rows=(row,), width=min(length + EXTRA_PADDING, max_length))
        for row, length in enumerate(lengths)
        if length < max_length and row not in padded
    ]


def _batches(name: str, rows: Sequence[int], size: int, lengths: Sequence[int], max_length: int) -> list[Layout]:
    layouts = []
    for start in range(0, len(rows), size):
        group = tuple(rows[start : start + size])
        extra = EXTRA_PADDING if (start // size) % 2 == 0 else 0
        width = min(max(lengths[row] for row in group) + extra, max_length)
        padded = any(lengths[row] < width for row in group)
        layouts.append(Layout(name=name + (", padded" if padded else ""), rows=group, width=width))
    return layouts
