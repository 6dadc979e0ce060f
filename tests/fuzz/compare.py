"""The large comparisons: random strings, and every code point, ours against the `tokenizers` library."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from tests.fuzz import documents
from tests.fuzz.strings import random_text
from tests.support.texts import vader_texts
from tests.support.tokenizers import qwen_bpe_json

BATCH = 4000
SHOWN = 5


def open_kernel(data: bytes) -> Any:
    """The tokenizer in use (compiled, where it is) for a document, WordPiece or BPE."""
    from edgeonnx_ext import text

    return text.open_kernel(text.read_model(data))[0]


def batches(seed: int, count: int, contents: Sequence[str]) -> Iterator[list[str]]:
    """`count` random strings; string i follows from `seed + i`, as the attempts of the targets do."""
    for start in range(seed, seed + count, BATCH):
        stop = min(start + BATCH, seed + count)
        yield [random_text(random.Random(number), contents) for number in range(start, stop)]


def mismatches(kernel: Any, library: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Which texts have other ids or offsets than the library gives."""
    tokenized = kernel.tokenize(texts, offsets=True)
    ids = np.zeros((tokenized.rows, tokenized.width), dtype=np.int32)
    offsets = np.zeros((tokenized.rows, tokenized.width, 2), dtype=np.int32)
    tokenized.write_into(ids, offsets=offsets)
    encodings = library.encode_batch(texts)
    lengths = np.array([len(encoding) for encoding in encodings])
    kept = np.arange(tokenized.width) < tokenized.lengths[:, None]
    if np.array_equal(lengths, tokenized.lengths):
        expected_ids = _flat(encodings, lambda encoding: encoding.ids)
        expected_offsets = _flat(encodings, lambda encoding: chain.from_iterable(encoding.offsets))
        if np.array_equal(ids[kept], expected_ids) and np.array_equal(offsets[kept].ravel(), expected_offsets):
            return []
    return [
        row
        for row, encoding in enumerate(encodings)
        if ids[row, kept[row]].tolist() != encoding.ids
        or offsets[row, kept[row]].tolist() != [list(offset) for offset in encoding.offsets]
    ]


def _flat(encodings: Sequence[Encoding], read: Callable[[Encoding], Any]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(map(read, encodings)), dtype=np.int64)


def code_points() -> Iterator[list[str]]:
    """Every code point but the surrogates: alone, between two letters, and behind an apostrophe."""
    for start in range(0, 0x110000, BATCH):
        chars = [chr(code) for code in range(start, min(start + BATCH, 0x110000)) if not 0xD800 <= code < 0xE000]
        for before, behind in (("", ""), ("a", "b"), ("'", "")):
            if chars:
                yield [before + char + behind for char in chars]


def compare(title: str, texts_for: Callable[[Tokenizer], Iterator[list[str]]]) -> bool:
    """Compare ids and offsets for every tokenizer; print mismatches, and return whether none is.

    Args:
        title: What the texts are, for the line that is printed.
        texts_for: Batches of texts for one of the tokenizers.
    """
    total = 0
    for name, data in {**documents.large_documents(), "qwen2": qwen_bpe_json(vader_texts())}.items():
        begin = time.monotonic()
        library = Tokenizer.from_str(data.decode())
        library.no_padding()
        library.no_truncation()
        kernel = open_kernel(data)
        wrong = count = 0
        for texts in texts_for(library):
            for row in mismatches(kernel, library, texts):
                wrong += 1
                if wrong <= SHOWN:
                    print(f"  {name}, {title} {count + row}: {texts[row]!a}")
            count += len(texts)
        print(f"{name:<12}{count:>9} {title}   {wrong} mismatches   {time.monotonic() - begin:.0f} s", flush=True)
        total += wrong
    return not total


def compare_code_points() -> bool:
    """Compare every code point in three contexts."""
    return compare("code points in context", lambda _: code_points())


def compare_strings(seed: int, count: int) -> bool:
    """Compare `count` random strings; the number of one that differs is the seed that makes it again, less `seed`."""
    return compare("strings", lambda library: batches(seed, count, documents.added_contents(library)))
