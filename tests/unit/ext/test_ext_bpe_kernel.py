"""Byte-level BPE: the ids and offsets of the library, from the compiled kernel and from its plain twin."""

from __future__ import annotations

import gc
import json
import time
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext.bpe import BpeModel, byte_characters
from edgeonnx_ext.layout import Truncation
from tokenizers import AddedToken, Tokenizer, processors

from tests.support.texts import vader_texts
from tests.support.tokenizers import Kind, pairing_bpe_json, smollm2_tokenizer_json, trained_bpe_json

KINDS: tuple[Kind, ...] = ("gpt2", "llama3", "qwen2", "digits", "digit_runs", "whole")
NASTY = [
    "",
    " ",
    "  ",
    "   a",
    "\n",
    " \n \n  a",
    "a\r\n\r\nb\n",
    "!?\n\n  x",
    "! !a '!a",
    "\ta\t\tb \t c\t",
    "\0",
    "a\x04b\x04\x04c",
    "'s's 's'S'ſ'ſe 're'RE'rE'r'r e'll'lL'Ll'l'",
    "".join(f" 'ſ{chr(letter)}" for letter in range(97, 123)),
    "don't DON'T I'll we'VE 'tis ''s 'xyz '",
    "1 22 333 4444 55555 1234567890 a1b22c ½²Ⅳ٣",
    "\U00011de0\U00016ff41 a\U00011de0",
    "héllo wörld ß ſ İstanbul",
    "e\u0301\u0323 \u0301a \u0301",
    "中文字符mixed漢字。 한국어 \u1100\u1161",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd\u2764\ufe0f!",
    "שָׁלוֹם עולם مرحبا",
    "\xa0a\u2003\u2003b\u3000 c\u200bd\x85",
    "x" * 31 + " " + "y" * 32 + " " + "z" * 33,
    "ab" * 500,
    " " * 100 + "a",
    ("word " * 12 + "it's 12345 ") * 3,
    "a" * 63 + "'s b" + "c" * 60 + "'ll d" + "e" * 59 + "'re" + "f" * 62 + "'",
    "<|endoftext|> a<|endoftext|><|endoftext|>b <|endoftext",
    "\ufffd\ufffe\U0010ffff\ue000\U000e0041",
]


def encoded(kernel: Any, texts: list[str], pairs: list[str] | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """Return ids, type ids and offsets of each row; the ids are also asked for without offsets, another path."""
    rows = kernel.tokenize(texts, pairs, offsets=True, **options)
    ids, types = (np.full((rows.rows, rows.width), -1, dtype=np.int64) for _ in range(2))
    offsets = np.full((rows.rows, rows.width, 2), -1, dtype=np.int64)
    rows.write_into(ids, None, types, offsets=offsets)
    plain = kernel.tokenize(texts, pairs, **options)
    again = np.full_like(ids, -1)
    plain.write_into(again)
    assert plain.lengths.tolist() == rows.lengths.tolist()
    assert again.tolist() == ids.tolist()
    return [
        (
            ids[row, :length].tolist(),
            types[row, :length].tolist(),
            [tuple(span) for span in offsets[row, :length].tolist()],
        )
        for row, length in enumerate(rows.lengths)
    ]


def expected(library: Tokenizer, inputs: list[Any]) -> list[tuple[Any, ...]]:
    return [(row.ids, row.type_ids, row.offsets) for row in library.encode_batch(inputs)]


def opened(twin: SimpleNamespace, data: bytes) -> tuple[Tokenizer, Any]:
    """Return the library's tokenizer and ours; tests share them, and so leave them as they are."""
    return read(data)[0], kernel_of(twin.BpeTokenizer, data)


@lru_cache(maxsize=32)
def read(data: bytes) -> tuple[Tokenizer, BpeModel]:
    return Tokenizer.from_str(data.decode()), BpeModel.from_tokenizer_json(data)


@lru_cache(maxsize=64)
def kernel_of(kind: type, data: bytes) -> Any:
    return kind(read(data)[1])


@lru_cache(maxsize=16)
def trained(kind: Kind, *, add_prefix_space: bool = False, trim_offsets: bool = True) -> bytes:
    return trained_bpe_json(
        kind, vader_texts()[:300], vocab_size=1000, add_prefix_space=add_prefix_space, trim_offsets=trim_offsets
    )


@pytest.mark.parametrize("kind", KINDS)
def test_nasty_texts(twin: SimpleNamespace, kind: Kind) -> None:
    for data in (pairing_bpe_json(kind), trained(kind)):
        library, kernel = opened(twin, data)
        assert encoded(kernel, NASTY) == expected(library, NASTY)


@pytest.mark.parametrize("trim_offsets", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "whole"])
def test_prefix_space_and_trimmed_offsets(twin: SimpleNamespace, kind: Kind, trim_offsets: bool) -> None:
    library, kernel = opened(twin, trained(kind, add_prefix_space=True, trim_offsets=trim_offsets))
    assert encoded(kernel, NASTY) == expected(library, NASTY)


