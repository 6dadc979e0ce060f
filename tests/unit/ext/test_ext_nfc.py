"""NFC and its alignments against Hugging Face `tokenizers`; every test runs over both twins."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType

import edgeonnx_ext
import numpy as np
import pytest
from edgeonnx_ext import _nfc_unicode, _unicode
from edgeonnx_ext.reference import nfc as reference
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import Split

from tests.unit.ext.conftest import compiled

PACKAGE = Path(edgeonnx_ext.__file__).parent
TOOL = Path(__file__).resolve().parents[3] / "ext" / "tools" / "make_nfc_unicode.py"
library_nfc = NFC().normalize_str

# Marks of many classes, decompositions of every kind, Hangul, and what composes with neither.
MARKS = "\u0300\u0301\u0304\u0307\u0308\u030a\u0323\u0327\u0328\u0338\u0345\u0334\u0344\u0340\u0f71\u0f72\u0f73\u0f74"
MARKS += "\u093c\u094d\u3099\u309a\u302e\u05b4\u0653\u0654\u0655\u0c56\u09be\u09d7\u1133a\U0001d165\U0001d16e\u20d0"
LETTERS = (
    "aAeoOsSzqéÅ\u212bộǖὰᾂᾀαωΩ\u2126ΐíｶカがかは\u0915\u0958\u0929\u09c7\u0cca\u0cc6\u0cc2\u0cd5\u0dd9\u0ddd\u0f40\u0fb2"
)
LETTERS += "יִשׂ\u0627\u06d5ệ\ufb2c\uf900\u2adc≠=<\U0001d15e\U0001d158\U000110a5\U000110ba"
HANGUL = "가각힣\u1100\u1112\u1113\u1161\u1175\u1176\u11a7\u11a8\u11c2\u11c3"
POOL = MARKS + LETTERS + HANGUL + " .\n"


@pytest.fixture(params=["compiled", "reference"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_nfc") if request.param == "compiled" else reference


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_nfc_unicode", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def characters(twin: ModuleType) -> list[str]:
    """Return every character; for the twin, which is slow, every one that NFC has any fact about, and some others."""
    table = _nfc_unicode.load_table()
    field = _nfc_unicode.field_of_each
    wanted = (field("nfd_length") > 0) | (field("combining") > 0) | (field("flags") & _unicode.HANGUL > 0)
    wanted |= _nfc_unicode.unstable(table)
    wanted[:: 97 if twin is reference else 1] = True
    return [chr(code) for code in np.flatnonzero(wanted).tolist() if not 0xD800 <= code < 0xE000]


def random_texts(count: int, length: int) -> Iterator[str]:
    rng = random.Random(4)
    for _ in range(count):
        pool = rng.choice([POOL, MARKS, HANGUL])
        yield "".join(rng.choices(pool, k=rng.randint(1, length)))


@lru_cache(maxsize=1)
def aligning_tokenizer() -> Tokenizer:
    """Return a tokenizer of the library whose tokens are the characters of the normalized text."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, "[UNK]"))
    tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    return tokenizer


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_is_what_the_installed_library_does() -> None:
    """Probes the compositions again: an upgrade of tokenizers that changes one fails here."""
    tool = load_tool()
    found = tool.differences((PACKAGE / "nfc_unicode.bin").read_bytes(), tool.encode_table(tool.probe()))
    assert not found, f"{len(found)} pairs differ:\n" + "\n".join(found[:20])


def test_a_changed_pair_is_told() -> None:
    tool = load_tool()
    pairs = _nfc_unicode.load_table().pairs()
    shipped = tool.encode_table(pairs)
    assert tool.differences(shipped, tool.encode_table({**pairs, ("a", "\u0301"): "b"})) == [
        f"U+0061 U+0301: the table has 'á', tokenizers {tool.tokenizers.__version__} has 'b'"
    ]


def test_text_can_be_cut_before_every_settled_character() -> None:
    """The kernel's rule: the decomposition of a settled composite begins with what never composes backwards."""
    table = _nfc_unicode.load_table()
    unstable, facts = _nfc_unicode.unstable(table), _unicode.load_table().facts
    for composed in table.composed.tolist():
        first = ord(facts(composed).nfd[0])
        assert unstable[composed] or (not unstable[first] and not facts(first).combining), hex(composed)


def test_the_lowest_unsettled_character_is_the_one_that_the_kernel_names() -> None:
    bits = _nfc_unicode.unsettled(_nfc_unicode.load_table())
    declared = re.search(r"LOWEST_UNSETTLED = (0x[0-9a-f]+)", (PACKAGE / "_nfc.pxd").read_text())
    assert declared is not None
    assert int(np.flatnonzero(bits)[0]) == int(declared[1], 16)


