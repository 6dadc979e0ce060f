from __future__ import annotations

import gc
import threading
import time
import unicodedata
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from edgeonnx_ext import WordPieceModel, _reference
from tokenizers import Tokenizer

from tests.support.texts import bert_tokenizer_json, minilm_tokenizer_json, vader_texts

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


def library(data: bytes, max_length: int) -> Tokenizer:
    tokenizer = Tokenizer.from_str(data.decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def expected_rows(tokenizer: Tokenizer, inputs: list) -> list[list[list[int]]]:
    return [[row.ids, row.attention_mask, row.type_ids] for row in tokenizer.encode_batch(inputs)]


def rows_of(tokenized) -> list[list[list[int]]]:
    buffers = [np.full((tokenized.rows, tokenized.width), -1, dtype=np.int64) for _ in range(3)]
    tokenized.write_into(*buffers)
    return [[buffer[row, :length].tolist() for buffer in buffers] for row, length in enumerate(tokenized.lengths)]


@lru_cache(maxsize=1)
def assigned_alphabet() -> str:
    """Every assigned character, and what decomposition and lower-casing make of it."""
    chars = "".join(char for char in map(chr, range(0x110000)) if unicodedata.category(char) not in {"Cn", "Cs", "Co"})
    return chars + unicodedata.normalize("NFD", chars) + chars.lower()


@lru_cache(maxsize=2)
def spelling_json(strip_accents: bool) -> bytes:
    return bert_tokenizer_json(strip_accents=strip_accents, alphabet=assigned_alphabet())


@lru_cache(maxsize=1)
def expected_ids_of_the_data_set() -> list[list[list[int]]]:
    return expected_rows(library(minilm_tokenizer_json(), 256), vader_texts())


def code_point_texts(step: int) -> list[str]:
    """Every `step`-th code point, each alone between spaces and between two letters; some dozens in a text."""
    chars = [chr(code) for code in range(0, 0x110000, step) if not 0xD800 <= code < 0xE000]
    alone = [" ".join(chars[start : start + 48]) for start in range(0, len(chars), 48)]
    between = [" ".join(f"a{char}b" for char in chars[start : start + 48]) for start in range(0, len(chars), 48)]
    return alone + between


def test_all_texts_of_the_data_set_give_the_ids_of_the_library(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    texts = vader_texts()
    assert len(texts) == 23_703
    tokenized = twin.WordPieceTokenizer(minilm, pad_id=0).tokenize(texts, None, 256)
    rows = rows_of(tokenized)
    expected = expected_ids_of_the_data_set()
    mismatches = [index for index, (ours, theirs) in enumerate(zip(rows, expected, strict=True)) if ours != theirs]
    assert mismatches == []


@pytest.mark.parametrize("strip_accents", [True, False])
def test_every_code_point_gives_the_ids_of_the_library(twin: SimpleNamespace, strip_accents: bool) -> None:
    """The vocabulary spells, so that no difference hides behind the unknown token."""
    data = spelling_json(strip_accents)
    step = (1 if strip_accents else 11) if twin.kind == "compiled" else 97
    texts = code_point_texts(step)
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data), pad_id=0)
    rows = rows_of(kernel.tokenize(texts, None, 1000))
    differing = [
        text
        for text, ours, theirs in zip(texts, rows, library(data, 1000).encode_batch_fast(texts), strict=True)
        if ours[0] != theirs.ids
    ]
    assert differing == []


@pytest.mark.parametrize("flags", [{}, {"lowercase": False}, {"clean_text": False, "handle_chinese_chars": False}])
@pytest.mark.parametrize("max_length", [2, 3, 7, 128])
def test_nasty_texts_give_the_ids_of_the_library(twin: SimpleNamespace, flags: dict, max_length: int) -> None:
    data = bert_tokenizer_json(**flags)
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data), pad_id=0)
    assert rows_of(kernel.tokenize(NASTY, None, max_length)) == expected_rows(library(data, max_length), NASTY)


@pytest.mark.parametrize("max_length", [3, 4, 5, 8, 13, 64, 200])
def test_pairs_are_truncated_longest_first(twin: SimpleNamespace, minilm: WordPieceModel, max_length: int) -> None:
    firsts = [*NASTY, *vader_texts()[:80]]
    seconds = [*reversed(NASTY), *vader_texts()[-80:]]
    kernel = twin.WordPieceTokenizer(minilm, pad_id=0)
    expected = expected_rows(library(minilm_tokenizer_json(), max_length), list(zip(firsts, seconds, strict=True)))
    assert rows_of(kernel.tokenize(firsts, seconds, max_length)) == expected


def test_marks_that_stay_are_put_into_canonical_order(twin: SimpleNamespace) -> None:
    marks = "\u302e\U0001d165"  # classes 224 and 216; neither is a nonspacing mark
    data = bert_tokenizer_json(alphabet="a\u0901" + marks)
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data), pad_id=0)
    moved, held = rows_of(kernel.tokenize(["a\u302e\U0001d165", "a\u302e\u0901\U0001d165"], None, 16))
    straight = rows_of(kernel.tokenize(["a\U0001d165\u302e"], None, 16))[0]
    assert moved == straight
    assert held != straight  # U+0901 is removed, but as a starter it keeps the marks apart