def test_smollm2(twin: SimpleNamespace) -> None:
    library, kernel = opened(twin, smollm2_tokenizer_json())
    texts = NASTY + vader_texts()[::97] + ["<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"]
    assert encoded(kernel, texts) == expected(library, texts)
    assert encoded(kernel, texts[1:], texts[:-1]) == expected(library, list(zip(texts[1:], texts[:-1], strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smollm2", "llama3"])
def test_all_real_texts(twin: SimpleNamespace, kind: Any) -> None:
    texts = vader_texts()
    texts = texts if twin.kind == "compiled" else texts[::100]
    data = smollm2_tokenizer_json() if kind == "smollm2" else trained_bpe_json(kind, texts[::40], vocab_size=3000)
    library, kernel = opened(twin, data)
    assert encoded(kernel, texts) == expected(library, texts)


def code_point_texts(step: int, end: int = 0x110000) -> list[str]:
    """Every `step`-th code point below `end` where it could change a piece's end, some dozens in a text."""
    chars = [chr(point) for point in range(0, end, step) if not 0xD800 <= point < 0xE000]
    shapes = [f"{char} a{char}b'{char}e 1{char}2 {char}{char}!{char}\n{char}  {char}s" for char in chars]
    return ["|".join(shapes[start : start + 20]) for start in range(0, len(shapes), 20)] + chars[::7]


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "digits"])
def test_code_points_in_every_place(twin: SimpleNamespace, kind: Kind) -> None:
    library, kernel = opened(twin, pairing_bpe_json(kind))
    texts = code_point_texts(1999 if twin.kind == "compiled" else 9973)
    assert encoded(kernel, texts) == expected(library, texts)
    low = code_point_texts(1, 0x400 if twin.kind == "compiled" else 0x100)
    assert encoded(kernel, low) == expected(library, low)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama3"])
def test_many_code_points_in_every_place(twin: SimpleNamespace, kind: Kind) -> None:
    """One in 97; `python -m tests.fuzz.run code-points` takes all, and test_ext_regex_unicode.py the class of each."""
    if twin.kind == "reference":
        pytest.skip("the compiled kernel takes many code points, the twin the sample of the test above")
    library, kernel = opened(twin, pairing_bpe_json(kind))
    texts = code_point_texts(97)
    for start in range(0, len(texts), 5000):
        assert encoded(kernel, texts[start : start + 5000]) == expected(library, texts[start : start + 5000])


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "digits"])
def test_pieces_that_cross_64_bytes(twin: SimpleNamespace, kind: Kind) -> None:
    """The compiled kernel cuts ASCII 64 bytes at a time; what a piece becomes must not depend on where it stands."""
    library, kernel = opened(twin, pairing_bpe_json(kind))
    shapes = [
        "x's{}",
        "x'll{}",
        "x're{}",
        "x'{}",
        "1!{}",
        "1 !{}",
        "x  {}",
        "x 1{}",
        "x  1{}",
        "1234567 {}",
        "!!{}",
        "x\t\n {}",
    ]
    texts = [
        "x1"[length % 2] * length + shape.format(letter + letter)
        for shape in shapes
        for length in (0, *range(57, 66), *range(124, 129))
        for letter in "aegkz"
    ][:: 1 if twin.kind == "compiled" else 13]
    assert encoded(kernel, texts) == expected(library, texts)


def test_the_long_s_is_an_s_in_another_case(twin: SimpleNamespace) -> None:
    letters = byte_characters()
    vocab = {letter: byte for byte, letter in enumerate(letters)} | {letters[0xBF] + "a": 256, "\u0120'": 257}
    merges = [[letters[0xBF], "a"], ["\u0120", "'"]]
    for kind in ("llama3", "gpt2"):
        library, kernel = opened(twin, edited(pairing_bpe_json(kind), vocab=vocab, merges=merges))
        assert encoded(kernel, ["x'\u017fa 'sa"]) == expected(library, ["x'\u017fa 'sa"])


def edited(data: bytes, **changes: Any) -> bytes:
    root = json.loads(data)
    root["model"] |= changes
    if "<|endoftext|>" not in root["model"]["vocab"]:
        root["added_tokens"] = []
    return json.dumps(root).encode()


