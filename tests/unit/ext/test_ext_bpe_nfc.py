"""Byte-level BPE behind the NFC normalizer, as Qwen has it: the ids and offsets of the library, from both twins."""

from __future__ import annotations

import random
import time
import unicodedata
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
from edgeonnx_ext.bpe import BpeModel
from edgeonnx_ext.layout import Truncation
from tokenizers import AddedToken, Tokenizer, normalizers, processors

from tests.support.texts import vader_texts
from tests.support.tokenizers import Kind, pairing_bpe_json, qwen_bpe_json
from tests.unit.ext.test_ext_bpe_kernel import NASTY, encoded, expected, opened

SCRIPTS = [
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "すべての人間は、生まれながらにして自由であり、がぎぐげご",
    "Ὅλοι οἱ ἄνθρωποι γεννιοῦνται ἐλεύθεροι",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में ख़ क़",
]
DECOMPOSED = [unicodedata.normalize(form, text) for text in SCRIPTS for form in ("NFD", "NFC", "NFKD")]
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>")
# Marks around added tokens, at the start of a text and of a section, and what an added token keeps from composing.
MARKED = [
    "e<|im_end|>\u0301",
    "\u0301<|im_end|>\u0301",
    "<|im_start|>\u0323\u0301e\u0301<|im_end|>\u0301e",
    "\u0344<|im_end|>\u0f73 \u0f71",
    "\u1100<|im_end|>\u1161\u11a8",
    "\uac00<tool_call>\u11a8\uac00\u11a8",
    "<\u0338|im_end|>",
    "<|im_end|>\u0338",
    "q\u0323\u0334<|im_end|>q\u0334\u0323",
    "\u212b<|endoftext|>\u212b\u2126\uf900",
    " e\u0301  e\u0301\n\u0301 \u0301",
    "'\u017f\u0307 's\u0307 1\u0301 !\u0338",
    "plain <|im_start|>ascii<|im_end|> and e\u0301 behind it, and plain again",
]
POOL = "aeoqszEé\u212bộǖᾂΩカがか\u0915\u0958\u09c7\u09be\u0f40가각\u1100\u1161\u11a8\uf900<=z0' \n"
MARKS = "\u0300\u0301\u0323\u0338\u0344\u0f73\u0f71\u093c\u3099\u05b4\U0001d165\u11a8\u1161"


@lru_cache(maxsize=1)
def qwen() -> bytes:
    return qwen_bpe_json(SCRIPTS * 3 + vader_texts()[:300], vocab_size=1500)


@lru_cache(maxsize=4)
def pairing(kind: Kind, prefix: bool, trim: bool) -> bytes:
    """A tokenizer that shows every byte of the normalized text, with added tokens of both sets."""
    library = Tokenizer.from_str(pairing_bpe_json(kind, add_prefix_space=prefix).decode())
    library.normalizer = normalizers.NFC()
    library.post_processor = processors.ByteLevel(add_prefix_space=prefix, trim_offsets=trim)
    library.add_special_tokens(["<|im_end|>", "\u0301>", AddedToken("é<", normalized=False)])
    library.add_tokens(
        [
            AddedToken("<t>", lstrip=True, normalized=True),
            AddedToken("=", normalized=True),
            AddedToken("zz", rstrip=True, normalized=True),
            AddedToken("<w>", single_word=True, normalized=True),
        ]
    )
    return library.to_str().encode()


def random_texts(count: int) -> list[str]:
    rng = random.Random(4)
    tokens = ["<|im_end|>", "\u0301>", "é<", "<t>", " <t>", "=", "zz ", "<w>", "  "]
    return [
        "".join(rng.choice(rng.choice([MARKS, POOL, POOL, tokens])) for _ in range(rng.randint(1, 12)))
        for _ in range(count)
    ]


def test_a_tokenizer_like_qwen_is_read_whole() -> None:
    model = BpeModel.from_tokenizer_json(qwen())
    assert (model.nfc, model.pattern, model.digits, model.trim.spaces) == (True, "qwen2", None, False)
    assert [token.content for token in model.added_tokens] == list(SPECIALS)
    assert not {token.content for token in model.added_tokens} & model.vocab.keys()


