"""The device's way from text to rows of tokens."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import orjson
from edgeonnx_ext import Padding, open_text_encoder

from device_agent.inference.rows import TEXT_INPUTS, TextRows, TokenRows
from edgeonnx.errors import InvalidRequestError, ManifestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx_ext import Truncation

    from device_agent.inference.rows import Ids
    from edgeonnx.spec.manifest import TextProcessing


class TextPath:
    """The tokenizer of a bundle, as its graph needs it; safe in any thread.

    Args:
        tokenizer_json: The bundle's `tokenizer.json`.
        processing: The manifest's processing.
        inputs: Names of the graph's inputs.

    Raises:
        ManifestError: The graph takes an input that text does not give, or the tokenizer cannot be opened.
    """

    def __init__(self, tokenizer_json: bytes, processing: TextProcessing, inputs: Sequence[str]) -> None:
        unknown = [name for name in inputs if name not in TEXT_INPUTS]
        if unknown:
            raise ManifestError(
                "the graph takes an input that text processing does not give",
                where=f"inputs {unknown}",
                expected=f"only {', '.join(TEXT_INPUTS)}",
            )
        self.inputs = tuple(inputs)
        self.processing = processing
        self.padding = Padding(pad_id=processing.pad_id, pad_type_id=processing.pad_type_id)
        try:
            self.vocabulary_size = vocabulary_size(tokenizer_json)
            self._encoder = open_text_encoder(
                tokenizer_json,
                max_length=processing.max_length,
                pad_id=processing.pad_id,
                pad_type_id=processing.pad_type_id,
                prefix=processing.prefix,
                backend=processing.backend,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(
                "the tokenizer cannot be opened",
                where=processing.tokenizer,
                found=f"{type(error).__name__}: {error}",
            ) from None

    @property
    def backend(self) -> str:
        """The tokenizer that does the work, such as `wordpiece-native` or `tokenizers`; see `TextEncoder.backend`."""
        return str(self._encoder.backend)

    @property
    def truncation(self) -> Truncation:
        """How rows are cut that are longer than the model reads."""
        return self._encoder.truncation

    def rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, truncation: Truncation | None = None
    ) -> TextRows:
        """Tokenize: one row a text.

        Args:
            texts: At least one text.
            pairs: The second text of each row, for tasks that take two.
            truncation: How rows are cut this time; None: as the model's tokenizer cuts them.

        Raises:
            InvalidRequestError: A text cannot be encoded (a lone surrogate).
        """
        try:
            return TextRows(self._encoder.tokenize(texts, pairs, truncation=truncation), self.padding)
        except ValueError as error:
            raise InvalidRequestError("a text cannot be encoded", where="text", found=str(error)) from None

    def batch(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> dict[str, Ids]:
        """Every input that text can give, int64 (rows, longest row), padded; for checks. Raises as `rows` does."""
        rows = self.rows(texts, pairs)
        shape = (len(rows.lengths), int(rows.lengths.max()))
        tensors = {name: np.empty(shape, dtype=np.int64) for name in TEXT_INPUTS}
        rows.write(np.arange(shape[0]), tensors)
        return tensors

    def rows_of_tokens(self, rows: Sequence[Sequence[int]]) -> TokenRows:
        """Rows that a client tokenized itself, taken as they are: special tokens are the client's to add."""
        return TokenRows(rows, self.padding)


_open: WeakValueDictionary[tuple[object, ...], TextPath] = WeakValueDictionary()
_opening = threading.Lock()


def open_text_path(tokenizer_json: bytes, processing: TextProcessing, inputs: Sequence[str]) -> TextPath:
    """The text path of a bundle; that of a model that is loaded already, where it is the same.

    Two versions of a model mostly have one tokenizer. To open it is Python's work of some tens of milliseconds, which
    requests to the version that serves would feel. Arguments and errors are those of `TextPath`.
    """
    key = (hashlib.sha256(tokenizer_json).digest(), processing, tuple(inputs))
    with _opening:
        found = _open.get(key)
        if found is None:
            found = _open[key] = TextPath(tokenizer_json, processing, inputs)
        return found


def vocabulary_size(tokenizer_json: bytes) -> int:
    """One more than the largest id that a `tokenizer.json` can give, added tokens included; 0 if it names none."""
    document = orjson.loads(tokenizer_json)
    vocabulary = document["model"].get("vocab", {})
    ids = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
    added = (token["id"] for token in document.get("added_tokens") or ())
    return int(max((max(ids, default=-1), *added))) + 1
