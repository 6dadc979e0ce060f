"""Ask the installed `tokenizers` what BERT does with each code point, and write `edgeonnx_ext/bert_unicode.bin`.

    python ext/tools/make_bert_unicode.py            writes the table
    python ext/tools/make_bert_unicode.py --check    compares the shipped table with the installed library

Run it after an upgrade of `tokenizers` that made `tests/unit/ext/test_unicode.py` fail, and read the difference: each
changed code point is a text whose ids changed. `edgeonnx_ext._unicode` documents the file and reads it.
"""

from __future__ import annotations

import argparse
import sys
import unicodedata
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from tokenizers.normalizers import NFD, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from edgeonnx_ext import _unicode as table_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLE_PATH = Path(__file__).resolve().parents[1] / "edgeonnx_ext" / "bert_unicode.bin"
BLOCK_SHIFT = 7
CHUNK = 2048
# Between two probed characters: a starter that no step changes, so that neighbours cannot influence each other.
SEPARATOR = "|"
LOWEST_MARK, HIGHEST_MARK = "\u0334", "\u0345"  # combining classes 1 and 240
SURROGATES = range(0xD800, 0xE000)


def characters() -> list[str]:
    """Return every character that a text can hold: all code points but the surrogates."""
    return [chr(cp) for cp in range(table_format.CODE_POINTS) if cp not in SURROGATES]


