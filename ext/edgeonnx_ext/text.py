"""Text to padded int64 batches: what the build host and the device agent call.

`open_text_encoder` takes a `tokenizer.json` and returns the WordPiece kernel where it knows the tokenizer, and the
`tokenizers` library behind the same interface where it does not; `backend` and `reason` of the result tell which
and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgeonnx_ext import _checks
from edgeonnx_ext._kernels import WordPieceTokenizer
from edgeonnx_ext._reference import Tokenized
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.wordpiece import WordPieceModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_BACKENDS = ("auto", "wordpiece", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class TextBatch:
    """A batch as a BERT-like graph takes it, padded on the right.

    Attributes:
        input_ids: int64 (rows, width).
        attention_mask: int64 (rows, width); 1 for tokens, 0 for padding.
        token_type_ids: int64 (rows, width).
        lengths: int64 (rows,); tokens of each row, special tokens included.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def tensors(self) -> dict[str, NDArray[np.int64]]:
        """The arrays by the names that graphs give their inputs; not copied."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
        }


class TextEncoder(Protocol):
    """Turns texts, or pairs of texts, into batches."""

    @property
    def backend(self) -> str:
        """What tokenizes: "wordpiece-native", "wordpiece-reference" or "tokenizers"."""
        ...

    @property
    def reason(self) -> str | None:
        """Why the `tokenizers` library does it; None for the kernels."""
        ...

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        width: int | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> TextBatch:
        """Encode a batch.

        Args:
            texts: At least one text; the first of each pair. An empty text gives the special tokens alone.
            pairs: The second of each pair, or None.
            width: Width of the arrays; at least the longest row. None: as wide as the longest row.
            pad_to_multiple_of: Round the longest row up to a multiple of this. Not together with `width`.

        Returns:
            The batch, in new arrays.

        Raises:
            TypeError: An argument is not a sequence of str.
            ValueError: No texts, another number of pairs, a lone surrogate (the message names row and position), or a
                width below the longest row.
        """
        ...


class _RaggedBatch(Protocol):
    """What both backends hand to `_fill`."""

    @property
    def rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    def write_into(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        token_type_ids: NDArray[np.int64],
    ) -> None: ...


def _with_prefix(
    texts: Sequence[str], pairs: Sequence[str] | None, prefix: str
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Check the caller's texts, and put the prefix in front of each (not of the second of a pair)."""
    items = _checks.text_tuple(texts)
    if not items:
        raise ValueError("texts: expected at least one text, found none")
    seconds = _checks.pair_tuple(items, pairs)
    if not prefix:
        return items, seconds
    # Positions in messages are those of the caller's text, so surrogates are looked for before anything moves.
    _checks.refuse_surrogates(items, "texts")
    return tuple(prefix + text for text in items), seconds


