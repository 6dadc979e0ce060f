"""The plain Python and NumPy twins of the compiled kernels: same names, same arguments, same errors.

Written to be read beside the Hugging Face sources that they agree with (tokenizers/src/normalizers/bert.rs,
pre_tokenizers/bert.rs, models/wordpiece/mod.rs, utils/truncation.rs): whole strings, one step after the other, where
the compiled kernels stream over code points. They serve where there is no compiler, and are the oracle of the tests.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks, _unicode
from edgeonnx_ext.wordpiece import SEQUENCE_A, SEQUENCE_B

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from edgeonnx_ext.wordpiece import TemplatePiece, WordPieceModel


@lru_cache(maxsize=8192)
def _facts(char: str) -> _unicode.CharFacts:
    return _unicode.load_table().facts(ord(char))


def decompose(text: str) -> str:
    """Return NFD of `text`: decompose, then sort each run of nonstarters by class, stably (UAX #15)."""
    ordered: list[str] = []
    run: list[str] = []
    for char in "".join(_facts(char).nfd for char in text):
        if _facts(char).combining:
            run.append(char)
            continue
        ordered += sorted(run, key=lambda mark: _facts(mark).combining)
        ordered.append(char)
        run.clear()
    return "".join(ordered + sorted(run, key=lambda mark: _facts(mark).combining))


def normalize(model: WordPieceModel, text: str) -> str:
    """Return what the BertNormalizer of `model` makes of `text`."""
    if model.clean_text:
        kept = (char for char in text if not _facts(char).flags & _unicode.CLEAN_DROP)
        text = "".join(" " if _facts(char).flags & _unicode.CLEAN_SPACE else char for char in kept)
    if model.handle_chinese_chars:
        text = "".join(f" {char} " if _facts(char).flags & _unicode.CJK else char for char in text)
    if model.strip_accents:
        text = "".join(char for char in decompose(text) if not _facts(char).flags & _unicode.NONSPACING)
    if model.lowercase:
        text = "".join(_facts(char).lower for char in text)
    return text


def words(text: str) -> Iterator[str]:
    """Yield the words of normalized `text`: cut at whitespace, each punctuation mark a word of its own."""
    start = 0
    for position, char in enumerate(text):
        flags = _facts(char).flags
        if flags & (_unicode.SPLIT | _unicode.PUNCTUATION):
            if start < position:
                yield text[start:position]
            if flags & _unicode.PUNCTUATION:
                yield char
            start = position + 1
    if start < len(text):
        yield text[start:]


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Return how many tokens of a pair stay within `budget`, as tokenizers' LongestFirst cuts (utils/truncation.rs)."""
    if first + second <= budget:
        return first, second
    shorter, longer = min(first, second), max(first, second)
    longer = max(shorter, budget - shorter)
    if shorter + longer > budget:
        shorter, longer = budget // 2, budget - budget // 2
    return (shorter, longer) if first <= second else (longer, shorter)


class Tokenized:
    """The ids of a batch, ragged; made by `WordPieceTokenizer.tokenize`.

    Attributes:
        rows: Number of texts.
        width: Length of the longest row; 0 if there is none.
    """

    def __init__(self, ids: list[list[int]], type_ids: list[list[int]], pad_id: int, pad_type_id: int) -> None:
        self._ids = ids
        self._type_ids = type_ids
        self._pad_id = pad_id
        self._pad_type_id = pad_type_id
        self.rows = len(ids)
        self.width = max(map(len, ids), default=0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): tokens of each row, special tokens included, after truncation."""
        return np.array([len(row) for row in self._ids], dtype=np.int64)

    def write_into(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        token_type_ids: NDArray[np.int64],
    ) -> None:
        """Write ids, mask and type ids, padded on the right, into the caller's buffers.

        Args:
            input_ids: int64 (rows, at least width), C-contiguous and writable; padded with the pad id.
            attention_mask: The same shape; 1 for tokens, 0 for padding.
            token_type_ids: The same shape; padded with the pad type id.

        Raises:
            TypeError: A buffer is not an int64 ndarray.
            ValueError: A buffer is too small, read-only, not contiguous, or overlaps another. Nothing was written.
        """
        buffers = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        _checks.id_buffers(self.rows, self.width, **buffers)
        input_ids.fill(self._pad_id)
        attention_mask.fill(0)
        token_type_ids.fill(self._pad_type_id)
        for row, (ids, type_ids) in enumerate(zip(self._ids, self._type_ids, strict=True)):
            input_ids[row, : len(ids)] = ids
            attention_mask[row, : len(ids)] = 1
            token_type_ids[row, : len(ids)] = type_ids


class WordPieceTokenizer:
    """BERT's tokenizer: text to ids, exactly as Hugging Face `tokenizers` gives them.

    Args:
        model: The tokenizer's description.
        pad_id: Id that fills the rows of `input_ids` on the right, in [0, 2**31).
        pad_type_id: The same for `token_type_ids`.

    Raises:
        ValueError: A pad id is out of range.
    """

    def __init__(self, model: WordPieceModel, *, pad_id: int, pad_type_id: int = 0) -> None:
        self._model = model
        self._pad_id = _checks.token_id(pad_id, "pad_id")
        self._pad_type_id = _checks.token_id(pad_type_id, "pad_type_id")
        self._longest_token = max(map(len, model.vocab))

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Tokenized:
        """Tokenize texts, or pairs of texts.

        Args:
            texts: The texts; first of each pair.
            pairs: The second of each pair, or None.
            max_length: Most tokens of a row, special tokens included. Longer texts lose their end; of a pair the
                longer text is cut first.

        Returns:
            The ragged ids.

        Raises:
            TypeError: An argument is not a sequence of str.
            ValueError: `pairs` of another length, `max_length` below the number of special tokens, or a lone surrogate
                (the message names its row and character position).
        """
        items = _checks.text_tuple(texts)
        seconds = _checks.pair_tuple(items, pairs)
        template = self._model.single if seconds is None else self._model.pair
        specials = self._model.special_count(pair=seconds is not None)
        budget = _checks.length_limit(max_length, specials) - specials
        _checks.refuse_surrogates(items, "texts")
        if seconds is not None:
            _checks.refuse_surrogates(seconds, "pairs")
        rows = (
            (self._ids(text, budget)[:budget], []) if pair is None else self._pair_ids(text, pair, budget)
            for text, pair in zip(items, seconds or repeat(None), strict=False)
        )
        filled = [_fill_template(template, first, second) for first, second in rows]
        ids, type_ids = [row[0] for row in filled], [row[1] for row in filled]
        return Tokenized(ids, type_ids, self._pad_id, self._pad_type_id)

    def _pair_ids(self, text: str, pair: str, budget: int) -> tuple[list[int], list[int]]:
        # Both in full: which of two overlong texts keeps the odd token depends on which is longer.
        first, second = self._ids(text), self._ids(pair)
        keep_first, keep_second = longest_first(len(first), len(second), budget)
        return first[:keep_first], second[:keep_second]

    def _ids(self, text: str, enough: int | None = None) -> list[int]:
        """Return the ids of `text`, without special tokens of the template; may stop after `enough`."""
        ids: list[int] = []
        for section, added in self._sections(text):
            if added is not None:
                ids.append(added)
            for word in words(normalize(self._model, section)):
                ids += self._word_ids(word)
                if enough is not None and len(ids) >= enough:
                    return ids
        return ids

    def _sections(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield text between added tokens as (section, None), added tokens as ("", id): leftmost, then longest."""
        start = 0
        while start <= len(text):
            found = [
                (text.find(token.content, start), -len(token.content), token) for token in self._model.added_tokens
            ]
            place, negative_length, token = min(
                (hit for hit in found if hit[0] >= 0), key=lambda hit: hit[:2], default=(-1, 0, None)
            )
            if token is None:
                yield text[start:], None
                return
            yield text[start:place], None
            yield "", token.token_id
            start = place - negative_length

    def _word_ids(self, word: str) -> list[int]:
        """Return the tokens of `word`: from its start always the longest that fits, or the unknown token for all."""
        model = self._model
        if len(word) > model.max_word_chars:
            return [model.unk_id]
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = model.prefix if start else ""
            ends = range(min(len(word), start + self._longest_token), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in model.vocab), None)
            if end is None:
                return [model.unk_id]
            ids.append(model.vocab[prefix + word[start:end]])
            start = end
        return ids


