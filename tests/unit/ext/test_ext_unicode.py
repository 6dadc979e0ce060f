from __future__ import annotations

import importlib.util
import re
import unicodedata
from pathlib import Path
from types import ModuleType

import edgeonnx_ext
import pytest
from edgeonnx_ext import _unicode

PACKAGE = Path(edgeonnx_ext.__file__).parent
TOOL = Path(__file__).resolve().parents[3] / "ext" / "tools" / "make_bert_unicode.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_bert_unicode", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_the_installed_library_does() -> None:
    """Probes all code points again: an upgrade of tokenizers that changes a character fails here."""
    tool = load_tool()
    shipped = (PACKAGE / "bert_unicode.bin").read_bytes()
    found = tool.differences(shipped, tool.encode_table(tool.probe()))
    assert not found, f"{len(found)} code points differ:\n" + "\n".join(found[:20])


@pytest.mark.parametrize(
    ("char", "flags"),
    [
        ("a", 0),
        (" ", _unicode.SPLIT),
        ("\t", _unicode.SPLIT | _unicode.CLEAN_SPACE),
        ("\0", _unicode.CLEAN_DROP),
        ("\ufffd", _unicode.CLEAN_DROP),
        ("$", _unicode.PUNCTUATION),
        ("中", _unicode.CJK),
        ("\u0301", _unicode.NONSPACING),
        ("\u302e", 0),
        ("각", _unicode.HANGUL),
    ],
)
def test_flags_of_known_characters(char: str, flags: int) -> None:
    assert _unicode.load_table().facts(ord(char)).flags == flags


def test_decompositions_and_classes_agree_with_unicodedata_where_unicode_is_old() -> None:
    table, old = _unicode.load_table(), unicodedata.ucd_3_2_0
    for code_point in range(0x30000):
        char = chr(code_point)
        if old.category(char) not in {"Cn", "Cs"}:
            facts = table.facts(code_point)
            assert facts.nfd == unicodedata.normalize("NFD", char), hex(code_point)
            if facts.nfd == char:  # only what NFD leaves is ever ordered
                assert facts.combining == unicodedata.combining(char), hex(code_point)


@pytest.mark.parametrize("syllable", ["가", "각", "힣"])
def test_hangul_is_arithmetic(syllable: str) -> None:
    assert _unicode.hangul_jamo(ord(syllable)) == unicodedata.normalize("NFD", syllable)


def test_the_compiled_kernel_has_the_same_flags() -> None:
    names = ("CLEAN_DROP", "CLEAN_SPACE", "CJK", "NONSPACING", "SPLIT", "PUNCTUATION", "HANGUL")
    declared = dict(
        re.findall(r"^    ([A-Z]+(?:_[A-Z]+)?) = (\d+)$", (PACKAGE / "_bert.pxd").read_text(), re.MULTILINE)
    )
    assert {name: int(declared[name]) for name in names} == {name: getattr(_unicode, name) for name in names}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "0 bytes"),
        (lambda data: data[:40], "40 bytes"),
        (lambda data: data[:-1], "checksum"),
        (lambda data: b"X" + data[1:], "format 1"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "checksum"),
    ],
)
def test_a_damaged_table_is_refused(damage, message: str) -> None:
    with pytest.raises(ImportError, match=message):
        _unicode.decode_table(damage((PACKAGE / "bert_unicode.bin").read_bytes()))
