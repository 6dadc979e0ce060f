r"""The classes of each code point that the pre-tokenizer patterns name, read from `regex_unicode.bin`.

They are those of the regular expressions and of the digit rule inside the Hugging Face `tokenizers` library, which
carries Unicode tables of its own; `ext/tools/make_regex_unicode.py` asks the installed library about every code point
and writes the file, and a unit test asks again and compares.

The file, all integers little-endian:

    header, 48 bytes   magic 8s "EOREGEX\0", format u16, block_shift u16, blocks u32,
                       crc32 u32 of all that follows the header, tokenizers version 24s, 4 bytes of zeros
    stage1             u16[0x110000 >> block_shift]: block of a code point's upper bits
    stage2             u8[blocks << block_shift]: flags of (block, lower bits)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from edgeonnx_ext._table_file import open_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC: Final = b"EOREGEX\0"
FORMAT: Final = 1
HEADER: Final = struct.Struct("<8sHHII24s4x")
CODE_POINTS: Final = 0x110000
# The kernel is compiled for it: a code point's class is stage2[(stage1[cp >> 7] << 7) + (cp & 127)].
BLOCK_SHIFT: Final = 7

LETTER: Final = 1  # \p{L}
NUMBER: Final = 2  # \p{N}
SPACE: Final = 4  # \s
NUMERIC: Final = 8  # a digit to the pre-tokenizer Digits; a few more than \p{N}
UPPER: Final = 16  # [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
LOWER: Final = 32  # [\p{Ll}\p{Lm}\p{Lo}\p{M}]


@dataclass(frozen=True, kw_only=True)
class RegexTable:
    """The decoded table, in native byte order.

    Attributes:
        tokenizers_version: Version of the library that was probed.
        stage1: uint16 (0x110000 >> BLOCK_SHIFT,).
        stage2: uint8 (blocks << BLOCK_SHIFT,): bit sets of LETTER, NUMBER, SPACE, NUMERIC, UPPER, LOWER.
    """

    tokenizers_version: str
    stage1: NDArray[np.uint16]
    stage2: NDArray[np.uint8]

    def flags(self, code_point: int) -> int:
        """Return the flags of `code_point` (0 to 0x10FFFF)."""
        block = int(self.stage1[code_point >> BLOCK_SHIFT])
        return int(self.stage2[(block << BLOCK_SHIFT) + (code_point & ((1 << BLOCK_SHIFT) - 1))])


def decode_table(data: bytes) -> RegexTable:
    """Decode the bytes of `regex_unicode.bin`.

    Raises:
        ImportError: The bytes are not an intact table of this format: the installation is damaged.
    """
    (shift, blocks), probed, payload = open_table(
        "regex_unicode.bin", data, HEADER, {0: MAGIC, 1: FORMAT, 2: BLOCK_SHIFT}
    )
    stage1 = np.frombuffer(payload, dtype="<u2", count=CODE_POINTS >> shift)
    stage2 = np.frombuffer(payload, dtype=np.uint8, count=blocks << shift, offset=stage1.nbytes)
    return RegexTable(tokenizers_version=probed, stage1=stage1.astype(np.uint16), stage2=stage2)


@lru_cache(maxsize=1)
def load_table() -> RegexTable:
    """Return the table that ships with this package; read once."""
    return decode_table((Path(__file__).parent / "regex_unicode.bin").read_bytes())