def test_missing_bytes_vanish_before_merging(twin: SimpleNamespace) -> None:
    root = json.loads(trained("gpt2"))
    letters = byte_characters()
    for byte in (4, 0xC3, 0xE4, ord("q")):
        del root["model"]["vocab"][letters[byte]]
    root["model"]["merges"] = [
        pair for pair in root["model"]["merges"] if not set("".join(pair)) & {"q", *letters[0xC3]}
    ]
    library, kernel = opened(twin, json.dumps(root).encode())
    texts = ["a\x04b th\x04e\x04", "\x04", "q", "the quick", "thqe é\u4e2d", "q" * 40 + "the", *NASTY]
    assert encoded(kernel, texts) == expected(library, texts)


@pytest.mark.parametrize("missing", [(), (4, ord("q"), ord(" "))])
def test_ignore_merges_takes_whole_pieces(twin: SimpleNamespace, missing: tuple[int, ...]) -> None:
    """Also a piece with bytes that the vocabulary lacks: it is a token as a whole."""
    letters = byte_characters()
    root = json.loads(trained("llama3"))
    vocab = root["model"]["vocab"]
    words = [" zzgross", "qqq", "x" * 40, " " + "é" * 20, "\x04\x05", "  "]
    vocab |= {"".join(letters[byte] for byte in word.encode()): len(vocab) + index for index, word in enumerate(words)}
    gone = {letters[byte] for byte in missing}
    for letter in gone:
        del vocab[letter]
    root["model"]["merges"] = [merge for merge in root["model"]["merges"] if not gone & {*"".join(merge)}]
    root["model"]["ignore_merges"] = True
    library, kernel = opened(twin, json.dumps(root).encode())
    texts = [*words, "a zzgross qqq", "qqqq " + "x" * 41, "<|endoftext|>", " ".join(words), "x  ", *NASTY]
    assert encoded(kernel, texts) == expected(library, texts)


def test_tokens_that_merges_do_not_reach_stay_unreached(twin: SimpleNamespace) -> None:
    vocab = json.loads(trained("gpt2"))["model"]["vocab"]
    data = edited(trained("gpt2"), vocab=vocab | {"zqzq": len(vocab), "\u0120zqzq": len(vocab) + 1})
    library, kernel = opened(twin, data)
    assert encoded(kernel, ["zqzq zqzq"]) == expected(library, ["zqzq zqzq"])
    assert vocab.keys() >= {library.id_to_token(token_id) for token_id in encoded(kernel, ["zqzq zqzq"])[0][0]}


@pytest.mark.parametrize(
    ("entries", "texts"),
    [
        (["a b", "b c", "ab c", "a bc"], ["abc", "ababcbc"]),
        (["b c", "a b", "a bc", "ab c", "c d", "bc d"], ["abcd", "abcdabcd", "cdabc"]),
        (["a a", "aa a", "aa aa", "aaaa a"], ["a" * count for count in (2, 3, 4, 5, 6, 7, 33, 64, 65)]),
        (["a b", "a b", "b a", "a b"], ["abab", "baba"]),
    ],
)
def test_order_of_merges(twin: SimpleNamespace, entries: list[str], texts: list[str]) -> None:
    vocab = {char: index for index, char in enumerate(byte_characters())}
    for token in ["ab", "bc", "cd", "ba", "abc", "bcd", "aa", "aaa", "aaaa", "aaaaa"]:
        vocab[token] = 1000 + len(vocab) * 7  # ids with holes, in no order of ranks
    library, kernel = opened(
        twin, edited(trained("whole"), vocab=vocab, merges=[entry.split(" ") for entry in entries])
    )
    texts = [*texts, *(text + "x" + text for text in texts), *(text * 9 for text in texts)]
    assert encoded(kernel, texts) == expected(library, texts)


