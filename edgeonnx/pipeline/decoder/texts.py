"""Which texts and token ids a decoder is compared on: for parity, in company, in the golden set, for the text path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.evaluate.texts import spread
from edgeonnx.pipeline.texts import passages, shipped_texts
from edgeonnx.validate.decoder import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Show = Callable[[Sequence[int]], str]

COMPANY_LENGTHS = (12, 40, 20, 31, 9, 47, 64, 15)
"""Lengths of the sequences that are run alone and in company: no two that share a step are equal."""
GOLDEN_ROWS = 4
GOLDEN_TOKENS = (8, 96)
"""Fewest and most tokens of a golden row: enough for a prompt, a continuation and shared steps, and a cheap replay."""


def parity_rows(tokenize: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
    """Real texts for parity, the longest first."""
    rows = tokenize(passages()[:ROWS])
    return sorted(rows, key=len, reverse=True)


def company_rows(rows: Sequence[Sequence[int]], context_length: int) -> list[list[int]]:
    """Sequences of different lengths, cut out of longer ones; none is longer than the context."""
    chosen = []
    for place, length in enumerate(COMPANY_LENGTHS):
        row = rows[place % len(rows)]
        start = place % 3
        chosen.append(list(row[start : start + min(length, context_length)]))
    return chosen


def golden_rows(lengths: Sequence[int], context_length: int) -> tuple[int, ...]:
    """Rows for the golden set, evenly spread over the lengths.

    Args:
        lengths: Tokens of each text; those without a token cannot be a prompt.
        context_length: Most tokens of a sequence.
    """
    fewest, most = GOLDEN_TOKENS
    usable = [row for row, length in enumerate(lengths) if 0 < length <= min(most, context_length)]
    long = [row for row in usable if lengths[row] >= fewest]
    ordered = sorted(long or usable, key=lambda row: lengths[row])
    places = spread(len(ordered), GOLDEN_ROWS - 1)
    return tuple(sorted({ordered[place] for place in (*places, len(ordered) - 1)}))


def path_texts(special_tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Texts on which the text path is compared: those that ship, and special tokens as a chat template puts them."""
    marked = [f"{token}user\nHow are you?{token}\n" for token in dict.fromkeys(special_tokens.values()) if token]
    return (*shipped_texts(), *passages(), *marked)


def open_show(document: bytes) -> Show:
    """A function that gives the text of some tokens; bytes that are no whole character show as U+FFFD.

    Args:
        document: `tokenizer.json`.
    """
    from edgeonnx_ext import Decoder, DecoderModel, UnknownTokenizerError

    try:
        decoder = Decoder(DecoderModel.from_tokenizer_json(document))
    except UnknownTokenizerError:  # a kind that the compiled decoder leaves to the library
        from tokenizers import Tokenizer

        library = Tokenizer.from_str(document.decode())
        return lambda ids: str(library.decode(list(ids), skip_special_tokens=False))
    return lambda ids: decoder.decode(list(ids), skip_special_tokens=False)
