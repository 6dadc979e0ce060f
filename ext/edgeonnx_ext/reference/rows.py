"""What every tokenizer shares: texts in, ragged rows out, and those into the caller's buffers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeonnx_ext import _checks, _checks_rows
from edgeonnx_ext.layout import Padding, kept_lengths, windows
from edgeonnx_ext.templates import SEQUENCE_A, SEQUENCE_B

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from edgeonnx_ext.layout import Truncation
    from edgeonnx_ext.templates import TemplatePiece

    Span = tuple[int, int]
    # Of one text: its ids, and start and end of each in characters.
    Encoded = tuple[list[int], list[Span]]

_NOTHING: Encoded = ([], [])


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One row, without padding.

    Attributes:
        ids: Token ids, special tokens included.
        type_ids: Token type id of each.
        specials: 1 for the template's tokens, 0 for those of a text.
        offsets: Start and end of each token in characters of its text; (0, 0) for special tokens.
        source: The text (or pair) that the row comes from.
    """

    ids: list[int]
    type_ids: list[int]
    specials: list[int]
    offsets: list[tuple[int, int]]
    source: int


class Tokenized:
    """The rows of a batch, ragged; made by `Tokenizer.tokenize`.

    Attributes:
        rows: Number of rows: one a text, and further ones for what overflowed.
        width: Tokens of the longest row; 0 if there is none.
    """

    def __init__(self, columns: list[Columns], *, has_offsets: bool) -> None:
        self._columns = columns
        self._has_offsets = has_offsets
        self.rows = len(columns)
        self.width = max((len(row.ids) for row in columns), default=0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): tokens of each row, special tokens included, after truncation."""
        return np.array([len(row.ids) for row in self._columns], dtype=np.int64)

    @property
    def sources(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): the text (or pair) that each row comes from."""
        return np.array([row.source for row in self._columns], dtype=np.int64)

    def order_by_length(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): the rows from longest to shortest, equal ones in the given order."""
        return np.argsort(-self.lengths, kind="stable").astype(np.int64)

    def write_into(
        self,
        input_ids: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
        token_type_ids: NDArray[Any] | None = None,
        *,
        special_tokens_mask: NDArray[Any] | None = None,
        offsets: NDArray[Any] | None = None,
        padding: Padding = Padding(),  # noqa: B008 - frozen
        rows: NDArray[np.int64] | Sequence[int] | None = None,
    ) -> None:
        """Write rows, padded, into the caller's buffers; all are int64 or all int32, C-contiguous and writable.

        Args:
            input_ids: (n, width or more); filled up with `padding.pad_id`.
            attention_mask: The same shape, or None; 1 for tokens, 0 for padding.
            token_type_ids: The same shape, or None; filled up with `padding.pad_type_id`.
            special_tokens_mask: The same shape, or None; 0 for tokens of a text, 1 for the template's and for padding.
            offsets: (n, the same width, 2), or None; start and end of each token in characters of its text, 0 and 0
                for special tokens and padding. Needs `tokenize(..., offsets=True)`.
            padding: What fills a row, and on which side.
            rows: Which rows to write, in this order (n,); None for all. The width that they need is that of the
                longest of them.

        Raises:
            TypeError: A buffer is not an ndarray of int64 or int32, or they differ in dtype.
            ValueError: A buffer is too small, read-only, not contiguous, or overlaps another; a row does not exist.
                Nothing was written.
        """
        checked = _checks_rows.row_buffers(
            self.lengths,
            rows,
            has_offsets=self._has_offsets,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            special_tokens_mask=special_tokens_mask,
            offsets=offsets,
        )
        fills = {"input_ids": padding.pad_id, "token_type_ids": padding.pad_type_id, "special_tokens_mask": 1}
        for name, buffer in checked.arrays.items():
            buffer.fill(fills.get(name, 0))
        for place, row in enumerate(checked.wanted.tolist()):
            columns = self._columns[row]
            count = len(columns.ids)
            if not count:
                continue
            start = 0 if padding.side == "right" else input_ids.shape[1] - count
            values: dict[str, list[Any]] = {
                "input_ids": columns.ids,
                "attention_mask": [1] * count,
                "token_type_ids": columns.type_ids,
                "special_tokens_mask": columns.specials,
                "offsets": columns.offsets,
            }
            for name, buffer in checked.arrays.items():
                buffer[place, start : start + count] = values[name]


def fill_template(template: Sequence[TemplatePiece], first: Encoded, second: Encoded, source: int) -> Columns:
    """Return the row that a template makes of two texts' tokens."""
    row = Columns(ids=[], type_ids=[], specials=[], offsets=[], source=source)
    for piece in template:
        ids, offsets = {SEQUENCE_A: first, SEQUENCE_B: second}.get(piece.source, ([piece.source], [(0, 0)]))
        row.ids.extend(ids)
        row.type_ids.extend([piece.type_id] * len(ids))
        row.specials.extend([int(piece.source >= 0)] * len(ids))
        row.offsets.extend(offsets)
    return row