def test_a_flood_of_marks_is_sorted_in_linear_time(twin: SimpleNamespace) -> None:
    data = bert_tokenizer_json()
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data), pad_id=0)
    started = time.perf_counter()
    assert rows_of(kernel.tokenize(["a" + "\u302e\U0001d165" * 100_000], None, 16))[0][0] == [101, 100, 102]
    assert time.perf_counter() - started < 5


def test_the_longest_added_token_wins_and_the_leftmost_first(twin: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    tokenizer.add_special_tokens(["<a", "<ab", "b>c", "<abé>", "  "])
    data = tokenizer.to_str().encode()
    texts = ["<ab>c", "<a b>c", "x<abé>y", "<abe\u0301>", "<<a<ab>", "a  b   c", "<AB", "b>c<a", "<ab" * 9]
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data), pad_id=0)
    assert rows_of(kernel.tokenize(texts, None, 64)) == expected_rows(library(data, 64), texts)


@pytest.mark.parametrize("prefix", ["", "x", "##", "@@@"])
@pytest.mark.parametrize("max_chars", [0, 1, 3, 100])
def test_prefix_and_word_length_are_those_of_the_model(twin: SimpleNamespace, prefix: str, max_chars: int) -> None:
    from tokenizers.models import WordPiece

    tokenizer = Tokenizer.from_str(minilm_tokenizer_json().decode())
    tokens = ["a", "ab", "abc", "xa", "xb", "x", "##", "##b", "##bc", "@@@c", "#", "é", ""]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = {token: tokenizer.token_to_id(token) for token in specials}
    vocab.update({token: 1000 + index for index, token in enumerate(tokens)})
    tokenizer.model = WordPiece(
        vocab, unk_token="[UNK]", continuing_subword_prefix=prefix, max_input_chars_per_word=max_chars
    )
    data = tokenizer.to_str().encode()
    texts = ["a ab abc abcd abab xab xxx aa", "##b #b ab# @@@c abc@@@c", "", "x", "ababababab abcabcabc"]
    kernel = twin.WordPieceTokenizer(WordPieceModel.from_tokenizer_json(data), pad_id=0)
    assert rows_of(kernel.tokenize(texts, None, 64)) == expected_rows(library(data, 64), texts)


