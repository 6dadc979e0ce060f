"""WordPiece: ids and spans against what the `tokenizers` library gives."""

from __future__ import annotations

import gc
import threading
import time
import unicodedata
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import Truncation, WordPieceModel
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.processors import RobertaProcessing

from tests.support.texts import bert_tokenizer_json, minilm_tokenizer_json, vader_texts

Rows = list[tuple[list[int], list[tuple[int, int]]]]

NASTY = [
    "",
    " ",
    " \t\r\n\u2003 ",
    "\0",
    "a\0b",
    "\ufffd\u200b\ufeff",
    "hello world",
    "[CLS] hello [SEP][MASK]",
    "a[MASK]b [mask] [MAS [PAD]] [[UNK]]",
    "x" * 100,
    "x" * 101,
    "x" * 5000 + " end",
    "e\u0301\u0323 e\u0323\u0301 \u1e69 s\u0307\u0323",
    "a\u302e\U0001d165 a\U0001d165\u302e a\u302e\u0901\U0001d165",
    "\u0344\u0f73\u0f74 \u0340\u0341",
    "각 한국어 \u1100\u1161\u11a8 가\u11a8",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "中文字符mixed漢字 \uf900\U0002f800 \U0002b820",
    "שָׁלוֹם עולם مرحبا بِالعالم",
    "İstanbul ISTANBUL ıi ΟΔΟΣ ὈΔΥΣΣΕΎΣ ẞß Ǆǅǆ",
    "don't \u2019tis \u00bfqu\u00e9? $5.00 a+b=c ~`^|",
    "\U000e0041\ue000\U0010ffff\ufdd0\x85\x1c",
    "ﬁ Ⅳ ① ½ ｆｕｌｌｗｉｄｔｈ ｶﾞ",
]


@lru_cache(maxsize=32)
def library(data: bytes, max_length: int | None = None) -> Tokenizer:
    """The library's tokenizer; tests share it, and so leave it as it is."""
    tokenizer = Tokenizer.from_str(data.decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    return tokenizer


def kernel_of(twin: SimpleNamespace, data: bytes) -> Any:
    return twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data))


def expected_rows(tokenizer: Tokenizer, texts: list[str]) -> Rows:
    return [(row.ids, row.offsets) for row in tokenizer.encode_batch(texts)]


def rows_of(kernel: Any, texts: list[str], max_length: int | None = None) -> Rows:
    """The ids and spans of each text; tokenizing without spans, which takes other ways, must give the same ids."""
    truncation = None if max_length is None else Truncation(max_length=max_length)
    with_spans = kernel.tokenize(texts, truncation=truncation, offsets=True)
    shape = (with_spans.rows, with_spans.width)
    ids, spans = np.full(shape, -1, dtype=np.int64), np.full((*shape, 2), -1, dtype=np.int64)
    with_spans.write_into(ids, offsets=spans)
    for _ in range(2):  # the second time from the cache
        alone = kernel.tokenize(texts, truncation=truncation)
        again = np.full(shape, -1, dtype=np.int64)
        alone.write_into(again)
        np.testing.assert_array_equal(again, ids)
    return [
        (ids[row, :length].tolist(), [tuple(span) for span in spans[row, :length].tolist()])
        for row, length in enumerate(with_spans.lengths)
    ]


def differing(texts: list[str], ours: Rows, theirs: Rows) -> list[str]:
    return [text for text, left, right in zip(texts, ours, theirs, strict=True) if left != right]


