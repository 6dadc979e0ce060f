"""Any Unicode text gives the same ids and spans in the compiled kernel, its twin, and Hugging Face tokenizers."""

from __future__ import annotations

import itertools
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import Truncation, WordPieceModel, WordPieceTokenizer
from edgeonnx_ext.reference.wordpiece import WordPieceTokenizer as PlainTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.texts import bert_tokenizer_json

FLAGS = list(itertools.product([True, False], [True, False], [None, True, False], [True, False]))
# Where context or a table could go wrong: marks of many classes (some kept by strip_accents, some unknown to one of the
# library's tables), decompositions, Hangul syllables and jamo, CJK of both kinds, case pairs, whitespace, controls.
MARKS = "\u0301\u0323\u0334\u0345\u0315\u0344\u034f\u0f73\u0f74\u0901\u093c\u094d\u08d4\u0898"
MARKS += "\u1b44\u1dfb\u302a\u302e\u302f\ua953"
MARKS += "\U0001d165\U0001d166\U0001d16d\U0001d17b\U00011046\U0001e000\U0001e94a\U00016ff0\u20d0\ufe00\ufe0f\ufe20"
LETTERS = "aAzßéÉǅİıΣσςΑάϓK\u212b\u1e9e\u1fbcЙйՖיִ\u0958\u0929ｱﾊﾞ\u0cca\u0dddĲﬁ\u2160Ⓐ\U00010400\U0001d15e\U0001d400"
ASIAN = "가각힣\u1100\u1161\u11a8ㄱ中漢\u3400\U00020000\U0002b820\uf900\ufa0e\U0002f800、。あぱか\u3099"
OTHERS = (
    " \t\n\r\0\x0b\x1c\x7f\x85\xa0\u1680\u2003\u2028\u200b\u200d\u202e\ufeff\ufffd\ufffe\ue000.,!-_'’“¿$+^`|~«\u2060"
)
OTHERS += "\U0001f600\U0001f469\u200d\U0001f469\U0001f3fd\U0001f1e9\u2764\U000e0041"
POOL = MARKS + LETTERS + ASIAN + OTHERS
SPECIALS = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "[mask]", "[", "]", "[CL", "##", "##a"]

texts = st.lists(
    st.one_of(
        st.text(st.sampled_from(POOL), max_size=8),
        st.text(st.sampled_from(MARKS), max_size=6),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        st.sampled_from(SPECIALS),
    ),
    max_size=6,
).map("".join)


@lru_cache(maxsize=len(FLAGS))
def tokenizers_for(flags: tuple[bool, bool, bool | None, bool]) -> tuple[Tokenizer, Any, Any]:
    """Return the library's tokenizer, the kernel in use, and the twin, over a vocabulary that spells POOL."""
    alphabet = POOL + "".join(map(chr, range(33, 127)))
    alphabet += (
        unicodedata.normalize("NFD", alphabet) + alphabet.lower() + unicodedata.normalize("NFD", alphabet).lower()
    )
    clean_text, handle_chinese_chars, strip_accents, lowercase = flags
    data = bert_tokenizer_json(
        clean_text=clean_text,
        handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents,
        lowercase=lowercase,
        alphabet=alphabet,
    )
    library = Tokenizer.from_str(data.decode())
    library.no_padding()
    model = WordPieceModel.from_tokenizer_json(data)
    return library, WordPieceTokenizer(model), PlainTokenizer(model)


def rows(kernel: Any, texts: list[str], pairs: list[str] | None, max_length: int, spans: bool) -> list[list[Any]]:
    tokenized = kernel.tokenize(texts, pairs, truncation=Truncation(max_length=max_length), offsets=spans)
    shape = (tokenized.rows, tokenized.width)
    buffers = [np.full(shape, -1, dtype=np.int64) for _ in range(3)]
    offsets = np.full((*shape, 2), -1, dtype=np.int64)
    tokenized.write_into(*buffers, offsets=offsets if spans else None)
    rows = [[buffer[row, :length].tolist() for buffer in buffers] for row, length in enumerate(tokenized.lengths)]
    if spans:
        for row, length in enumerate(tokenized.lengths):
            rows[row].append([tuple(span) for span in offsets[row, :length].tolist()])
    return rows


def expected_rows(library: Tokenizer, inputs: list[Any], max_length: int) -> list[list[Any]]:
    library.enable_truncation(max_length)
    return [[row.ids, row.attention_mask, row.type_ids, row.offsets] for row in library.encode_batch(inputs)]


@settings(max_examples=200, deadline=None)
@given(flags=st.sampled_from(FLAGS), batch=st.lists(texts, min_size=1, max_size=4), max_length=st.integers(2, 40))
def test_texts_give_the_rows_of_the_library(flags: Any, batch: list[str], max_length: int) -> None:
    library, kernel, twin = tokenizers_for(flags)
    expected = expected_rows(library, batch, max_length)
    assert rows(kernel, batch, None, max_length, True) == expected
    assert rows(kernel, batch, None, max_length, False) == [row[:3] for row in expected]
    assert rows(twin, batch, None, max_length, True) == expected


@settings(max_examples=100, deadline=None)
@given(flags=st.sampled_from(FLAGS), pair=st.tuples(texts, texts), max_length=st.integers(3, 24))
def test_pairs_give_the_rows_of_the_library(flags: Any, pair: tuple[str, str], max_length: int) -> None:
    library, kernel, twin = tokenizers_for(flags)
    expected = expected_rows(library, [pair], max_length)
    assert rows(kernel, [pair[0]], [pair[1]], max_length, True) == expected
    assert rows(kernel, [pair[0]], [pair[1]], max_length, False) == [row[:3] for row in expected]
    assert rows(twin, [pair[0]], [pair[1]], max_length, True) == expected


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(categories=["Cs", "Ll"]), min_size=1, max_size=20))
def test_lone_surrogates_are_refused_where_they_stand(text: str) -> None:
    _, kernel, twin = tokenizers_for(FLAGS[0])
    positions = [index for index, char in enumerate(text) if "\ud800" <= char <= "\udfff"]
    for tokenizer in (kernel, twin):
        if not positions:
            tokenizer.tokenize(["fine", text])
            continue
        with pytest.raises(ValueError, match=rf"texts\[1\]: .* at character {positions[0]}\."):
            tokenizer.tokenize(["fine", text])
