"""Text to padded batches: what the build host and the device agent call.

`open_text_encoder` takes a `tokenizer.json` and returns an encoder that uses the compiled kernels where they know the
tokenizer, and the `tokenizers` library where they do not; its `backend` and `reason` tell which and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edgeonnx_ext import _checks, _document
from edgeonnx_ext._kernels import BpeTokenizer, WordPieceTokenizer
from edgeonnx_ext.bpe import BpeModel
from edgeonnx_ext.errors import UnknownTokenizerError
from edgeonnx_ext.layout import Padding, Truncation, padded_width
from edgeonnx_ext.library import LibraryTokenizer
from edgeonnx_ext.wordpiece import WordPieceModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx_ext.layout import Side, Strategy

BACKENDS = ("auto", "wordpiece", "bpe", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class TextBatch:
    """A batch as a graph takes it, padded.

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


@dataclass(frozen=True, kw_only=True)
class EncodedRows:
    """What `TextEncoder.encode_into` wrote.

    Attributes:
        lengths: int64 (rows,); tokens of each row of the buffers, special tokens included.
        order: int64 (rows,); which text stands in each row of the buffers.
    """

    lengths: NDArray[np.int64]
    order: NDArray[np.int64]


class Tokenized(Protocol):
    """The ragged rows that every backend gives; see `reference.rows.Tokenized`."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): tokens of each row."""
        ...

    @property
    def sources(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): the text that each row comes from."""
        ...

    def order_by_length(self) -> NDArray[np.int64]:
        """A new int64 array (rows,): the rows from longest to shortest."""
        ...

    def write_into(
        self,
        input_ids: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
        token_type_ids: NDArray[Any] | None = None,
        *,
        special_tokens_mask: NDArray[Any] | None = None,
        offsets: NDArray[Any] | None = None,
        padding: Padding = ...,
        rows: NDArray[np.int64] | Sequence[int] | None = None,
    ) -> None:
        """Write rows, padded, into the caller's buffers."""
        ...


class _Tokenizer(Protocol):
    def tokenize(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: Truncation | None = None,
        special_tokens: bool = True,
        offsets: bool = False,
        threads: int = 1,
    ) -> Tokenized: ...


