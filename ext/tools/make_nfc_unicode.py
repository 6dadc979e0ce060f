"""Ask the installed `tokenizers` which characters its NFC composes, and write `edgeonnx_ext/nfc_unicode.bin`.

    python ext/tools/make_nfc_unicode.py            writes the table
    python ext/tools/make_nfc_unicode.py --check    compares the shipped table with the installed library

Decompositions and combining classes come from `bert_unicode.bin`: run `make_bert_unicode.py` first.
`edgeonnx_ext._nfc_unicode` documents the file and reads it.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers.normalizers import NFC

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from edgeonnx_ext import _nfc_unicode as table_format
from edgeonnx_ext import _unicode
from edgeonnx_ext.reference import nfc as reference

TABLE_PATH = Path(__file__).resolve().parents[1] / "edgeonnx_ext" / "nfc_unicode.bin"
CHUNK = 2048
# A starter that neither composes nor decomposes, so that the probes of one text cannot influence each other.
SEPARATOR = "|"


def normalized(texts: list[str]) -> list[str]:
    """Return NFC of each of `texts`, which are free of SEPARATOR; asked in bulk, as a call for each is slow."""
    nfc = NFC().normalize_str
    results: list[str] = []
    for start in range(0, len(texts), CHUNK):
        results += nfc(SEPARATOR.join(texts[start : start + CHUNK])).split(SEPARATOR)
    if len(results) != len(texts):
        raise RuntimeError(f"expected {len(texts)} texts, found {len(results)}: one of them makes {SEPARATOR!r}")
    return results


def decompositions() -> dict[str, str]:
    """Return the full canonical decomposition of each character that has one; Hangul syllables aside."""
    facts = _unicode.load_table().facts
    decomposed = np.flatnonzero(table_format.field_of_each("nfd_length"))
    return {chr(code_point): facts(code_point).nfd for code_point in decomposed.tolist()}


def probe() -> dict[tuple[str, str], str]:
    """Return the composite of each pair that composes.

    A composite is the NFC of its own decomposition; its pair is that of all but the last character, composed, and the
    last. That nothing else composes is checked over every character that has to do with a composition.
    """
    decomposed = {char: nfd for char, nfd in decompositions().items() if len(nfd) > 1}
    heads = normalized([nfd[:-1] for nfd in decomposed.values()])
    candidates = [(head, nfd[-1]) for head, nfd in zip(heads, decomposed.values(), strict=True)]
    texts = normalized(["".join(candidate) for candidate in candidates])
    pairs = {pair: char for pair, char, text in zip(candidates, decomposed, texts, strict=True) if text == char}
    _check_no_others(pairs)
    return pairs


def _check_no_others(pairs: dict[tuple[str, str], str]) -> None:
    related = sorted({char for pair in pairs for char in pair} | set(pairs.values()))
    texts = [first + second for first, second in product(related, sorted({second for _, second in pairs}))]
    for text, found in zip(texts, normalized(texts), strict=True):
        composed = reference.compose(reference.decompose(text), lambda *pair: pairs.get(pair))
        expected = "".join(char for char, _ in composed)
        if found != expected:
            raise RuntimeError(f"{text!a}: expected {expected!a}, which the pairs give, found {found!a}")


def encode_table(pairs: dict[tuple[str, str], str]) -> bytes:
    """Return the file's bytes for `pairs`."""
    rows = sorted((ord(first), ord(second), ord(composed)) for (first, second), composed in pairs.items())
    payload = np.array(rows, dtype="<u4").T.tobytes()
    version = tokenizers.__version__.encode("ascii")
    header = table_format.HEADER.pack(table_format.MAGIC, table_format.FORMAT, len(rows), zlib.crc32(payload), version)
    return header + payload


def differences(shipped: bytes, fresh: bytes) -> list[str]:
    """Return a line for each pair whose composite differs between two tables; the probed version may differ."""
    old, new = table_format.decode_table(shipped).pairs(), table_format.decode_table(fresh).pairs()
    return [
        f"U+{ord(pair[0]):04X} U+{ord(pair[1]):04X}: the table has {old.get(pair)!r}, "
        f"tokenizers {tokenizers.__version__} has {new.get(pair)!r}"
        for pair in sorted(old.keys() | new.keys())
        if old.get(pair) != new.get(pair)
    ]


def main() -> int:
    """Write the table, or compare it (`--check`); return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if a pair differs")
    arguments = parser.parse_args()
    fresh = encode_table(probe())
    if not arguments.check:
        TABLE_PATH.write_bytes(fresh)
        sys.stdout.write(f"wrote {TABLE_PATH} ({len(fresh)} bytes) from tokenizers {tokenizers.__version__}\n")
        return 0
    found = differences(TABLE_PATH.read_bytes(), fresh)
    sys.stdout.write("\n".join([*found[:50], f"{len(found)} pairs differ"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
