"""Rows of a batch as our tokenizers write them, and as the `tokenizers` library gives them: as plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from edgeonnx_ext.layout import Padding, Truncation
from tokenizers import Tokenizer

NAMES = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "offsets")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a batch is tokenized and written.

    Attributes:
        truncation: As the kernels take it, or None.
        special_tokens: Whether the template is applied.
        padding: What fills the rows up to the longest.
        multiple: The width is rounded up to a multiple of this; or None.
        dtype: Of the buffers.
        threads: Among which the kernels divide the texts.
    """

    truncation: Truncation | None = None
    special_tokens: bool = True
    padding: Padding = field(default_factory=Padding)
    multiple: int | None = None
    dtype: type = np.int64
    threads: int = 1


PLAIN = Options()


def written_rows(
    kernel: Any, texts: Sequence[str], pairs: Sequence[str] | None, options: Options = PLAIN
) -> dict[str, list[Any]]:
    """Every buffer that our tokenizer writes, by name, as lists; the texts' rows first, then what overflowed.

    Each buffer is a row and a place larger than what the kernel gets, and full of -7: what stands around must stay.
    """
    tokenized = kernel.tokenize(
        texts,
        pairs,
        truncation=options.truncation,
        special_tokens=options.special_tokens,
        offsets=True,
        threads=options.threads,
    )
    multiple = options.multiple or 1
    width = -(-tokenized.width // multiple) * multiple
    whole = {
        name: np.full((tokenized.rows + 2, width, 2)[: 3 if name == "offsets" else 2], -7, dtype=options.dtype)
        for name in NAMES
    }
    parts = {name: buffer[1:-1] for name, buffer in whole.items()}
    ids = parts.pop("input_ids")
    tokenized.write_into(ids, **parts, padding=options.padding)
    for name, buffer in whole.items():
        assert (buffer[[0, -1]] == -7).all(), f"{name}: written outside"
    assert tokenized.sources.tolist() == sorted(tokenized.sources.tolist())
    return {
        "sources": tokenized.sources.tolist(),
        "lengths": tokenized.lengths.tolist(),
        **{name: whole[name][1:-1].tolist() for name in NAMES},
    }


def library_rows(
    library: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, options: Options = PLAIN
) -> dict[str, list[Any]]:
    """The same from the library, which cuts and pads by itself."""
    library.no_truncation()
    library.no_padding()
    cut = options.truncation
    if cut is not None:
        library.enable_truncation(cut.max_length, stride=cut.stride, strategy=cut.strategy, direction=cut.side)
    padding = options.padding
    library.enable_padding(
        direction=padding.side,
        pad_id=padding.pad_id,
        pad_type_id=padding.pad_type_id,
        pad_to_multiple_of=options.multiple,
    )
    inputs: Any = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
    encodings = library.encode_batch(inputs, add_special_tokens=options.special_tokens)
    rows = [
        (source, row)
        for source, encoding in enumerate(encodings)
        for row in (encoding, *(encoding.overflowing if cut is not None and cut.overflow else ()))
    ]
    return {
        "sources": [source for source, _ in rows],
        "lengths": [sum(row.attention_mask) for _, row in rows],
        "input_ids": [row.ids for _, row in rows],
        "attention_mask": [row.attention_mask for _, row in rows],
        "token_type_ids": [row.type_ids for _, row in rows],
        "special_tokens_mask": [row.special_tokens_mask for _, row in rows],
        "offsets": [[list(offset) for offset in row.offsets] for _, row in rows],
    }


def assert_same(found: dict[str, list[Any]], expected: dict[str, list[Any]], what: str, inputs: object) -> None:
    """Fail with the first row of a buffer that differs, and the inputs."""
    for name, wanted in expected.items():
        if found[name] == wanted:
            continue
        pairs = enumerate(zip_longest(found[name], wanted))
        row, (ours, theirs) = next((row, pair) for row, pair in pairs if pair[0] != pair[1])
        raise AssertionError(f"{what}: row {row} of {name}\nfound    {ours}\nexpected {theirs}\nof {inputs!a}")
