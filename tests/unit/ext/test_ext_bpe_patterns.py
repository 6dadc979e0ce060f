"""The known regular expressions: those with one scanner cut every text alike, and as both twins cut it."""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
from edgeonnx_ext.bpe import KNOWN_EXPRESSIONS, BpeModel
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from tests.support.tokenizers import pairing_bpe_json
from tests.unit.ext.test_ext_bpe_kernel import NASTY, encoded, expected

POOL = "aAsSſtTrReEvVlLmMdD''' \t\n\r\x0b\u2028\x85\xa01٣½!?/éǅ中\u0301\u093f"


def by_pattern() -> dict[str, list[str]]:
    found = defaultdict(list)
    for expression, pattern in KNOWN_EXPRESSIONS.items():
        found[pattern].append(expression)
    return found


def random_texts(count: int) -> list[str]:
    rng = random.Random(3)
    return ["".join(rng.choices(POOL, k=rng.randint(1, 14))) for _ in range(count)]


def code_points() -> list[str]:
    """Code points where a contraction, a letter or a space could end: all of the lower ones, and a sample."""
    chars = [chr(code) for code in (*range(0x3000), *range(0x3000, 0x110000, 37)) if not 0xD800 <= code < 0xE000]
    shapes = [f"x'{char}e{char}'l{char} {char}" for char in chars]
    return ["|".join(shapes[start : start + 40]) for start in range(0, len(shapes), 40)]


@pytest.mark.parametrize("pattern", by_pattern())
def test_the_expressions_of_a_scanner_cut_alike(pattern: str) -> None:
    first, *others = (Split(Regex(expression), "isolated") for expression in by_pattern()[pattern])
    for text in NASTY + random_texts(1500) + code_points():
        pieces = first.pre_tokenize_str(text)
        assert all(split.pre_tokenize_str(text) == pieces for split in others), ascii(text)


@pytest.mark.parametrize("pattern", by_pattern())
def test_removing_what_is_between_matches_removes_nothing(twin: SimpleNamespace, pattern: str) -> None:
    library = Tokenizer.from_str(pairing_bpe_json("whole").decode())
    split = Split(Regex(by_pattern()[pattern][-1]), "removed", invert=True)
    library.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    kernel = twin.BpeTokenizer(BpeModel.from_tokenizer_json(library.to_str().encode()))
    texts = NASTY + random_texts(200)
    assert encoded(kernel, texts) == expected(library, texts)
