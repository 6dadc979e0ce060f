"""Rows: what stands in the caller's buffers, against what the `tokenizers` library gives."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from edgeonnx_ext import Padding, Truncation, WordPieceModel
from edgeonnx_ext.library import LibraryTokenizer

from tests.support.texts import minilm_tokenizer_json, vader_texts

TEXTS = ["hello world", "", "unaffable cats", "a b c d e f g h i j", "naïve [MASK] 東京!"]
PAIRS = ["x", "the second one is longer", "", "k l m n o p q", "ﬁne"]
NAMES = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "offsets")


@pytest.fixture(scope="module")
def library() -> LibraryTokenizer:
    return LibraryTokenizer(minilm_tokenizer_json(), "a test")


@pytest.fixture
def tokenizer(twin: SimpleNamespace, minilm: WordPieceModel) -> Any:
    return twin.WordPieceTokenizer(minilm)


def buffers(shape: tuple[int, int], dtype: Any = np.int64, names: tuple[str, ...] = NAMES) -> dict[str, np.ndarray]:
    """Buffers that are full of something else."""
    return {name: np.full((*shape, 2) if name == "offsets" else shape, -7, dtype=dtype) for name in names}


def written(tokenized: Any, dtype: Any = np.int64, width: int | None = None, **options: Any) -> dict[str, np.ndarray]:
    out = buffers((tokenized.rows, tokenized.width if width is None else width), dtype)
    tokenized.write_into(**out, **options)
    return out


CUTS = [
    Truncation(max_length=length, strategy=strategy, side=side, overflow=overflow, stride=stride)  # type: ignore[arg-type]
    for length, strategy, side, (overflow, stride) in product(
        (4, 7, 9), ("longest_first", "only_first", "only_second"), ("right", "left"), ((False, 0), (True, 0), (True, 1))
    )
]


@pytest.mark.parametrize("truncation", [None, *CUTS], ids=str)
def test_texts_are_cut_as_the_library_cuts_them(tokenizer: Any, library: Any, truncation: Truncation | None) -> None:
    if truncation is not None and truncation.strategy == "only_second":
        with pytest.raises(ValueError, match="strategy: expected pairs with 'only_second'"):
            tokenizer.tokenize(TEXTS, truncation=truncation)
        return
    ours = tokenizer.tokenize(TEXTS, truncation=truncation, offsets=True)
    theirs = library.tokenize(TEXTS, truncation=truncation, offsets=True)
    np.testing.assert_array_equal(ours.sources, theirs.sources)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    for name, expected in written(theirs).items():
        np.testing.assert_array_equal(written(ours)[name], expected, err_msg=name)


@pytest.mark.parametrize("truncation", [None, *CUTS], ids=str)
def test_pairs_are_cut_as_the_library_cuts_them(tokenizer: Any, library: Any, truncation: Truncation | None) -> None:
    for text, pair in zip(TEXTS, PAIRS, strict=True):
        refusal = refused_by(tokenizer, text, pair, truncation)
        if refusal is not None:
            # The library panics or raises on the same rows; only windows over both texts are refused by us alone.
            if "no single order" not in refusal:
                assert "row 0: " in refusal
                assert "the tokenizers library cannot tokenize" in str(refused_by(library, text, pair, truncation))
            continue
        ours = tokenizer.tokenize([text], [pair], truncation=truncation, offsets=True)
        theirs = library.tokenize([text], [pair], truncation=truncation, offsets=True)
        np.testing.assert_array_equal(ours.sources, theirs.sources)
        for name, expected in written(theirs).items():
            np.testing.assert_array_equal(written(ours)[name], expected, err_msg=f"{name} of {text!r}, {pair!r}")


def refused_by(tokenizer: Any, text: str, pair: str, truncation: Truncation | None) -> str | None:
    try:
        tokenizer.tokenize([text], [pair], truncation=truncation)
    except ValueError as error:
        return str(error)
    return None


def test_some_pairs_of_every_strategy_are_cut(tokenizer: Any) -> None:
    """So that the test above cannot pass on refusals alone."""
    for strategy in ("only_first", "only_second"):
        truncation = Truncation(max_length=9, strategy=strategy, overflow=True, stride=1)  # type: ignore[arg-type]
        first, second = ("a b c d e f g h", "x") if strategy == "only_first" else ("x", "a b c d e f g h")
        tokenized = tokenizer.tokenize([first], [second], truncation=truncation)
        assert tokenized.sources.tolist() == [0, 0]
        assert tokenized.lengths.max() == 9


def test_special_tokens_may_be_left_out(tokenizer: Any, library: Any) -> None:
    for pairs in (None, PAIRS):
        ours = tokenizer.tokenize(TEXTS, pairs, special_tokens=False, truncation=Truncation(max_length=5))
        theirs = library.tokenize(TEXTS, pairs, special_tokens=False, truncation=Truncation(max_length=5))
        np.testing.assert_array_equal(ids_of(ours), ids_of(theirs))


def ids_of(tokenized: Any, **options: Any) -> np.ndarray:
    out = np.full((tokenized.rows, tokenized.width), -7, dtype=np.int64)
    tokenized.write_into(out, **options)
    return out


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(tokenizer: Any, dtype: Any, side: Any) -> None:
    tokenized = tokenizer.tokenize(["hello world", ""], offsets=True)
    found = written(tokenized, dtype, width=6, padding=Padding(pad_id=9, pad_type_id=3, side=side))
    row, empty = [101, 7592, 2088, 102], [101, 102]
    expected = {
        "right": [[*row, 9, 9], [*empty, 9, 9, 9, 9]],
        "left": [[9, 9, *row], [9, 9, 9, 9, *empty]],
    }[side]
    mask = [[int(item != 9) for item in line] for line in expected]
    assert found["input_ids"].tolist() == expected
    assert found["attention_mask"].tolist() == mask
    assert found["token_type_ids"].tolist() == [[0 if item else 3 for item in line] for line in mask]
    assert found["special_tokens_mask"].tolist() == [[int(item in (9, 101, 102)) for item in row] for row in expected]
    spans = [[0, 0], [0, 5], [6, 11], [0, 0]]
    assert found["offsets"][0].tolist() == ([*spans, [0, 0], [0, 0]] if side == "right" else [[0, 0], [0, 0], *spans])
    assert all(array.dtype == dtype for array in found.values())


def test_rows_in_any_order(tokenizer: Any) -> None:
    texts = ["a", "a b c", "a b", "", "x y"]
    tokenized = tokenizer.tokenize(texts)
    order = tokenized.order_by_length()
    assert order.tolist() == [1, 2, 4, 0, 3]
    everything = ids_of(tokenized)
    np.testing.assert_array_equal(ids_of(tokenized, rows=order), everything[order])
    # Some of them need less width than all.
    some = np.full((2, 4), -7, dtype=np.int64)
    tokenized.write_into(some, rows=[4, 2])
    np.testing.assert_array_equal(some, everything[[4, 2], :4])
    with pytest.raises(ValueError, match="rows: expected numbers from 0 to 4, found -1 to 0"):
        tokenized.write_into(some, rows=[-1, 0])
    with pytest.raises(ValueError, match="rows: expected numbers from 0 to 4, found 0 to 5"):
        tokenized.write_into(some, rows=[0, 5])
    with pytest.raises(TypeError, match="rows: expected integers"):
        tokenized.write_into(some, rows=[0.0, 1.0])


def test_nothing_may_be_tokenized(tokenizer: Any) -> None:
    tokenized = tokenizer.tokenize([])
    assert (tokenized.rows, tokenized.width, tokenized.lengths.tolist()) == (0, 0, [])
    tokenized.write_into(np.empty((0, 0), dtype=np.int64))
    bare = tokenizer.tokenize(["", ""], special_tokens=False)
    assert (bare.rows, bare.width) == (2, 0)
    out = np.full((2, 3), -7, dtype=np.int32)
    bare.write_into(out, padding=Padding(pad_id=5))
    assert out.tolist() == [[5, 5, 5]] * 2


BAD_BUFFERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "too narrow": (
        {"input_ids": np.zeros((2, 3), np.int64)},
        ValueError,
        r"input_ids: expected shape \(2, 4 or more\)",
    ),
    "too few rows": (
        {"input_ids": np.zeros((1, 4), np.int64)},
        ValueError,
        r"input_ids: expected shape \(2, 4 or more",
    ),
    "too many rows": ({"input_ids": np.zeros((3, 4), np.int64)}, ValueError, r"found \(3, 4\)"),
    "one dimension": ({"input_ids": np.zeros(8, np.int64)}, ValueError, "expected 2 dimensions"),
    "float": ({"input_ids": np.zeros((2, 4))}, TypeError, "expected dtype int64 or int32, found float64"),
    "uint64": ({"input_ids": np.zeros((2, 4), np.uint64)}, TypeError, "expected dtype int64 or int32, found uint64"),
    "other byte order": ({"input_ids": np.zeros((2, 4), ">i8")}, TypeError, "expected dtype int64 or int32, found >i8"),
    "mixed": ({"attention_mask": np.zeros((2, 4), np.int32)}, TypeError, "attention_mask: expected dtype int64"),
    "list": ({"input_ids": [[0] * 4] * 2}, TypeError, r"input_ids: expected a numpy\.ndarray"),
    "columns": ({"token_type_ids": np.zeros((4, 2), np.int64).T}, ValueError, "C-contiguous"),
    "stepped": ({"attention_mask": np.zeros((2, 8), np.int64)[:, ::2]}, ValueError, "C-contiguous"),
    "wider mask": ({"attention_mask": np.zeros((2, 5), np.int64)}, ValueError, "expected buffers of one shape"),
    "offsets": ({"offsets": np.zeros((2, 4), np.int64)}, ValueError, "offsets: expected 3 dimensions"),
    "offsets in threes": (
        {"offsets": np.zeros((2, 4, 3), np.int64)},
        ValueError,
        r"expected shape \(2, 4 or more, 2\)",
    ),
}


@pytest.mark.parametrize("case", BAD_BUFFERS)
def test_a_buffer_that_does_not_fit_is_refused_and_nothing_is_written(tokenizer: Any, case: str) -> None:
    tokenized = tokenizer.tokenize(["hello world", ""], offsets=True)
    changes, error, message = BAD_BUFFERS[case]
    good = buffers((2, 4))
    with pytest.raises(error, match=message):
        tokenized.write_into(**{**good, **changes})
    assert all((buffer == -7).all() for name, buffer in good.items() if name not in changes)


def test_read_only_and_shared_buffers_are_refused(tokenizer: Any) -> None:
    tokenized = tokenizer.tokenize(["hello world", ""])
    locked = np.zeros((2, 4), dtype=np.int64)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="input_ids: expected a writable array"):
        tokenized.write_into(locked)
    whole = np.zeros((4, 4), dtype=np.int64)
    with pytest.raises(ValueError, match="input_ids and attention_mask: expected buffers apart"):
        tokenized.write_into(whole[:2], whole[1:3])
    with pytest.raises(ValueError, match="offsets: expected texts that were tokenized with offsets=True"):
        tokenized.write_into(whole[:2], offsets=np.zeros((2, 4, 2), dtype=np.int64))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("hello",), {}, TypeError, "texts: expected a sequence of texts, found one str"),
        ((["a", 1],), {}, TypeError, r"texts\[1\]: expected a str, found int"),
        ((["a"], ["b", "c"]), {}, ValueError, "pairs: expected one for each of the 1 texts, found 2"),
        ((["ok", "a\ud83d"],), {}, ValueError, r"texts\[1\]: .* U\+D83D at character 1"),
        ((["ok"], ["\ude00\U0001f600"]), {}, ValueError, r"pairs\[0\]: .* U\+DE00 at character 0"),
        ((["a"],), {"truncation": Truncation(max_length=1)}, ValueError, "expected at least the 2 special tokens"),
        ((["a"], ["b"]), {"truncation": Truncation(max_length=2)}, ValueError, "expected at least the 3 special"),
        ((["a"],), {"threads": 0}, ValueError, "threads: expected 1 to 256, found 0"),
        (
            (["a b c d"],),
            {"truncation": Truncation(max_length=4, overflow=True, stride=2)},
            ValueError,
            "row 0: expected a stride below the 2 tokens of a window, found 2",
        ),
        (
            (["a", "a"], ["b", "b c d e f"]),
            {"truncation": Truncation(max_length=6, strategy="only_first")},
            ValueError,
            "row 1: expected room for at least one token of the text that 'only_first' cuts",
        ),
    ],
)
def test_bad_arguments(tokenizer: Any, arguments: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tokenizer.tokenize(*arguments, **options)


def test_threads_change_nothing(tokenizer: Any, twin: SimpleNamespace) -> None:
    texts = vader_texts()[:3000] if twin.kind == "compiled" else vader_texts()[:100]
    pairs = texts[::-1]
    for options in ({}, {"pairs": pairs, "truncation": Truncation(max_length=20)}):
        alone = tokenizer.tokenize(texts, offsets=True, **options)
        for threads in (2, 3, 64):
            shared = tokenizer.tokenize(texts, offsets=True, threads=threads, **options)
            np.testing.assert_array_equal(shared.sources, alone.sources)
            for name, expected in written(alone).items():
                np.testing.assert_array_equal(written(shared)[name], expected, err_msg=name)


def test_the_first_bad_row_is_named_whatever_the_threads(tokenizer: Any, twin: SimpleNamespace) -> None:
    if twin.kind == "reference":
        pytest.skip("the plain twin has one thread")
    texts = ["word " * 400] * 300
    truncation = Truncation(max_length=403, strategy="only_first")
    with pytest.raises(ValueError, match="row 100: "):
        tokenizer.tokenize(texts, ["a"] * 100 + ["b " * 402] * 200, truncation=truncation, threads=4)


def test_texts_are_not_kept(tokenizer: Any) -> None:
    import weakref

    class Text(str):
        __slots__ = ("__weakref__",)

    text = Text("hello world")
    gone = weakref.ref(text)
    tokenized = tokenizer.tokenize([text])
    del text
    assert gone() is None
    assert ids_of(tokenized).tolist() == [[101, 7592, 2088, 102]]


def test_the_library_agrees_on_the_texts_alone() -> None:
    """The oracle above is ours (it wraps the library): here it is compared with the bare library."""
    bare = tokenizers.Tokenizer.from_str(minilm_tokenizer_json().decode())
    bare.no_padding()
    bare.enable_truncation(7, stride=1, strategy="longest_first", direction="left")
    tokenized = LibraryTokenizer(minilm_tokenizer_json(), "a test").tokenize(
        TEXTS, truncation=Truncation(max_length=7, side="left", overflow=True, stride=1)
    )
    encodings = [part for text in TEXTS for part in (bare.encode(text), *bare.encode(text).overflowing)]
    ids = ids_of(tokenized)
    assert [ids[row, :length].tolist() for row, length in enumerate(tokenized.lengths)] == [e.ids for e in encodings]