def chunks(items: list[str]) -> Iterator[list[str]]:
    """Yield `items` in runs of CHUNK."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def normalizer(*, clean: bool = False, cjk: bool = False, strip: bool = False, lower: bool = False) -> BertNormalizer:
    """Return a BertNormalizer that does only the named steps."""
    return BertNormalizer(clean_text=clean, handle_chinese_chars=cjk, strip_accents=strip, lowercase=lower)


def changes(normalize: Callable[[str], str], chars: list[str]) -> dict[str, str]:
    """Return what `normalize` makes of each of `chars` that it changes; asked in bulk, as a call for each is slow."""
    results: dict[str, str] = {}
    for chunk in chunks(chars):
        joined = SEPARATOR.join(chunk)
        result = normalize(joined)
        if result == joined:
            continue
        parts = result.split(SEPARATOR)
        if len(parts) != len(chunk):  # the chunk holds the separator itself, or something that maps to it
            parts = [normalize(char) for char in chunk]
        results.update((char, part) for char, part in zip(chunk, parts, strict=True) if char != part)
    return results


def split_flags(chars: list[str]) -> dict[str, int]:
    """Return SPLIT or PUNCTUATION for the characters that BertPreTokenizer cuts at, probed between letters.

    A character that no piece covers was removed (whitespace); one that is a piece alone was isolated (punctuation).
    """
    pre_tokenizer = BertPreTokenizer()
    flags: dict[str, int] = {}
    for chunk in chunks(chars):
        text = "a" + "a".join(chunk) + "a"
        spans = [span for _, span in pre_tokenizer.pre_tokenize_str(text)]
        covered = {position for start, end in spans for position in range(start, end)}
        removed = {text[position]: table_format.SPLIT for position in range(len(text)) if position not in covered}
        alone = {text[start]: table_format.PUNCTUATION for start, end in spans if end - start == 1}
        flags |= {char: flag for char, flag in (removed | alone).items() if char != "a"}
    return flags


def combining_classes(chars: list[str], decomposed: dict[str, str]) -> dict[str, int]:
    """Return the canonical combining class of each character that has one, from how NFD orders it among known marks.

    Python's `unicodedata` only names one mark for each class; the class of every character is then that of the mark
    with which it never changes places.
    """
    nfd = NFD().normalize_str
    # A nonstarter changes places with the lowest class behind it, or with the highest before it.
    moved = {pair[0] for pair in changes(nfd, [char + LOWEST_MARK for char in chars])}
    moved |= {pair[1] for pair in changes(nfd, [HIGHEST_MARK + char for char in chars])}
    nonstarters = sorted(char for char in moved if char not in decomposed)
    # Reversed: of each class the lowest code point stays.
    marks = {unicodedata.combining(char): char for char in reversed(nonstarters) if unicodedata.combining(char)}
    classes: dict[str, int] = {}
    for char in nonstarters:
        same = [ccc for ccc, mark in marks.items() if nfd(char + mark + char) == char + mark + char]
        if len(same) != 1:
            raise RuntimeError(f"U+{ord(char):04X}: expected one combining class, found {same}")
        classes[char] = same[0]
    return classes


def probe() -> dict[int, table_format.CharFacts]:
    """Return the facts of each code point that has any: that some step removes, replaces, reorders or splits at."""
    chars = characters()
    cleaned = changes(normalizer(clean=True).normalize_str, chars)
    spaced = changes(normalizer(cjk=True).normalize_str, chars)
    stripped = changes(normalizer(strip=True).normalize_str, chars)
    lowered = changes(normalizer(lower=True).normalize_str, chars)
    decomposed = changes(NFD().normalize_str, chars)
    split = split_flags(chars)
    classes = combining_classes(chars, decomposed)
    facts: dict[int, table_format.CharFacts] = {}
    for char in sorted(set().union(cleaned, spaced, stripped, lowered, decomposed, split, classes)):
        flags = split.get(char, 0) | _clean_flag(char, cleaned) | _cjk_flag(char, spaced)
        facts[ord(char)] = table_format.CharFacts(
            flags=flags | _strip_flag(char, stripped, decomposed),
            combining=classes.get(char, 0),
            nfd=decomposed.get(char, char),
            lower=lowered.get(char, char),
        )
    return facts


def _clean_flag(char: str, cleaned: dict[str, str]) -> int:
    if char not in cleaned:
        return 0
    _expect(cleaned[char] in ("", " "), char, "is kept, removed or made a space by clean_text")
    return table_format.CLEAN_SPACE if cleaned[char] else table_format.CLEAN_DROP


def _cjk_flag(char: str, spaced: dict[str, str]) -> int:
    if char not in spaced:
        return 0
    _expect(spaced[char] == f" {char} ", char, "gets a space on both sides")
    return table_format.CJK


def _strip_flag(char: str, stripped: dict[str, str], decomposed: dict[str, str]) -> int:
    """Return NONSPACING or HANGUL, if the character is one, after checking that it decomposes as the kernels assume."""
    if char not in decomposed:
        _expect(stripped.get(char, "") == "", char, "is kept or removed by strip_accents")
        return table_format.NONSPACING if char in stripped else 0
    kept = "".join(stripped.get(part, part) for part in decomposed[char])
    _expect(stripped.get(char, char) == kept, char, "loses exactly its nonspacing marks")
    if ord(char) not in table_format.HANGUL_SYLLABLES:
        return 0
    _expect(decomposed[char] == table_format.hangul_jamo(ord(char)), char, "decomposes as Hangul does")
    return table_format.HANGUL


def _expect(condition: bool, char: str, what: str) -> None:
    if not condition:
        raise RuntimeError(f"U+{ord(char):04X}: expected that it {what}; the table's format cannot tell what it does")


def encode_table(facts: dict[int, table_format.CharFacts]) -> bytes:
    """Return the file's bytes for `facts`; a code point that they do not name is an ordinary letter."""
    pool: list[int] = []
    places: dict[str, int] = {}
    records: dict[tuple[int, ...], int] = {(0, 0, 0, 0, 0, 0): 0}

    def place(code_point: int, text: str) -> tuple[int, int]:
        if text == chr(code_point):
            return 0, 0
        if text not in places:
            places[text] = len(pool)
            pool.extend(map(ord, text))
        return len(text), places[text]

    indices = np.zeros(table_format.CODE_POINTS, dtype=np.uint16)
    for code_point, fact in facts.items():
        by_rule = bool(fact.flags & table_format.HANGUL)
        nfd_length, nfd_start = (0, 0) if by_rule else place(code_point, fact.nfd)
        lower_length, lower_start = place(code_point, fact.lower)
        record = (fact.flags, fact.combining, nfd_length, lower_length, nfd_start, lower_start)
        indices[code_point] = records.setdefault(record, len(records))
    blocks, stage1 = np.unique(indices.reshape(-1, 1 << BLOCK_SHIFT), axis=0, return_inverse=True)
    payload = b"".join(
        (
            stage1.astype("<u2").tobytes(),
            blocks.astype("<u2").tobytes(),
            np.array(list(records), dtype=table_format.RECORD_DTYPE).tobytes(),
            np.array(pool, dtype="<u4").tobytes(),
        )
    )
    header = table_format.HEADER.pack(
        table_format.MAGIC,
        table_format.FORMAT,
        BLOCK_SHIFT,
        len(blocks),
        len(records),
        len(pool),
        zlib.crc32(payload),
        tokenizers.__version__.encode("ascii"),
    )
    return header + payload


def differences(shipped: bytes, fresh: bytes) -> list[str]:
    """Return a line for each code point whose facts differ between two tables; the probed version may differ."""
    if shipped[table_format.HEADER.size :] == fresh[table_format.HEADER.size :]:
        return []
    old, new = table_format.decode_table(shipped), table_format.decode_table(fresh)
    both = ((cp, old.facts(cp), new.facts(cp)) for cp in range(table_format.CODE_POINTS))
    return [
        f"U+{cp:04X}: the table has {ours}, tokenizers {tokenizers.__version__} has {theirs}"
        for cp, ours, theirs in both
        if ours != theirs
    ]


def main() -> int:
    """Write the table, or compare it (`--check`); return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if a code point differs")
    arguments = parser.parse_args()
    fresh = encode_table(probe())
    if not arguments.check:
        TABLE_PATH.write_bytes(fresh)
        sys.stdout.write(f"wrote {TABLE_PATH} ({len(fresh)} bytes) from tokenizers {tokenizers.__version__}\n")
        return 0
    found = differences(TABLE_PATH.read_bytes(), fresh)
    sys.stdout.write("\n".join([*found[:50], f"{len(found)} code points differ"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