class TextEncoder:
    """Turns texts, or pairs of texts, into batches; safe to use from several threads.

    Made by `open_text_encoder`.

    Attributes:
        backend: What tokenizes: "wordpiece-native", "wordpiece-reference", "bpe-native", "bpe-reference" or
            "tokenizers".
        reason: Why the `tokenizers` library does it; None for the kernels.
        truncation: How rows are cut that are too long.
    """

    def __init__(
        self,
        tokenizer: _Tokenizer,
        truncation: Truncation,
        padding: Padding,
        *,
        prefix: str,
        backend: str,
        reason: str | None,
    ) -> None:
        self._tokenizer = tokenizer
        self.truncation = truncation
        self._padding = padding
        self._prefix = prefix
        self.backend = backend
        self.reason = reason

    def tokenize(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: Truncation | None = None,
        offsets: bool = False,
        threads: int = 1,
    ) -> Tokenized:
        """Tokenize a batch; its rows can then be written in any order, and into several buffers.

        Args:
            texts: At least one text; the first of each pair. An empty text gives the special tokens alone.
            pairs: The second of each pair, or None.
            truncation: How rows are cut this time; None: as the encoder was opened.
            offsets: Whether the characters of each token are kept. They count from the start of the prefix.
            threads: Most threads among which the texts are divided.

        Returns:
            The ragged rows.

        Raises:
            TypeError: An argument is not a sequence of str.
            ValueError: No texts, another number of pairs, or a lone surrogate (the message names row and position).
        """
        items, seconds = self._with_prefix(texts, pairs)
        return self._tokenizer.tokenize(
            items, seconds, truncation=truncation or self.truncation, offsets=offsets, threads=threads
        )

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        width: int | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> TextBatch:
        """Encode a batch into new arrays.

        Args:
            texts: As for `tokenize`.
            pairs: As for `tokenize`.
            width: Width of the arrays; at least the longest row. None: as wide as the longest row.
            pad_to_multiple_of: Round the longest row up to a multiple of this. Not together with `width`.

        Raises:
            TypeError: As for `tokenize`.
            ValueError: As for `tokenize`; or a width below the longest row.
        """
        tokenized = self.tokenize(texts, pairs)
        shape = (tokenized.rows, padded_width(tokenized.width, width, pad_to_multiple_of))
        batch = TextBatch(
            input_ids=np.empty(shape, dtype=np.int64),
            attention_mask=np.empty(shape, dtype=np.int64),
            token_type_ids=np.empty(shape, dtype=np.int64),
            lengths=tokenized.lengths,
        )
        tokenized.write_into(batch.input_ids, batch.attention_mask, batch.token_type_ids, padding=self._padding)
        return batch

    def encode_into(
        self,
        texts: Sequence[str],
        input_ids: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
        token_type_ids: NDArray[Any] | None = None,
        *,
        pairs: Sequence[str] | None = None,
        special_tokens_mask: NDArray[Any] | None = None,
        offsets: NDArray[Any] | None = None,
        sort_by_length: bool = False,
        threads: int = 1,
    ) -> EncodedRows:
        """Encode a batch into the caller's buffers; all are int64 or all int32, C-contiguous and writable.

        Args:
            texts: As for `tokenize`.
            input_ids: (rows, as wide as the longest row or more); a row for each text.
            attention_mask: The same shape, or None.
            token_type_ids: The same shape, or None.
            pairs: As for `tokenize`.
            special_tokens_mask: The same shape, or None; 1 for special tokens and padding.
            offsets: (rows, the same width, 2), or None; start and end of each token in characters of the caller's text
                (0 and 0 for special tokens, padding, and the prefix).
            sort_by_length: Write the longest row first, and so on; `order` of the result tells which is which.
            threads: Most threads among which the texts are divided.

        Returns:
            Lengths and order of the rows.

        Raises:
            TypeError: As for `tokenize`; or a buffer that is not an ndarray of int64 or int32.
            ValueError: As for `tokenize`; a buffer that is too small, read-only, not contiguous, or overlaps another;
                or offsets of pairs with a prefix. Nothing was written.
        """
        if offsets is not None and self._prefix and pairs is not None:
            raise ValueError(
                "offsets: expected texts alone where a prefix is put in front of them, found pairs. Open the tokenizer "
                "without a prefix."
            )
        tokenized = self.tokenize(texts, pairs, offsets=offsets is not None, threads=threads)
        order = tokenized.order_by_length() if sort_by_length else np.arange(tokenized.rows, dtype=np.int64)
        tokenized.write_into(
            input_ids,
            attention_mask,
            token_type_ids,
            special_tokens_mask=special_tokens_mask,
            offsets=offsets,
            padding=self._padding,
            rows=order,
        )
        if offsets is not None and self._prefix:
            np.maximum(offsets - len(self._prefix), 0, out=offsets)
        return EncodedRows(lengths=tokenized.lengths[order], order=order)

    def _with_prefix(
        self, texts: Sequence[str], pairs: Sequence[str] | None
    ) -> tuple[Sequence[str], Sequence[str] | None]:
        """Put the prefix in front of each text (not of the second of a pair)."""
        if not self._prefix:
            if len(texts) == 0:
                raise ValueError("texts: expected at least one text, found none")
            return texts, pairs
        items = _checks.text_tuple(texts)
        if not items:
            raise ValueError("texts: expected at least one text, found none")
        # Positions in messages are those of the caller's text, so surrogates are looked for before anything moves.
        _checks.refuse_surrogates(items, "texts")
        return tuple(self._prefix + text for text in items), _checks.pair_tuple(items, pairs)


