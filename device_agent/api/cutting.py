"""Cutting long texts otherwise than the model's own tokenizer does it: not at all, or on the other side.

A model's tokenizer cuts what is longer than the model reads. Users of text-embeddings-inference may ask for a refusal
instead, or for the end of a text instead of its beginning. Both are rare, so the tokenizer for it is opened when it is
first asked for; a request whose texts are short enough never needs it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from edgeonnx_ext import open_text_encoder

from device_agent.inference.rows import TextRows
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx_ext import TextEncoder

    from device_agent.inference.text import TextPath
    from device_agent.loading import LoadedModel

UNCUT = "uncut"
LEFT = "left"
RIGHT = "right"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a request wants texts that are longer than the model reads.

    Attributes:
        truncate: Cut them; otherwise the request is refused.
        side: Where tokens are lost, "left" or "right"; None: where the model's tokenizer loses them.
    """

    truncate: bool = True
    side: str | None = None


class Encoders:
    """The further tokenizers of the models, each opened once and kept as long as its model; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakKeyDictionary[TextPath, dict[str, TextEncoder]] = WeakKeyDictionary()

    def get(self, loaded: LoadedModel, kind: str) -> TextEncoder:
        """The tokenizer of a model that cuts on the side `kind`, or nothing at all (`UNCUT`)."""
        with self._lock:
            encoders = self._open.setdefault(loaded.text, {})
            if kind not in encoders:
                encoders[kind] = _open(loaded, kind)
            return encoders[kind]


_encoders = Encoders()


def _open(loaded: LoadedModel, kind: str) -> TextEncoder:
    processing = loaded.manifest.processing
    document = loaded.bundle.tokenizer_json()
    if kind != UNCUT:
        # The side is the document's to say, and the only member of this section that counts.
        section = {"direction": kind.title(), "max_length": 0, "strategy": "LongestFirst", "stride": 0}
        document = orjson.dumps({**orjson.loads(document), "truncation": section})
    return open_text_encoder(
        document,
        max_length=MAX_TOKENS if kind == UNCUT else processing.max_length,
        pad_id=processing.pad_id,
        pad_type_id=processing.pad_type_id,
        prefix=processing.prefix,
        backend=processing.backend,
    )


def cut_rows(loaded: LoadedModel, texts: Sequence[str], pairs: Sequence[str] | None, cut: Cut, where: str) -> TextRows:
    """Tokenize as a request wants it.

    Args:
        loaded: The model.
        texts: At least one text.
        pairs: The second text of each pair, or None.
        cut: What happens to rows that are longer than the model reads.
        where: The field that the texts came in.

    Raises:
        InvalidRequestError: A text cannot be encoded, or one is too long and must not be cut.
    """
    rows = loaded.text.rows(texts, pairs)
    longest = loaded.manifest.processing.max_length
    full = np.flatnonzero(rows.lengths >= longest).tolist()
    if not full or (cut.truncate and cut.side is None):
        return rows
    # A row that is full may have been cut, or be just as long as the model reads.
    if cut.truncate and cut.side is not None:
        return TextRows(_encoders.get(loaded, cut.side).tokenize(texts, pairs), loaded.text.padding)
    whole = _encoders.get(loaded, UNCUT).tokenize(
        [texts[row] for row in full], None if pairs is None else [pairs[row] for row in full]
    )
    for row, length in zip(full, whole.lengths, strict=True):
        if length > longest:
            raise InvalidRequestError(
                "the text is longer than the model reads",
                where=f"{where}[{row}]" if len(texts) > 1 else where,
                expected=f"at most {longest} tokens, special tokens included",
                found=str(length),
                hint='shorten it, or send "truncate": true',
            )
    return rows
