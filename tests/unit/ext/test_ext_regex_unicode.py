from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import edgeonnx_ext
import numpy as np
import pytest
from edgeonnx_ext import _regex_unicode
from edgeonnx_ext._regex_unicode import LETTER, LOWER, NUMBER, NUMERIC, SPACE, UPPER

PACKAGE = Path(edgeonnx_ext.__file__).parent
TABLE = PACKAGE / "regex_unicode.bin"
TOOL = Path(__file__).resolve().parents[3] / "ext" / "tools" / "make_regex_unicode.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_regex_unicode", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_table_is_what_the_installed_library_does() -> None:
    """Probes all code points again: an upgrade of tokenizers that changes a character's class fails here."""
    tool = load_tool()
    found = tool.differences(TABLE.read_bytes(), tool.probe())
    assert not found, f"{len(found)} code points differ:\n" + "\n".join(found[:20])


def test_the_library_that_was_probed_is_the_installed_one() -> None:
    import tokenizers

    assert _regex_unicode.load_table().tokenizers_version == tokenizers.__version__


@pytest.mark.parametrize(
    ("char", "flags"),
    [
        ("a", LETTER | LOWER),
        ("A", LETTER | UPPER),
        ("中", LETTER | UPPER | LOWER),
        ("\u0301", UPPER | LOWER),
        ("7", NUMBER | NUMERIC),
        ("½", NUMBER | NUMERIC),
        ("\U00011de0", NUMERIC),
        (" ", SPACE),
        ("\n", SPACE),
        ("\u3000", SPACE),
        ("\x1c", 0),
        ("\u200b", 0),
        ("'", 0),
    ],
)
def test_flags_of_known_characters(char: str, flags: int) -> None:
    assert _regex_unicode.load_table().flags(ord(char)) == flags


def test_classes_agree_with_unicodedata_where_unicode_is_old() -> None:
    table, old = _regex_unicode.load_table(), unicodedata.ucd_3_2_0
    for code_point in range(0x3000):
        category = old.category(chr(code_point))
        if category not in {"Cn", "Cs"} and unicodedata.category(chr(code_point)) == category:
            flags = table.flags(code_point)
            assert bool(flags & LETTER) is (category[0] == "L"), hex(code_point)
            assert bool(flags & NUMBER) is (category[0] == "N"), hex(code_point)


def test_encoding_and_decoding_give_the_flags_back() -> None:
    tool = load_tool()
    flags = np.zeros(_regex_unicode.CODE_POINTS, dtype=np.uint8)
    flags[[0, 1, 127, 128, 0x10FFFF]] = [1, 2, 4, 8, 63]
    assert np.array_equal(tool.decoded_flags(tool.encode_table(flags)), flags)
    assert tool.differences(tool.encode_table(flags), flags) == []
    shipped = tool.encode_table(flags)
    flags[127] = 0
    assert [line[:25] for line in tool.differences(shipped, flags)] == ["U+007F: the table has 0x4"]


def test_the_compiled_kernel_has_the_same_flags() -> None:
    declared = dict(re.findall(r"^    ([A-Z]+) = (\d+)\b", (PACKAGE / "_scan.pxd").read_text(), re.MULTILINE))
    assert [int(declared[name]) for name in ("LETTER", "NUMBER", "SPACE")] == [LETTER, NUMBER, SPACE]


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
def test_a_damaged_table_is_refused(damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(ImportError, match=message):
        _regex_unicode.decode_table(damage(TABLE.read_bytes()))