@pytest.mark.parametrize("add_prefix_space", [True, False])
def test_added_tokens_of_both_sets(twin: SimpleNamespace, add_prefix_space: bool) -> None:
    library = Tokenizer.from_str(trained("gpt2", add_prefix_space=add_prefix_space).decode())
    library.add_special_tokens(["<s>", AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    library.add_tokens(
        [
            AddedToken("<word>", single_word=True, normalized=True),
            AddedToken("<s><s>", normalized=True),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("\u0120x\u3000", normalized=False),
        ]
    )
    kernel = twin.BpeTokenizer(BpeModel.from_tokenizer_json(library.to_str().encode()))
    texts = [
        "<s>a<s> b <mask>c  \u2003<mask><mask> d",
        "  <mask>",
        "<word> a<word> <word>b,<word>, <s><word>",
        "<s><s><s> <word><mask>",
        "a <right>  \n b<right>",
        "\u0120x\u3000 y \u0120x\u3000",
        "中<s>文 <mask>é",
        *NASTY,
    ]
    assert encoded(kernel, texts) == expected(library, texts)
    assert encoded(kernel, texts, texts[::-1]) == expected(library, list(zip(texts, texts[::-1], strict=True)))


def test_roberta(twin: SimpleNamespace) -> None:
    library = Tokenizer.from_str(trained("gpt2", add_prefix_space=True).decode())
    library.add_special_tokens(["<s>", "</s>"])
    ids = [(token, library.token_to_id(token)) for token in ("</s>", "<s>")]
    for trim, prefix in ((True, True), (True, False), (False, True)):
        library.post_processor = processors.RobertaProcessing(*ids, trim_offsets=trim, add_prefix_space=prefix)
        kernel = twin.BpeTokenizer(BpeModel.from_tokenizer_json(library.to_str().encode()))
        assert encoded(kernel, NASTY) == expected(library, NASTY)
        assert encoded(kernel, NASTY, NASTY[::-1]) == expected(library, list(zip(NASTY, NASTY[::-1], strict=True)))


@pytest.mark.parametrize("max_length", [0, 1, 2, 5, 30, 31])
def test_truncation_keeps_the_first_tokens(twin: SimpleNamespace, max_length: int) -> None:
    library, kernel = opened(twin, trained("gpt2"))
    whole = [
        (ids[:max_length], types[:max_length], spans[:max_length]) for ids, types, spans in expected(library, NASTY)
    ]
    assert encoded(kernel, NASTY, truncation=Truncation(max_length=max_length)) == whole


def test_the_cache_gives_what_merging_gives(twin: SimpleNamespace) -> None:
    """Words of every length up to two cache lines, again and again, with others of the same first bytes between."""
    library, kernel = opened(twin, trained("gpt2"))
    texts = [" ".join("xyzzy"[: 1 + index % 5] * (1 + index // 3) for index in range(40))] * 3
    texts += [f"{prefix}{'a' * length}" for length in range(70) for prefix in ("", " ", "b")] * 2
    texts += [f"{'a' * length}\0" for length in range(34)] * 2
    assert encoded(kernel, texts) == expected(library, texts)
    assert encoded(kernel, texts[::-1]) == expected(library, texts[::-1])


@pytest.mark.parametrize("kind", ["gpt2", "llama3"])
def test_long_runs_take_no_quadratic_time(twin: SimpleNamespace, kind: Kind) -> None:
    _, kernel = opened(twin, trained(kind))
    length = 6_000 if twin.kind == "reference" else 500_000
    start = time.perf_counter()
    kernel.tokenize([unit * (length // len(unit)) for unit in ("a", "ab", " ", "é", "\n", "1", "'", "'s", "!", " \n")])
    # About half a second each; quadratic steps would take the twin minutes and the kernel hours.
    assert time.perf_counter() - start < 20


def test_a_long_piece_equals_the_library(twin: SimpleNamespace) -> None:
    library, kernel = opened(twin, trained("whole"))
    texts = ["".join(vader_texts()[:30]), "the " * 400, "é" * 700]
    assert encoded(kernel, texts) == expected(library, texts)


def test_threads_and_batches_change_nothing(twin: SimpleNamespace) -> None:
    _, kernel = opened(twin, trained("gpt2"))
    texts = vader_texts()[:400] * 2 if twin.kind == "compiled" else vader_texts()[:40]
    rows = [encoded(kernel, [text])[0] for text in texts[:40]]
    assert encoded(kernel, texts)[:40] == rows
    assert encoded(kernel, texts * 4, threads=3) == encoded(kernel, texts) * 4


def test_lone_surrogates_are_refused(twin: SimpleNamespace) -> None:
    _, kernel = opened(twin, trained("gpt2"))
    with pytest.raises(ValueError, match=r"texts\[1\]: .* U\+D800 at character 2"):
        kernel.tokenize(["fine", "ab\ud800"])


def test_a_model_without_merges_or_tokens(twin: SimpleNamespace) -> None:
    library, kernel = opened(twin, edited(trained("gpt2"), vocab={"<|endoftext|>": 0, "a": 1}, merges=[]))
    texts = ["", "banana", "bbb", "a" * 50, "<|endoftext|>a"]
    assert encoded(kernel, texts) == expected(library, texts)


def test_many_tokenizers_do_not_leak(twin: SimpleNamespace) -> None:
    if twin.kind == "reference":
        pytest.skip("Python objects only")
    import resource

    model = BpeModel.from_tokenizer_json(trained("gpt2"))

    def peak_after(count: int) -> int:
        for _ in range(count):
            twin.BpeTokenizer(model).tokenize(["hello wörld " * 10], offsets=True)
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = peak_after(3)
    assert peak_after(30) - before < 20_000
