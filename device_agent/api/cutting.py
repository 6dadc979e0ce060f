"""Cutting long texts otherwise than the model's own tokenizer does it: not at all, or on the other side.

A model's tokenizer cuts what is longer than the model reads. Users of text-embeddings-inference may ask for a refusal
instead, or for the end of a text instead of its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.inference.rows import TextRows
    from device_agent.models.loaded import LoadedEncoder

    Side = Literal["left", "right"]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a request wants texts that are longer than the model reads.

    Attributes:
        truncate: Cut them; otherwise the request is refused.
        side: Where tokens are lost, "left" or "right"; None: where the model's tokenizer loses them.
    """

    truncate: bool = True
    side: Side | None = None


def cut_rows(
    loaded: LoadedEncoder, texts: Sequence[str], pairs: Sequence[str] | None, cut: Cut, where: str
) -> TextRows:
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
        return loaded.text.rows(texts, pairs, truncation=replace(loaded.text.truncation, side=cut.side))
    whole = loaded.text.rows(
        [texts[row] for row in full],
        None if pairs is None else [pairs[row] for row in full],
        truncation=replace(loaded.text.truncation, max_length=MAX_TOKENS),
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
