r"""Ask the installed `tokenizers` for the classes of each code point, and write `edgeonnx_ext/regex_unicode.bin`.

    python ext/tools/make_regex_unicode.py            writes the table
    python ext/tools/make_regex_unicode.py --check    compares the shipped table with the installed library

Run it after an upgrade of `tokenizers` that made `tests/unit/ext/test_ext_regex_unicode.py` fail, and read the
difference: each changed code point is a text whose pieces changed. `edgeonnx_ext._regex_unicode` documents the file and
reads it.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, PreTokenizer, Split

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from edgeonnx_ext import _regex_unicode as table_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLE_PATH = Path(__file__).resolve().parents[1] / "edgeonnx_ext" / "regex_unicode.bin"
CHUNK = 4096
SURROGATES = range(0xD800, 0xE000)
CLASSES: Final = {
    table_format.LETTER: r"\p{L}+",
    table_format.NUMBER: r"\p{N}+",
    table_format.SPACE: r"\s+",
    table_format.UPPER: r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
    table_format.LOWER: r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
}


def matched(pattern: str) -> NDArray[np.bool_]:
    """Return, for each code point (0x110000,), whether `pattern` (a repeated class) matches it.

    Neighbours do not matter to a class, so whole runs of code points are asked about at once; what the split keeps is
    what the pattern did not match.
    """
    split = Split(Regex(pattern), "removed")
    found = np.zeros(table_format.CODE_POINTS, dtype=np.bool_)
    for points in _chunks():
        inside = np.ones(len(points), dtype=np.bool_)
        for _, (start, end) in split.pre_tokenize_str("".join(map(chr, points))):
            inside[start:end] = False
        found[points] = inside
    return found


def numeric() -> NDArray[np.bool_]:
    """Return, for each code point (0x110000,), whether Digits makes it a piece of its own between two letters."""
    digits: PreTokenizer = Digits(individual_digits=True)
    found = np.zeros(table_format.CODE_POINTS, dtype=np.bool_)
    for points in _chunks():
        # A run of letters and others stays together, so that a piece of one character is a digit, but for lone others.
        text = "".join(f"aa{chr(point)}aa" for point in points)
        for _, (start, end) in digits.pre_tokenize_str(text):
            if end - start == 1:
                found[ord(text[start])] = True
    return found


def _chunks() -> list[list[int]]:
    points = [point for point in range(table_format.CODE_POINTS) if point not in SURROGATES]
    return [points[start : start + CHUNK] for start in range(0, len(points), CHUNK)]


def probe() -> NDArray[np.uint8]:
    """Return the flags of each code point: uint8 (0x110000,)."""
    flags = np.zeros(table_format.CODE_POINTS, dtype=np.uint8)
    for flag, pattern in CLASSES.items():
        flags |= matched(pattern) * np.uint8(flag)
    return flags | numeric() * np.uint8(table_format.NUMERIC)


def encode_table(flags: NDArray[np.uint8]) -> bytes:
    """Return the file's bytes for `flags`: uint8 (0x110000,)."""
    shift = table_format.BLOCK_SHIFT
    blocks, stage1 = np.unique(flags.reshape(-1, 1 << shift), axis=0, return_inverse=True)
    payload = stage1.astype("<u2").tobytes() + blocks.tobytes()
    header = table_format.HEADER.pack(
        table_format.MAGIC,
        table_format.FORMAT,
        shift,
        len(blocks),
        zlib.crc32(payload),
        tokenizers.__version__.encode("ascii"),
    )
    return header + payload


def decoded_flags(data: bytes) -> NDArray[np.uint8]:
    """Return the flags that a table's bytes hold: uint8 (0x110000,)."""
    table = table_format.decode_table(data)
    return table.stage2.reshape(-1, 1 << table_format.BLOCK_SHIFT)[table.stage1].reshape(-1)


def differences(shipped: bytes, flags: NDArray[np.uint8]) -> list[str]:
    """Return a line for each code point whose flags differ from the shipped table's."""
    ours = decoded_flags(shipped)
    return [
        f"U+{point:04X}: the table has {ours[point]:#x}, tokenizers {tokenizers.__version__} has {flags[point]:#x}"
        for point in np.flatnonzero(ours != flags).tolist()
    ]


def main() -> int:
    """Write the table, or compare it (`--check`); return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if a code point differs")
    arguments = parser.parse_args()
    flags = probe()
    if not arguments.check:
        data = encode_table(flags)
        TABLE_PATH.write_bytes(data)
        sys.stdout.write(f"wrote {TABLE_PATH} ({len(data)} bytes) from tokenizers {tokenizers.__version__}\n")
        return 0
    found = differences(TABLE_PATH.read_bytes(), flags)
    sys.stdout.write("\n".join([*found[:50], f"{len(found)} code points differ"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