class _Encoder:
    """A TextEncoder around a function that tokenizes texts that have their prefix."""

    def __init__(
        self,
        tokenize: Callable[[tuple[str, ...], tuple[str, ...] | None], _RaggedBatch],
        prefix: str,
        backend: str,
        reason: str | None,
    ) -> None:
        self._tokenize = tokenize
        self._prefix = prefix
        self.backend = backend
        self.reason = reason

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        width: int | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> TextBatch:
        """Encode a batch; see TextEncoder.encode."""
        tokenized = self._tokenize(*_with_prefix(texts, pairs, self._prefix))
        shape = (tokenized.rows, _padded_width(tokenized.width, width, pad_to_multiple_of))
        batch = TextBatch(
            input_ids=np.empty(shape, dtype=np.int64),
            attention_mask=np.empty(shape, dtype=np.int64),
            token_type_ids=np.empty(shape, dtype=np.int64),
            lengths=tokenized.lengths,
        )
        tokenized.write_into(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return batch


def _padded_width(longest: int, width: int | None, multiple: int | None) -> int:
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


def open_text_encoder(
    tokenizer_json: bytes,
    *,
    max_length: int,
    pad_id: int,
    pad_type_id: int = 0,
    prefix: str = "",
    backend: str = "auto",
) -> TextEncoder:
    """Open a tokenizer.

    Lengths in the document (its truncation and padding) are ignored: `max_length` and the calls decide. Padding is on
    the right. Pairs are truncated longest first.

    Args:
        tokenizer_json: Bytes of a `tokenizer.json`.
        max_length: Most tokens of a row, special tokens included.
        pad_id: Fills `input_ids` behind a row.
        pad_type_id: Fills `token_type_ids` behind a row.
        prefix: Stands before each text, but not before the second of a pair (a model's default prompt).
        backend: "auto" (the kernels, or the `tokenizers` library for what they do not know), "wordpiece" (kernels
            only) or "tokenizers" (library only).

    Returns:
        The encoder; safe to use from several threads.

    Raises:
        UnknownTokenizerError: A feature that the kernels do not know, and `backend` is "wordpiece" or the `tokenizers`
            library is not installed.
        TokenizerDataError: The document is broken.
        ValueError: Another `backend`, or `max_length`, `pad_id` or `pad_type_id` out of range.
    """
    if backend not in _BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, found {backend!r}")
    _checks.refuse_surrogates((prefix,), "prefix")
    pads = {"pad_id": _checks.token_id(pad_id, "pad_id"), "pad_type_id": _checks.token_id(pad_type_id, "pad_type_id")}
    reason = "backend='tokenizers' was asked for"
    if backend != "tokenizers":
        try:
            return _open_wordpiece(WordPieceModel.from_tokenizer_json(tokenizer_json), max_length, pads, prefix)
        except UnknownTokenizerError as error:
            if backend == "wordpiece":
                raise
            reason = error.reason
    return _open_tokenizers(tokenizer_json, max_length, pads, prefix, reason)


def _open_wordpiece(model: WordPieceModel, max_length: int, pads: dict[str, int], prefix: str) -> TextEncoder:
    limit = _checks.length_limit(max_length, model.special_count(pair=False))
    kernel = WordPieceTokenizer(model, **pads)
    native = WordPieceTokenizer.__module__ == "edgeonnx_ext._wordpiece"
    return _Encoder(
        lambda texts, pairs: kernel.tokenize(texts, pairs, limit),
        prefix,
        "wordpiece-native" if native else "wordpiece-reference",
        None,
    )


def _open_tokenizers(
    tokenizer_json: bytes, max_length: int, pads: dict[str, int], prefix: str, reason: str
) -> TextEncoder:
    """Open the `tokenizers` library on the document."""
    try:
        import tokenizers  # only here: a device whose tokenizer the kernels know does not need it
    except ImportError as error:
        raise UnknownTokenizerError(
            f"{reason}; the kernels do not do this, and the library that does is not installed: pip install tokenizers"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerDataError(f"tokenizer.json: the tokenizers library refuses it: {error}") from error
    limit = _checks.length_limit(max_length, tokenizer.num_special_tokens_to_add(is_pair=False))
    # The side is the tokenizer's, not the caller's: it decides which ids of a long text remain.
    side = (tokenizer.truncation or {}).get("direction", "right")
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit, strategy="longest_first", direction=side)
    tokenize = _LibraryTokenizer(tokenizer, limit, **pads)
    return _Encoder(tokenize, prefix, "tokenizers", reason)


class _LibraryTokenizer:
    """`tokenizers.Tokenizer`, with truncation enabled, as a function from texts to a ragged batch."""

    def __init__(self, tokenizer: Any, max_length: int, *, pad_id: int, pad_type_id: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._pad_id = pad_id
        self._pad_type_id = pad_type_id

    def __call__(self, texts: tuple[str, ...], pairs: tuple[str, ...] | None) -> _RaggedBatch:
        _checks.length_limit(self._max_length, self._tokenizer.num_special_tokens_to_add(is_pair=pairs is not None))
        _checks.refuse_surrogates(texts, "texts")
        _checks.refuse_surrogates(pairs or (), "pairs")
        inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        encodings = self._tokenizer.encode_batch(inputs)
        ids = [encoding.ids for encoding in encodings]
        return Tokenized(ids, [encoding.type_ids for encoding in encodings], self._pad_id, self._pad_type_id)