def _fill_template(
    template: tuple[TemplatePiece, ...], first: list[int], second: list[int]
) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    type_ids: list[int] = []
    for piece in template:
        part = {SEQUENCE_A: first, SEQUENCE_B: second}.get(piece.source, [piece.source])
        ids += part
        type_ids += [piece.type_id] * len(part)
    return ids, type_ids


def masked_mean_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write the mean of each row's unmasked token vectors: sum / max(count, 1e-9).

    The formula is that of sentence-transformers' mean pooling (models/Pooling.py), with one difference: a masked vector
    is not read at all, so that a NaN in the padding stays there. NaN and infinity in unmasked vectors propagate. A row
    without tokens gives zeros. Sums are float64.

    Args:
        hidden: float32 (rows, tokens, dim), C-contiguous.
        mask: int64 (rows, tokens), 1 for tokens, 0 for padding.
        out: float32 (rows, dim), C-contiguous, writable, apart from the others.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: Shapes that do not fit, a buffer that is read-only, not contiguous or overlapping, or a mask with
            other values. Nothing was written.
    """
    _checks.mean_buffers(hidden, mask, out)
    for row in range(hidden.shape[0]):
        kept = hidden[row, mask[row] == 1].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            out[row] = (kept.sum(axis=0) / max(len(kept), 1e-9)).astype(np.float32)


def l2_normalize_into(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write x / max(||x||, 1e-12) of each row, the formula of torch.nn.functional.normalize (p=2, dim=1).

    NaN and infinity propagate as in the formula: a NaN makes its row NaN; an infinity makes itself NaN and the rest of
    its row 0. The norm is computed in float64, so that it neither overflows nor underflows.

    Args:
        x: float32 (rows, dim), C-contiguous.
        out: float32 of the same shape, C-contiguous, writable; may be `x` itself.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: Another shape, or a buffer that is read-only, not contiguous, or overlaps partly. Nothing was
            written.
    """
    _checks.normalize_buffers(x, out)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        norms = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
        out[...] = (wide / np.maximum(norms, 1e-12)).astype(np.float32)
