"""Does the device's text path give the source tokenizer's ids? Decides which path a bundle may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from edgeonnx_ext import TextEncoder, open_text_encoder

from edgeonnx.errors import ParityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx.model.ports import IntTensors


@dataclass(frozen=True, kw_only=True)
class TextPath:
    """The text path that a bundle uses, and why.

    Attributes:
        backend: `wordpiece`, `bpe` or `tokenizers`.
        reason: Why it is not the compiled path, or None.
        texts: Number of texts that were compared.
    """

    backend: str
    reason: str | None
    texts: int

    def to_dict(self) -> dict[str, object]:
        """For the evidence."""
        return {"backend": self.backend, "reason": self.reason, "texts_compared": self.texts, "mismatches": 0}


def choose_text_path(
    document: bytes,
    *,
    max_length: int,
    pad_id: int,
    pad_type_id: int,
    prefix: str,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    expected: Sequence[IntTensors],
) -> TextPath:
    """Choose the fastest text path that gives exactly the source tokenizer's tensors.

    Args:
        document: `tokenizer.json`.
        max_length: Longest row in tokens.
        pad_id: Id of the padding token.
        pad_type_id: Token type id of padding.
        prefix: Text put in front of every text.
        texts: Texts to compare on.
        pairs: Second texts, or None.
        expected: int64 (1, tokens) by input name per row, from the source's own tokenizer.

    Raises:
        ParityError: No path gives the same tensors.
    """
    reason: str | None = None
    for backend in ("auto", "tokenizers"):
        try:
            encoder = open_text_encoder(
                document,
                max_length=max_length,
                pad_id=pad_id,
                pad_type_id=pad_type_id,
                prefix=prefix,
                backend=backend,
            )
        except ValueError as error:  # a broken document
            reason = str(error)
            continue
        difference = _first_difference(encoder, texts, pairs, expected)
        if difference is None:
            kernel = encoder.backend.partition("-")[0]  # the bundle does not care whether it is compiled
            return TextPath(backend=kernel, reason=reason or encoder.reason, texts=len(texts))
        reason = difference
    raise ParityError(
        "no text path gives the ids of the source's tokenizer", found=reason, hint="report it with the tokenizer.json"
    )


def _first_difference(
    encoder: TextEncoder, texts: Sequence[str], pairs: Sequence[str] | None, expected: Sequence[IntTensors]
) -> str | None:
    batch = encoder.encode(texts, pairs)
    arrays = batch.tensors()
    for row, want in enumerate(expected):
        for name, value in want.items():
            if name not in arrays:
                return f"the model takes {name}, which a text path does not give"
            have = arrays[name][row, : batch.lengths[row]]
            if not np.array_equal(have, value[0]):
                return f"row {row}: {name} of {texts[row]!r} are {have.tolist()}, not {value[0].tolist()}"
    return None