def test_texts_of_many_scripts_composed_and_decomposed(twin: SimpleNamespace) -> None:
    library, kernel = opened(twin, qwen())
    assert any(normalizers.NFC().normalize_str(text) != text for text in DECOMPOSED)
    texts = DECOMPOSED + MARKED + NASTY
    assert encoded(kernel, texts) == expected(library, texts)
    assert encoded(kernel, texts, texts[::-1]) == expected(library, list(zip(texts, texts[::-1], strict=True)))


def test_what_was_decomposed_becomes_the_ids_of_what_was_not(twin: SimpleNamespace) -> None:
    _, kernel = opened(twin, qwen())
    for text in SCRIPTS:
        assert encoded(kernel, [unicodedata.normalize("NFD", text)])[0][0] == encoded(kernel, [text])[0][0]


def test_nothing_composes_across_an_added_token(twin: SimpleNamespace) -> None:
    library, kernel = opened(twin, qwen())
    end = library.token_to_id("<|im_end|>")
    ids, _, spans = encoded(kernel, ["e<|im_end|>\u0301e\u0301"])[0]
    parts = [encoded(kernel, [part])[0][0] for part in ("e", "\u0301\u00e9")]
    assert ids == [*parts[0], end, *parts[1]]
    assert spans[:2] == [(0, 1), (1, 11)]
    assert spans[-1] == (12, 13)  # of the two characters that compose, the library names the first alone


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "whole"])
def test_random_texts_and_normalized_added_tokens(twin: SimpleNamespace, kind: Kind) -> None:
    library, kernel = opened(twin, pairing(kind, kind != "qwen2", kind != "qwen2"))
    texts = MARKED + random_texts(800 if twin.kind == "compiled" else 80)
    assert encoded(kernel, texts) == expected(library, texts)


def test_single_words_beside_what_was_normalized_and_what_was_not(twin: SimpleNamespace) -> None:
    library, kernel = opened(twin, pairing("qwen2", False, False))
    texts = [
        f"{before}<w>{behind}"
        for before in ("", "a", "e\u0301", "<|im_end|>", " ")
        for behind in ("", "b", " ", "\u0301")
    ]
    assert encoded(kernel, texts) == expected(library, texts)


@pytest.mark.parametrize("max_length", [0, 1, 3, 10])
def test_truncation_keeps_the_first_tokens(twin: SimpleNamespace, max_length: int) -> None:
    library, kernel = opened(twin, qwen())
    texts = DECOMPOSED + MARKED
    whole = [
        (ids[:max_length], types[:max_length], spans[:max_length]) for ids, types, spans in expected(library, texts)
    ]
    assert encoded(kernel, texts, truncation=Truncation(max_length=max_length)) == whole


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_code_points_between_letters_and_marks(twin: SimpleNamespace, kind: Kind) -> None:
    library, kernel = opened(twin, pairing(kind, False, True))
    chars = [
        chr(code) for code in range(0, 0x110000, 31 if twin.kind == "compiled" else 997) if not 0xD800 <= code < 0xE000
    ]
    for start in range(0, len(chars), 50_000):
        some = chars[start : start + 50_000]
        texts = [
            "|".join(f"e{char}\u0323 {char}\u0301" for char in some[index : index + 24])
            for index in range(0, len(some), 24)
        ]
        assert encoded(kernel, texts) == expected(library, texts)


def test_an_empty_sequence_is_no_normalizer(twin: SimpleNamespace) -> None:
    library = Tokenizer.from_str(qwen().decode())
    library.normalizer = normalizers.Sequence([])
    model = BpeModel.from_tokenizer_json(library.to_str().encode())
    assert not model.nfc
    kernel: Any = twin.BpeTokenizer(model)
    assert encoded(kernel, DECOMPOSED) == expected(library, DECOMPOSED)


def test_long_runs_take_no_quadratic_time(twin: SimpleNamespace) -> None:
    _, kernel = opened(twin, qwen())
    length = 4_000 if twin.kind == "reference" else 300_000
    start = time.perf_counter()
    kernel.tokenize(
        [unit * (length // len(unit)) for unit in ("e\u0301", "\u0301\u0323", "\u1100\u1161\u11a8")], offsets=True
    )
    assert time.perf_counter() - start < 20
