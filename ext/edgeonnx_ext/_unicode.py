r"""The facts about each code point that BERT's normalizer and pre-tokenizer use, read from `bert_unicode.bin`.

The facts are those of the Hugging Face `tokenizers` library, not of Python's `unicodedata`: its crates carry Unicode
versions of their own (several at once), and an id is only sure to be the same if the facts are.
`ext/tools/make_bert_unicode.py` asks the installed library about every code point and writes the file; a unit test asks
again and compares.

The file, all integers little-endian:

    header, 64 bytes   magic 8s "EOBERTU\0", format u16, block_shift u16, blocks u32, records u32, pool u32,
                       crc32 u32 of all that follows the header, tokenizers version 24s, 12 bytes of zeros
    stage1             u16[0x110000 >> block_shift]: block of a code point's upper bits
    stage2             u16[blocks << block_shift]: record of (block, lower bits)
    records            8 bytes each: flags u8, combining class u8, decomposition length u8, lower-case length u8,
                       decomposition start u16, lower-case start u16 (both in the pool); length 0 means "itself"
    pool               u32[pool]: code points

Hangul syllables carry only the flag HANGUL: their decomposition is arithmetic (The Unicode Standard, section 3.12), and
`hangul_jamo` computes it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgeonnx_ext._table_file import open_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC: Final = b"EOBERTU\0"
FORMAT: Final = 1
HEADER: Final = struct.Struct("<8sHHIIII24s12x")
CODE_POINTS: Final = 0x110000
RECORD_DTYPE: Final = np.dtype(
    [
        ("flags", "<u1"),
        ("combining", "<u1"),
        ("nfd_length", "<u1"),
        ("lower_length", "<u1"),
        ("nfd_start", "<u2"),
        ("lower_start", "<u2"),
    ]
)

# The flags of a record. `_wordpiece.pyx` repeats them as C constants; a test compares the two.
CLEAN_DROP: Final = 1  # clean_text removes it
CLEAN_SPACE: Final = 2  # clean_text turns it into a space
CJK: Final = 4  # handle_chinese_chars puts a space on both sides
NONSPACING: Final = 8  # strip_accents removes it after decomposition
SPLIT: Final = 16  # the pre-tokenizer splits here and removes it
PUNCTUATION: Final = 32  # the pre-tokenizer makes it a word of its own
HANGUL: Final = 64  # decomposes by arithmetic

_S_BASE, _L_BASE, _V_BASE, _T_BASE = 0xAC00, 0x1100, 0x1161, 0x11A7
_V_COUNT, _T_COUNT = 21, 28
HANGUL_SYLLABLES: Final = range(_S_BASE, _S_BASE + 11172)


@dataclass(frozen=True, kw_only=True)
class CharFacts:
    """What the table says about one code point.

    Attributes:
        flags: Bit set of CLEAN_DROP, CLEAN_SPACE, CJK, NONSPACING, SPLIT, PUNCTUATION, HANGUL.
        combining: Canonical combining class; 0 for a starter.
        nfd: Full canonical decomposition.
        lower: Lower-case form of this one code point, without context.
    """

    flags: int
    combining: int
    nfd: str
    lower: str


@dataclass(frozen=True, kw_only=True)
class UnicodeTable:
    """The decoded table, in native byte order.

    Attributes:
        tokenizers_version: Version of the library that was probed.
        block_shift: How many lower bits of a code point select within a block.
        stage1: uint16 (0x110000 >> block_shift,).
        stage2: uint16 (blocks << block_shift,).
        records: Structured array of RECORD_DTYPE's fields, (records,).
        pool: uint32 (pool,).
    """

    tokenizers_version: str
    block_shift: int
    stage1: NDArray[np.uint16]
    stage2: NDArray[np.uint16]
    records: NDArray[np.void]
    pool: NDArray[np.uint32]

    def facts(self, code_point: int) -> CharFacts:
        """Return what is known of `code_point` (0 to 0x10FFFF)."""
        block = int(self.stage1[code_point >> self.block_shift])
        low = code_point & ((1 << self.block_shift) - 1)
        record = self.records[int(self.stage2[(block << self.block_shift) + low])]
        flags = int(record["flags"])
        nfd = self._mapped(code_point, int(record["nfd_start"]), int(record["nfd_length"]))
        return CharFacts(
            flags=flags,
            combining=int(record["combining"]),
            nfd=hangul_jamo(code_point) if flags & HANGUL else nfd,
            lower=self._mapped(code_point, int(record["lower_start"]), int(record["lower_length"])),
        )

    def _mapped(self, code_point: int, start: int, length: int) -> str:
        if length == 0:
            return chr(code_point)
        return "".join(map(chr, self.pool[start : start + length].tolist()))


def hangul_jamo(code_point: int) -> str:
    """Decompose a Hangul syllable into its two or three jamo (The Unicode Standard, section 3.12)."""
    index = code_point - _S_BASE
    leading, rest = divmod(index, _V_COUNT * _T_COUNT)
    vowel, trailing = divmod(rest, _T_COUNT)
    jamo = chr(_L_BASE + leading) + chr(_V_BASE + vowel)
    return jamo + chr(_T_BASE + trailing) if trailing else jamo


def decode_table(data: bytes) -> UnicodeTable:
    """Decode the bytes of `bert_unicode.bin`.

    Raises:
        ImportError: The bytes are not an intact table of this format: the installation is damaged.
    """
    (shift, blocks, records, pool), probed, payload = open_table(
        "bert_unicode.bin", data, HEADER, {0: MAGIC, 1: FORMAT}
    )
    counts = (CODE_POINTS >> shift, blocks << shift, records, pool)
    dtypes: tuple[np.dtype[Any], ...] = (np.dtype("<u2"), np.dtype("<u2"), RECORD_DTYPE, np.dtype("<u4"))
    arrays, offset = [], 0
    for count, dtype in zip(counts, dtypes, strict=True):
        arrays.append(np.frombuffer(payload, dtype=dtype, count=count, offset=offset).astype(dtype.newbyteorder("=")))
        offset += count * dtype.itemsize
    return UnicodeTable(
        tokenizers_version=probed,
        block_shift=shift,
        stage1=arrays[0],
        stage2=arrays[1],
        records=arrays[2],
        pool=arrays[3],
    )


@lru_cache(maxsize=1)
def load_table() -> UnicodeTable:
    """Return the table that ships with this package; read once."""
    return decode_table((Path(__file__).parent / "bert_unicode.bin").read_bytes())