def spelling_tokenizer(data: bytes, tokens: list[str], **options: Any) -> bytes:
    """The tokenizer of `data` with a vocabulary of these tokens from id 1000 on, beside the special ones."""
    tokenizer = Tokenizer.from_str(data.decode())
    vocab = {token: tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    vocab.update({token: 1000 + index for index, token in enumerate(tokens)})
    tokenizer.model = WordPiece(vocab, unk_token="[UNK]", **options)
    return tokenizer.to_str().encode()


def spelling_json(step: int, *, strip_accents: bool) -> bytes:
    """A tokenizer that spells every `step`-th assigned character, as it is, decomposed, and lower-cased."""
    codes = range(0, 0x110000, step)
    chars = "ab" + "".join(char for char in map(chr, codes) if unicodedata.category(char) not in {"Cn", "Cs", "Co"})
    alphabet = chars + unicodedata.normalize("NFD", chars) + chars.lower()
    return bert_tokenizer_json(strip_accents=strip_accents, alphabet=alphabet)


@lru_cache(maxsize=1)
def expected_rows_of_the_data_set() -> Rows:
    return expected_rows(library(minilm_tokenizer_json(), 256), vader_texts())


def code_point_texts(step: int) -> list[str]:
    """Every `step`-th code point, each alone between spaces and between two letters; some dozens in a text."""
    chars = [chr(code) for code in range(0, 0x110000, step) if not 0xD800 <= code < 0xE000]
    alone = [" ".join(chars[start : start + 48]) for start in range(0, len(chars), 48)]
    between = [" ".join(f"a{char}b" for char in chars[start : start + 48]) for start in range(0, len(chars), 48)]
    return alone + between


def test_all_texts_of_the_data_set(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    texts = vader_texts()
    assert len(texts) == 23_703
    kernel = twin.WordPieceTokenizer(minilm)
    step = 1 if twin.kind == "compiled" else 200
    ours = rows_of(kernel, texts[::step], 256)
    assert differing(texts[::step], ours, expected_rows_of_the_data_set()[::step]) == []


@pytest.mark.parametrize("strip_accents", [True, False])
def test_many_code_points(twin: SimpleNamespace, strip_accents: bool) -> None:
    """The vocabulary spells, so that no difference hides behind the unknown token.

    `python -m tests.fuzz.run code-points` takes every one of MiniLM.
    """
    step = (11 if strip_accents else 37) if twin.kind == "compiled" else 311
    data = spelling_json(step, strip_accents=strip_accents)
    texts = code_point_texts(step)
    assert differing(texts, rows_of(kernel_of(twin, data), texts), expected_rows(library(data), texts)) == []


@pytest.mark.parametrize("flags", [{}, {"lowercase": False}, {"clean_text": False, "handle_chinese_chars": False}])
@pytest.mark.parametrize("max_length", [3, None])
def test_nasty_texts(twin: SimpleNamespace, flags: dict[str, bool], max_length: int | None) -> None:
    data = bert_tokenizer_json(**flags)
    assert rows_of(kernel_of(twin, data), NASTY, max_length) == expected_rows(library(data, max_length), NASTY)


def test_words_and_sections_of_every_length(twin: SimpleNamespace, minilm_json: bytes) -> None:
    """Letters are looked at 64 at a time, parts are looked up 32 at a time, keys have 8, 16 and 32 bytes."""
    kernel = kernel_of(twin, minilm_json)
    long = [(start * 9)[:count] for start in ("Internationalization", "something") for count in range(1, 37)]
    words = ["ab" * count for count in range(1, 36)] + ["Le" * 33, "z" * 64, *long, "Z9" * 40, "aé" * 9, "e\x01f" * 12]
    texts = [f"{' ' * shift}{word} {word}.{word}" for word in words for shift in (0, 1, 7)]
    texts += ["the " * count + "thex" for count in range(61, 70)] + ["a." * count for count in range(14, 35)]
    texts += ["x" * count + " unaffable" for count in range(50, 70)]
    wide = [f"\u201c{text}\u201d" for text in texts] + [f"\U0001f600{text}" for text in texts]
    wide += [text.replace("a", "\u0430") for text in texts]
    for batch in (texts, wide) if twin.kind == "compiled" else (texts[::7], wide[::19]):
        assert differing(batch, rows_of(kernel, batch), expected_rows(library(minilm_json), batch)) == []


def test_words_whose_bytes_are_the_same_are_kept_apart(twin: SimpleNamespace, minilm_json: bytes) -> None:
    """In UTF-16, U+6261 is the bytes of "ab"; and without clean_text, "a\\0b\\0" is the UTF-16 of "ab"."""
    pairs = [("\u6261\u0431", "ab1\u0004"), ("\u0161\u0162", "a\x01b\x01"), ("\u0061\u0431", "a\x001\x04")]
    data = bert_tokenizer_json(clean_text=False, handle_chinese_chars=False)
    kernel = kernel_of(twin, data)
    for first, second in pairs:
        texts = [first, second, first, f"{first} {second}"]
        assert rows_of(kernel, texts) == expected_rows(library(data), texts)


def test_upper_case_stays_where_the_model_keeps_it(twin: SimpleNamespace, minilm_json: bytes) -> None:
    data = spelling_tokenizer(bert_tokenizer_json(lowercase=False), ["ab", "Ab", "AB", "a", "A", "##b", "##B", "zZ[@`"])
    texts = ["ab Ab AB aB abb ABB Abb aBB", "zZ[@` zz Zz"]
    assert rows_of(kernel_of(twin, data), texts) == expected_rows(library(data), texts)
    lowered = spelling_tokenizer(minilm_json, ["ab", "AB", "a", "A", "##b", "##B", "@", "[", "`", "{"])
    texts = ["ab Ab AB aB abb ABB Abb aBB", "@A[Z`a{z"]
    assert rows_of(kernel_of(twin, lowered), texts) == expected_rows(library(lowered), texts)


def test_marks_that_stay_are_put_into_canonical_order(twin: SimpleNamespace) -> None:
    marks = "\u302e\U0001d165"  # classes 224 and 216; neither is a nonspacing mark
    kernel = kernel_of(twin, bert_tokenizer_json(alphabet="a\u0901" + marks))
    texts = ["a\u302e\U0001d165", "a\u302e\u0901\U0001d165", "a\U0001d165\u302e"]
    moved, held, straight = (ids for ids, _ in rows_of(kernel, texts))
    assert moved == straight
    assert held != straight  # U+0901 is removed, but as a starter it keeps the marks apart


def test_spans_of_sorted_marks_are_those_of_the_library(twin: SimpleNamespace) -> None:
    """A run of marks is sorted, but its positions are not; removed marks and decompositions take part."""
    kept = "\u302e\u302f\U0001d165\U0001d16d"
    data = bert_tokenizer_json(alphabet="abe\u1100\u1161\u11a8" + kept)
    runs = ["\u302e\u0301\U0001d165", "\u0301\u302e\U0001d165\u0323", "\u0344\u302e", "\u0f73\U0001d165\u0f71"]
    texts = [
        f"{start}{run}b"
        for run in [*runs, "", "\u200b\u302e\0\u0323\U0001d165"]
        for start in ("a", "é", "", "각", "中")
    ]
    assert rows_of(kernel_of(twin, data), texts) == expected_rows(library(data), texts)


def test_a_flood_of_marks_is_sorted_in_linear_time(twin: SimpleNamespace) -> None:
    kernel = kernel_of(twin, bert_tokenizer_json())
    text = "a" + "\u302e\U0001d165" * (50_000 if twin.kind == "compiled" else 10_000)
    started = time.perf_counter()
    assert rows_of(kernel, [text]) == [([101, 100, 102], [(0, 0), (0, len(text)), (0, 0)])]
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("trim_offsets", [True, False])
def test_added_tokens_that_take_whitespace_along(twin: SimpleNamespace, minilm_json: bytes, trim_offsets: bool) -> None:
    """MPNet has a post-processor that trims offsets, and a mask token that takes the whitespace before it."""
    changed = Tokenizer.from_str(minilm_json.decode())
    changed.add_special_tokens(
        [
            AddedToken("<mask>", lstrip=True),
            AddedToken("<right>", rstrip=True),
            AddedToken("<m>", lstrip=True, rstrip=True),
        ]
    )
    changed.post_processor = RobertaProcessing(("[SEP]", 102), ("[CLS]", 101), trim_offsets, add_prefix_space=False)
    data = changed.to_str().encode()
    texts = [
        " <mask>",
        "a  <mask> b",
        "<right> \u3000 a <right>",
        " \n<m>\t\t<m> \u2003",
        "a <mask><m> <right> ",
        *NASTY,
    ]
    assert rows_of(kernel_of(twin, data), texts) == expected_rows(library(data), texts)


@pytest.mark.parametrize("prefix", ["", "x", "##", "@@@"])
@pytest.mark.parametrize("max_chars", [0, 1, 3, 100])
def test_prefix_and_word_length_are_those_of_the_model(
    twin: SimpleNamespace, minilm_json: bytes, prefix: str, max_chars: int
) -> None:
    tokens = ["a", "ab", "abc", "xa", "xb", "x", "##", "##b", "##bc", "@@@c", "#", "é", "."]
    options = {"continuing_subword_prefix": prefix, "max_input_chars_per_word": max_chars}
    data = spelling_tokenizer(minilm_json, tokens, **options)
    texts = ["a ab abc abcd abab xab xxx aa.", "##b #b ab# @@@c abc@@@c", "", "x", "ababababab abcabcabc \u4e00é"]
    assert rows_of(kernel_of(twin, data), texts) == expected_rows(library(data), texts)


def test_a_vocabulary_may_hold_an_empty_token(twin: SimpleNamespace, minilm_json: bytes) -> None:
    data = spelling_tokenizer(minilm_json, ["", "a", "##b"])
    assert rows_of(kernel_of(twin, data), ["ab", "", "b"]) == expected_rows(library(data), ["ab", "", "b"])


def test_what_truncation_cuts_off_costs_little(twin: SimpleNamespace, minilm_json: bytes) -> None:
    text = "the quick brown fox " * (52_429 if twin.kind == "compiled" else 2000)
    kernel = kernel_of(twin, minilm_json)
    started = time.perf_counter()
    tokenized = kernel.tokenize([text], truncation=Truncation(max_length=128))
    elapsed = time.perf_counter() - started
    assert tokenized.lengths.tolist() == [128]
    if twin.kind == "compiled":
        assert elapsed < 0.1


def test_a_cache_that_overflows_changes_nothing(twin: SimpleNamespace, minilm_json: bytes) -> None:
    kernel = kernel_of(twin, minilm_json)
    count = 20_000 if twin.kind == "compiled" else 1000
    texts = [
        " ".join(f"q{number * 7919 % 100_003}x" for number in range(start, start + 50)) for start in range(0, count, 50)
    ]
    assert differing(texts, rows_of(kernel, texts), expected_rows(library(minilm_json), texts)) == []


def test_tokenizers_do_not_share_a_cache(twin: SimpleNamespace, minilm_json: bytes) -> None:
    first, second = kernel_of(twin, minilm_json), kernel_of(twin, bert_tokenizer_json(lowercase=False))
    texts = ["Unbelievablest Naïveté"]
    assert rows_of(first, texts) == expected_rows(library(minilm_json), texts)
    assert rows_of(second, texts) == expected_rows(library(bert_tokenizer_json(lowercase=False)), texts)


def test_several_threads_may_use_one_tokenizer(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    kernel = twin.WordPieceTokenizer(minilm)
    texts = vader_texts()[: 4000 if twin.kind == "compiled" else 100]
    expected = kernel.tokenize(texts).lengths
    results: list[Any] = []
    workers = [threading.Thread(target=lambda: results.append(kernel.tokenize(texts).lengths)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, expected)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_nothing_leaks(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    kernel = twin.WordPieceTokenizer(minilm)

    def work() -> None:
        for _ in range(60 if twin.kind == "compiled" else 2):
            kernel.tokenize([*NASTY, "word " * 2000], offsets=True)
            kernel.tokenize(NASTY, NASTY, truncation=Truncation(max_length=32))
            with pytest.raises(ValueError, match="lone surrogate"):
                kernel.tokenize(["fine", "\ud800"])

    def build() -> None:
        for _ in range(3 if twin.kind == "compiled" else 0):
            twin.WordPieceTokenizer(minilm).tokenize(["fine"])

    work()
    build()
    gc.collect()
    before = resident_bytes()
    work()
    build()
    gc.collect()
    assert resident_bytes() - before < 6 * 2**20