def test_the_kernel_has_the_flag_of_hangul() -> None:
    assert f"HANGUL_FLAG = {_unicode.HANGUL} " in (PACKAGE / "_nfc.pxd").read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:47], "47 bytes"),
        (lambda data: data[:-1], "checksum"),
        (lambda data: data[:12] + b"\1\0\0\0" + data[16:], "checksum"),
        (lambda data: b"X" + data[1:], "format 1"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "checksum"),
    ],
)
def test_a_damaged_table_is_refused(damage, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        _nfc_unicode.decode_table(damage((PACKAGE / "nfc_unicode.bin").read_bytes()))


# --- the text ---------------------------------------------------------------------------------------------------------


def test_every_code_point_alone(twin: ModuleType) -> None:
    chars = characters(twin)
    for start in range(0, len(chars), 4096):
        text = "|".join(chars[start : start + 4096])
        assert twin.nfc(text) == library_nfc(text), hex(start)


def test_every_code_point_after_a_letter_and_before_a_mark(twin: ModuleType) -> None:
    chars = characters(twin)
    for start in range(0, len(chars), 4096):
        text = "|".join(f"e{char}\u0323" for char in chars[start : start + 4096])
        assert twin.nfc(text) == library_nfc(text), hex(start)


def test_every_pair_that_composes_and_pairs_that_do_not(twin: ModuleType) -> None:
    pairs = _nfc_unicode.load_table().pairs()
    assert len(pairs) > 900
    text = "|".join(first + second for first, second in pairs)
    assert twin.nfc(text) == library_nfc(text) == "|".join(pairs.values())
    text = "|".join(first + second for first, second in product(POOL, repeat=2))
    assert twin.nfc(text) == library_nfc(text)


def test_every_hangul_syllable_from_its_jamo(twin: ModuleType) -> None:
    syllables = [chr(code) for code in _unicode.HANGUL_SYLLABLES]
    text = "|".join(map(_unicode.hangul_jamo, map(ord, syllables)))
    assert twin.nfc(text) == library_nfc(text) == "|".join(syllables)
    text = "|".join(f"{syllable}\u11a8" for syllable in syllables)
    assert twin.nfc(text) == library_nfc(text)


def test_random_texts_their_alignments_and_the_quick_look(twin: ModuleType) -> None:
    for text in random_texts(3000, 9):
        expected = library_nfc(text)
        found, positions = twin.nfc_aligned(text)
        assert found == twin.nfc(text) == expected, ascii(text)
        assert positions.dtype == np.int32
        offsets = aligning_tokenizer().encode(text).offsets
        assert [(start, start + 1) for start in positions.tolist()] == offsets, ascii(text)
        assert not twin.is_stable(text) or text == expected, ascii(text)


def test_normalizing_again_changes_nothing_and_parts_that_begin_with_a_starter_stand_alone(twin: ModuleType) -> None:
    unsettled = _nfc_unicode.unsettled(_nfc_unicode.load_table())
    for first, second in pairwise(random_texts(1000, 6)):
        assert twin.nfc(twin.nfc(first)) == twin.nfc(first)
        head = ord(second[0])
        if head >= len(unsettled) or not unsettled[head]:
            assert twin.nfc(first + second) == twin.nfc(first) + twin.nfc(second)


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ("", True),
        ("plain", True),
        ("été", True),
        ("日本語 текст", True),
        ("नमस्ते", True),
        ("e\u0301", False),
        ("\u0344", False),
        ("q\u0323\u0334", False),
        ("q\u0334\u20d0", True),
        ("q\u20d0q\u0334", True),
        ("\u212b", False),
        ("가\u11a8", False),
    ],
)
def test_the_quick_look(twin: ModuleType, text: str, stable: bool) -> None:
    assert twin.is_stable(text) is stable


def test_a_long_run_of_marks_is_sorted(twin: ModuleType) -> None:
    text = "a" + "\u0301\u0323\u0334\u0345" * 5000
    assert twin.nfc(text) == library_nfc(text)
    assert twin.nfc_aligned(text)[1].tolist() == [start for start, _ in aligning_tokenizer().encode(text).offsets]


@pytest.mark.parametrize("text", ["", "a", "\u0301", "\U0001d15e", "ab\u0301"])
def test_texts_of_every_width_and_none(twin: ModuleType, text: str) -> None:
    assert twin.nfc(text) == library_nfc(text)
    assert len(twin.nfc_aligned(text)[1]) == len(library_nfc(text))


def test_lone_surrogates_stay(twin: ModuleType) -> None:
    assert twin.nfc("\ud800e\u0301\udfff") == "\ud800é\udfff"


@pytest.mark.parametrize("name", ["nfc", "nfc_aligned", "is_stable"])
def test_only_a_str_is_a_text(twin: ModuleType, name: str) -> None:
    with pytest.raises(TypeError, match="text: expected a str, found bytes"):
        getattr(twin, name)(b"a")