def test_a_megabyte_of_text_costs_little(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    text = "the quick brown fox " * 52_429
    kernel = twin.WordPieceTokenizer(minilm, pad_id=0)
    started = time.perf_counter()
    tokenized = kernel.tokenize([text], None, 128)
    elapsed = time.perf_counter() - started
    assert tokenized.lengths.tolist() == [128]
    assert rows_of(tokenized) == expected_rows(library(minilm_tokenizer_json(), 128), [text])
    if twin.kind == "compiled":
        assert elapsed < 0.1


def test_lengths_rows_and_width(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    tokenized = twin.WordPieceTokenizer(minilm, pad_id=0).tokenize(["hello world", "", "a b c"], None, 64)
    assert (tokenized.rows, tokenized.width) == (3, 5)
    assert tokenized.lengths.dtype == np.int64
    assert tokenized.lengths.tolist() == [4, 2, 5]
    nothing = twin.WordPieceTokenizer(minilm, pad_id=0).tokenize([], None, 64)
    assert (nothing.rows, nothing.width, nothing.lengths.tolist()) == (0, 0, [])


def test_padding_is_the_callers(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    tokenized = twin.WordPieceTokenizer(minilm, pad_id=7, pad_type_id=3).tokenize(["hello", ""], None, 64)
    ids, mask, types = (np.full((2, 5), -1, dtype=np.int64) for _ in range(3))
    tokenized.write_into(ids, mask, types)
    assert ids.tolist() == [[101, 7592, 102, 7, 7], [101, 102, 7, 7, 7]]
    assert mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert types.tolist() == [[0, 0, 0, 3, 3], [0, 0, 3, 3, 3]]


def read_only(shape: tuple[int, int]) -> np.ndarray:
    array = np.full(shape, -1, dtype=np.int64)
    array.setflags(write=False)
    return array


MISUSES = [
    (lambda: np.full((2, 2), -1), ValueError, r"expected shape \(2, 3 or more\), found \(2, 2\)"),
    (lambda: np.full((1, 3), -1), ValueError, "expected shape"),
    (lambda: np.full((3, 3), -1), ValueError, "expected shape"),
    (lambda: np.full(6, -1), ValueError, "expected 2 dimensions"),
    (lambda: np.full((2, 3), -1, dtype=np.int32), TypeError, "expected dtype int64, found int32"),
    (lambda: np.full((2, 3), -1, dtype=">i8"), TypeError, "expected dtype int64, found >i8"),
    (lambda: np.full((2, 3), -1, dtype=np.float64), TypeError, "expected dtype int64"),
    (lambda: read_only((2, 3)), ValueError, "read-only"),
    (lambda: np.full((2, 6), -1)[:, ::2], ValueError, "C-contiguous"),
    (lambda: np.full((3, 2), -1).T, ValueError, "C-contiguous"),
    (lambda: np.full((2, 4), -1), ValueError, "buffers of one shape"),
    (lambda: [[-1] * 3] * 2, TypeError, "expected a numpy.ndarray of int64, found list"),
    (lambda: None, TypeError, "found NoneType"),
]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("make", "error", "message"), MISUSES)
def test_a_buffer_that_does_not_fit_is_refused_before_anything_is_written(
    twin: SimpleNamespace, minilm: WordPieceModel, place: int, make, error: type[Exception], message: str
) -> None:
    tokenized = twin.WordPieceTokenizer(minilm, pad_id=0).tokenize(["hello", ""], None, 64)
    buffers = [np.full((2, 3), -1, dtype=np.int64) for _ in range(3)]
    buffers[place] = make()
    with pytest.raises(error, match=message):
        tokenized.write_into(*buffers)
    assert all((np.asarray(buffer) == -1).all() for buffer in buffers if buffer is not None)


def test_overlapping_buffers_are_refused(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    tokenized = twin.WordPieceTokenizer(minilm, pad_id=0).tokenize(["hello"], None, 64)
    memory = np.full((3, 3), -1, dtype=np.int64)
    with pytest.raises(ValueError, match="input_ids and token_type_ids: expected buffers apart"):
        tokenized.write_into(memory[:1], memory[1:2], memory[:1])
    assert (memory == -1).all()
    tokenized.write_into(memory[:1], memory[1:2], memory[2:])
    assert memory.tolist() == [[101, 7592, 102], [1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("hello", None, 8), TypeError, r"texts: expected a sequence of texts, found one str"),
        ((["a", 3], None, 8), TypeError, r"texts\[1\]: expected a str, found int"),
        ((["a", None], None, 8), TypeError, r"texts\[1\]: expected a str, found NoneType"),
        ((["a"], [b"b"], 8), TypeError, r"pairs\[0\]: expected a str, found bytes"),
        ((["a"], ["b", "c"], 8), ValueError, "pairs: expected one for each of the 1 texts, found 2"),
        ((["a"], None, 1), ValueError, "max_length: expected at least the 2 special tokens and less than .*, found 1"),
        ((["a"], ["b"], 2), ValueError, "max_length: expected at least the 3 special tokens"),
        ((["a"], None, -1), ValueError, "found -1"),
        ((["a"], None, 2**31), ValueError, "found 2147483648"),
        ((["a"], None, 8.0), TypeError, "float"),
        ((["ok", "a\ud800"], None, 8), ValueError, r"texts\[1\]: .* lone surrogate U\+D800 at character 1\."),
        ((["x " * 50 + "\U0001f600\udfff"], None, 8), ValueError, r"U\+DFFF at character 101\."),
        ((["ok"], ["\udc00"], 8), ValueError, r"pairs\[0\]: .* U\+DC00 at character 0\."),
    ],
)
def test_bad_arguments_are_named(
    twin: SimpleNamespace, minilm: WordPieceModel, arguments: tuple, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        twin.WordPieceTokenizer(minilm, pad_id=0).tokenize(*arguments)


@pytest.mark.parametrize("pads", [{"pad_id": -1}, {"pad_id": 2**31}, {"pad_id": 0, "pad_type_id": -1}])
def test_pad_ids_out_of_range_are_refused(twin: SimpleNamespace, minilm: WordPieceModel, pads: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"pad_(type_)?id: expected an integer in \[0, 2\*\*31\)"):
        twin.WordPieceTokenizer(minilm, **pads)


def test_threads_may_share_a_tokenizer(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    kernel = twin.WordPieceTokenizer(minilm, pad_id=0)
    texts = vader_texts()[:300]
    expected = rows_of(kernel.tokenize(texts, None, 64))
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(rows_of(kernel.tokenize(texts, None, 64)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_no_memory_is_lost(twin: SimpleNamespace, minilm: WordPieceModel) -> None:
    kernel = twin.WordPieceTokenizer(minilm, pad_id=0)
    calls = 10_000 if twin.kind == "compiled" else 300
    buffers = [np.empty((2, 32), dtype=np.int64) for _ in range(3)]

    def work() -> None:
        for _ in range(calls):
            kernel.tokenize(["the quick brown fox é 각", "\u302e\U0001d165 unbelievable"], None, 32).write_into(
                *buffers
            )
            with pytest.raises(ValueError, match="lone surrogate"):
                kernel.tokenize(["fine", "\ud800"], None, 32)

    work()
    gc.collect()
    before = resident_bytes()
    work()
    gc.collect()
    assert resident_bytes() - before < 4 * 2**20


def test_longest_first_is_the_rule_of_the_library() -> None:
    assert _reference.longest_first(3, 4, 7) == (3, 4)
    assert _reference.longest_first(3, 9, 7) == (3, 4)
    assert _reference.longest_first(9, 3, 7) == (4, 3)
    assert _reference.longest_first(9, 9, 7) == (3, 4)
    assert _reference.longest_first(10, 9, 7) == (4, 3)
    assert _reference.longest_first(9, 9, 0) == (0, 0)
