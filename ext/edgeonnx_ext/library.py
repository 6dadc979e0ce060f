"""The `tokenizers` library behind the interface of the kernels, for what they do not know."""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Any

from edgeonnx_ext import _checks, _checks_rows
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.reference.rows import Columns, Tokenized

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgeonnx_ext.layout import Side, Truncation


class LibraryTokenizer:
    """`tokenizers.Tokenizer` with the interface of `reference.rows.Tokenizer`.

    Args:
        tokenizer_json: Bytes of a `tokenizer.json`.
        reason: Why the kernels do not do it, for the message if the library is not there.

    Raises:
        UnknownTokenizerError: The library is not installed.
        TokenizerDataError: The library refuses the document.
    """

    def __init__(self, tokenizer_json: bytes, reason: str) -> None:
        try:
            import tokenizers  # only here: a device whose tokenizer the kernels know does not need it
        except ImportError as error:
            raise UnknownTokenizerError(
                f"{reason}; the kernels do not do this, and the library that does is not installed: "
                "pip install tokenizers"
            ) from error
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(tokenizer_json.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerDataError(f"tokenizer.json: the tokenizers library refuses it: {error}") from error
        self.truncation_side: Side = "left" if _direction(self._tokenizer.truncation) == "left" else "right"
        self._tokenizer.no_padding()
        self._lock = threading.Lock()

    def special_count(self, *, pair: bool) -> int:
        """Return how many tokens the template adds to a text (or to a pair)."""
        return int(self._tokenizer.num_special_tokens_to_add(is_pair=pair))

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
        """Tokenize texts, or pairs of texts; see `reference.rows.Tokenizer.tokenize`.

        `threads` is checked and otherwise left to the library (TOKENIZERS_PARALLELISM).
        """
        items = _checks.text_tuple(texts)
        seconds = _checks.pair_tuple(items, pairs)
        specials = self.special_count(pair=seconds is not None) if special_tokens else 0
        if truncation is not None:
            truncation.check_pairs(pairs=seconds is not None)
            truncation.budget(specials)
        _checks_rows.thread_count(threads)
        _checks.refuse_surrogates(items, "texts")
        _checks.refuse_surrogates(seconds or (), "pairs")
        inputs = list(items) if seconds is None else list(zip(items, seconds, strict=True))
        encodings = self._encode(inputs, truncation, special_tokens=special_tokens)
        rows = chain.from_iterable(
            _rows_of(encoding, source, overflow=truncation is not None and truncation.overflow)
            for source, encoding in enumerate(encodings)
        )
        return Tokenized(list(rows), has_offsets=offsets)

    def _encode(self, inputs: list[Any], truncation: Truncation | None, *, special_tokens: bool) -> list[Any]:
        with self._lock:  # the library keeps its truncation in the tokenizer, which several threads share
            self._set_truncation(truncation)
            try:
                encodings: list[Any] = self._tokenizer.encode_batch(inputs, add_special_tokens=special_tokens)
            except BaseException as error:  # a Rust panic is a BaseException
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                raise ValueError(f"the tokenizers library cannot tokenize these texts: {error}") from error
        return encodings

    def _set_truncation(self, truncation: Truncation | None) -> None:
        if truncation is None:
            self._tokenizer.no_truncation()
            return
        self._tokenizer.enable_truncation(
            truncation.max_length, stride=truncation.stride, strategy=truncation.strategy, direction=truncation.side
        )


def _direction(truncation: dict[str, Any] | None) -> str:
    return str((truncation or {}).get("direction", "right")).lower()


def _rows_of(encoding: Any, source: int, *, overflow: bool) -> Iterable[Columns]:
    for part in (encoding, *(encoding.overflowing if overflow else ())):
        yield Columns(
            ids=part.ids,
            type_ids=part.type_ids,
            specials=part.special_tokens_mask,
            offsets=part.offsets,
            source=source,
        )
