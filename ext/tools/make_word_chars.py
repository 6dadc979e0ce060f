"""Ask the installed `tokenizers` which code points are word characters, and write `edgeonnx_ext/_word_chars.py`.

    python ext/tools/make_word_chars.py            writes the module
    python ext/tools/make_word_chars.py --check    compares the shipped module with the installed library

An added token with `single_word` is only found between characters that are not word characters. Which those are depends
on the Unicode version of the library's regular expressions, so the library is asked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece

MODULE = Path(__file__).resolve().parents[1] / "edgeonnx_ext" / "_word_chars.py"
START, END = 'RANGES: Final = """\n', '"""\n'
CHUNK = 16384
LINE = 112
TOKEN = "<token>"  # noqa: S105 - not a secret


def word_chars() -> list[int]:
    """Return every code point that, just before a `single_word` token, hides it."""
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106 - not a secret
    tokenizer.add_tokens([AddedToken(TOKEN, single_word=True, normalized=False)])
    token_id = tokenizer.token_to_id(TOKEN)
    code_points = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    found: list[int] = []
    for start in range(0, len(code_points), CHUNK):
        chunk = code_points[start : start + CHUNK]
        encodings = tokenizer.encode_batch_fast([chr(code) + TOKEN for code in chunk], add_special_tokens=False)
        found += [code for code, row in zip(chunk, encodings, strict=True) if token_id not in row.ids]
    return found


def ranges(code_points: list[int]) -> str:
    """Return ascending code points as lines of hexadecimal ranges."""
    runs: list[list[int]] = []
    for code in code_points:
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    lines = [""]
    for first, last in runs:
        item = f"{first:X}" if first == last else f"{first:X}-{last:X}"
        if len(lines[-1]) + len(item) >= LINE:
            lines.append("")
        lines[-1] += f" {item}" if lines[-1] else item
    return "\n".join(lines) + "\n"


def updated(module: str, table: str) -> str:
    """Return the module's text with `table` in place of its ranges."""
    head, rest = module.split(START, 1)
    return head + START + table + END + rest.split(END, 1)[1]


def main() -> int:
    """Write or check the module."""
    parser = argparse.ArgumentParser(description="Write or check edgeonnx_ext/_word_chars.py.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if it differs")
    arguments = parser.parse_args()
    shipped = MODULE.read_text(encoding="utf-8")
    probed = updated(shipped, ranges(word_chars()))
    if arguments.check:
        if probed != shipped:
            sys.stderr.write(f"{MODULE} does not match the installed tokenizers. Write it anew, and read the diff.\n")
        return int(probed != shipped)
    MODULE.write_text(probed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