def open_text_encoder(
    tokenizer_json: bytes,
    *,
    max_length: int,
    pad_id: int,
    pad_type_id: int = 0,
    prefix: str = "",
    backend: str = "auto",
    strategy: Strategy = "longest_first",
    padding_side: Side = "right",
) -> TextEncoder:
    """Open a tokenizer.

    Lengths in the document (its truncation and padding) are ignored: `max_length` and the calls decide. The side on
    which a long text is cut is the document's, as it decides which ids remain.

    Args:
        tokenizer_json: Bytes of a `tokenizer.json`.
        max_length: Most tokens of a row, special tokens included.
        pad_id: Fills `input_ids` beside a row.
        pad_type_id: Fills `token_type_ids` beside a row.
        prefix: Stands before each text, but not before the second of a pair (a model's default prompt).
        backend: "auto" (the kernels, or the `tokenizers` library for what they do not know), "wordpiece" or "bpe"
            (that kernel only) or "tokenizers" (library only).
        strategy: Which text of a pair is cut.
        padding_side: Where padding stands.

    Returns:
        The encoder.

    Raises:
        UnknownTokenizerError: A feature that the kernels do not know, and `backend` asks for a kernel or the
            `tokenizers` library is not installed.
        TokenizerDataError: The document is broken.
        ValueError: Another `backend`, or `max_length`, `pad_id` or `pad_type_id` out of range.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, found {backend!r}")
    _checks.refuse_surrogates((prefix,), "prefix")
    padding = Padding(pad_id=pad_id, pad_type_id=pad_type_id, side=padding_side)
    reason = "backend='tokenizers' was asked for"
    tokenizer: _Tokenizer
    if backend != "tokenizers":
        try:
            model = read_model(tokenizer_json, backend)
        except UnknownTokenizerError as error:
            if backend != "auto":
                raise
            reason = error.reason
        else:
            truncation = _truncation(max_length, strategy, model.truncation_side, model.special_count(pair=False))
            tokenizer, name = open_kernel(model)
            return TextEncoder(tokenizer, truncation, padding, prefix=prefix, backend=name, reason=None)
    library = LibraryTokenizer(tokenizer_json, reason)
    truncation = _truncation(max_length, strategy, library.truncation_side, library.special_count(pair=False))
    return TextEncoder(library, truncation, padding, prefix=prefix, backend="tokenizers", reason=reason)


def read_model(tokenizer_json: bytes, backend: str = "auto") -> WordPieceModel | BpeModel:
    """Read the description of a tokenizer that the kernels know.

    Args:
        tokenizer_json: Bytes of a `tokenizer.json`.
        backend: "wordpiece" or "bpe" to accept that kind only; "auto" for any.

    Raises:
        UnknownTokenizerError: A feature that the kernels do not do exactly as the `tokenizers` library does.
        TokenizerDataError: The document is broken.
    """
    root = _document.parse(tokenizer_json)
    kind = _document.get_object(root, "model", "").get("type")
    if kind == "WordPiece" and backend in ("auto", "wordpiece"):
        return WordPieceModel.from_document(root)
    if kind == "BPE" and backend in ("auto", "bpe"):
        return BpeModel.from_document(root)
    raise UnknownTokenizerError(f"model type {kind!r} at model")


def open_kernel(model: WordPieceModel | BpeModel) -> tuple[_Tokenizer, str]:
    """Return the kernel for a model, and its name: "wordpiece-native", "bpe-reference", and so on."""
    kernel: _Tokenizer = WordPieceTokenizer(model) if isinstance(model, WordPieceModel) else BpeTokenizer(model)
    kind = "reference" if ".reference." in type(kernel).__module__ else "native"
    return kernel, f"{'wordpiece' if isinstance(model, WordPieceModel) else 'bpe'}-{kind}"


def _truncation(max_length: int, strategy: Strategy, side: Side, specials: int) -> Truncation:
    truncation = Truncation(max_length=max_length, strategy=strategy, side=side)
    truncation.budget(specials)
    return truncation