class Tokenizer:
    """Texts to rows of ids. A subclass says how one text is tokenized.

    Args:
        single: Template of a text alone.
        pair: Template of a pair.
    """

    def __init__(self, single: tuple[TemplatePiece, ...], pair: tuple[TemplatePiece, ...]) -> None:
        self._single = single
        self._pair = pair

    def _tokenize(self, text: str, enough: int | None) -> Encoded:
        """Return the ids of `text`, without the template's, and their characters; may stop after `enough` ids.

        A number that is one less if the token is the first of its window (the library trims offsets after truncation)
        stands there as its complement, below 0.
        """
        raise NotImplementedError

    def tokenize(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: Truncation | None = None,
        special_tokens: bool = True,
        offsets: bool = False,
        threads: int = 1,
    ) -> Tokenized:
        """Tokenize texts, or pairs of texts.

        Args:
            texts: The texts; first of each pair.
            pairs: The second of each pair, or None.
            truncation: How rows are cut; None leaves them as long as they are.
            special_tokens: Whether the template's special tokens are added.
            offsets: Whether the characters of each token are kept, for `Tokenized.write_into`.
            threads: Most threads among which the texts are divided (the plain twin uses one).

        Returns:
            The ragged rows.

        Raises:
            TypeError: An argument is not a sequence of str.
            ValueError: `pairs` of another length, no room for the special tokens, a pair that its strategy cannot cut
                (the message names the row), or a lone surrogate (row and character position).
        """
        items = _checks.text_tuple(texts)
        seconds = _checks.pair_tuple(items, pairs)
        template = self._single if seconds is None else self._pair
        if not special_tokens:
            template = tuple(piece for piece in template if piece.source < 0)
        budget = None
        if truncation is not None:
            truncation.check_pairs(pairs=seconds is not None)
            budget = truncation.budget(sum(piece.source >= 0 for piece in template))
        _checks_rows.thread_count(threads)
        _checks.refuse_surrogates(items, "texts")
        _checks.refuse_surrogates(seconds or (), "pairs")
        columns = [
            fill_template(template, first, second, row)
            for row, (text, pair) in enumerate(zip(items, seconds or repeat(None), strict=False))
            for first, second in self._cut_rows(row, text, pair, truncation, budget)
        ]
        return Tokenized(columns, has_offsets=offsets)

    def _cut_rows(
        self, row: int, text: str, second: str | None, truncation: Truncation | None, budget: int | None
    ) -> Iterator[tuple[Encoded, Encoded]]:
        """Yield the row of a text or pair, and the rows of what overflowed."""
        if truncation is None or budget is None:
            texts = (text,) if second is None else (text, second)
            first, *others = (_window(self._tokenize(part, None), (0, None)) for part in texts)
            yield first, others[0] if others else _NOTHING
            return
        # All tokens of a pair are counted: which of two overlong texts keeps the odd token depends on the longer one.
        enough = budget if second is None and truncation.side == "right" and not truncation.overflow else None
        pair = (self._tokenize(text, enough), _NOTHING if second is None else self._tokenize(second, None))
        lengths = (len(pair[0][0]), len(pair[1][0]))
        kept = kept_lengths(*lengths, budget, truncation.strategy)
        if kept is None:
            _checks_rows.raise_too_short(row, truncation.strategy, budget)
        if truncation.overflow:
            for length, room in zip(lengths, kept, strict=True):
                if room < length and room <= truncation.stride:
                    _checks_rows.raise_stride(row, truncation.stride, room)
        stride, side = truncation.stride, truncation.side
        for first_window in windows_of(lengths[0], kept[0], stride, side, overflow=truncation.overflow):
            for second_window in windows_of(lengths[1], kept[1], stride, side, overflow=truncation.overflow):
                yield _window(pair[0], first_window), _window(pair[1], second_window)


def windows_of(length: int, room: int, stride: int, side: Any, *, overflow: bool) -> list[tuple[int, int]]:
    """Return the window that is kept, and behind it those that overflowed, if they are wanted."""
    if overflow:
        return windows(length, room, stride, side)
    return [(0, min(room, length)) if side == "right" else (max(0, length - room), length)]


def _window(encoded: Encoded, window: tuple[int, int | None]) -> Encoded:
    ids, spans = encoded
    kept = enumerate(spans[slice(*window)])
    return ids[slice(*window)], [_placed(span, first=index == 0) for index, span in kept]


def _placed(span: Span, *, first: bool) -> Span:
    """Return what the numbers of a span stand for; see `_tokenize`."""
    start, end = (number if number >= 0 else ~number - first for number in span)
    return start, end
