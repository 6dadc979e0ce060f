r"""The canonical compositions of NFC (UAX #15), read from `nfc_unicode.bin`.

As `_unicode.py`, which holds the decompositions and combining classes: the facts are those of the Hugging Face
`tokenizers` library. `ext/tools/make_nfc_unicode.py` asks the installed library and writes the file; a unit test asks
again and compares.

The file, all integers little-endian:

    header, 48 bytes   magic 8s "EONFCUN\0", format u16, 2 bytes of zeros, pairs u32, crc32 u32 of all that follows the
                       header, tokenizers version 24s, 4 bytes of zeros
    first              u32[pairs]: ascending; of one first, `second` ascends
    second             u32[pairs]
    composed           u32[pairs]: the primary composite of first and second

Hangul syllables are not in it: they compose by arithmetic (The Unicode Standard, section 3.12).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from edgeonnx_ext import _unicode
from edgeonnx_ext._table_file import damaged, open_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC: Final = b"EONFCUN\0"
FILE: Final = "nfc_unicode.bin"
FORMAT: Final = 1
HEADER: Final = struct.Struct("<8sH2xII24s4x")
# The second parts of Hangul: vowels, and trailing consonants.
HANGUL_SECONDS: Final = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))


@dataclass(frozen=True, kw_only=True)
class NfcTable:
    """The decoded table, in native byte order.

    Attributes:
        tokenizers_version: Version of the library that was probed.
        first: uint32 (pairs,), C-contiguous.
        second: uint32 (pairs,), C-contiguous.
        composed: uint32 (pairs,), C-contiguous.
    """

    tokenizers_version: str
    first: NDArray[np.uint32]
    second: NDArray[np.uint32]
    composed: NDArray[np.uint32]

    def pairs(self) -> dict[tuple[str, str], str]:
        """Return the composite of each pair."""
        rows = zip(self.first.tolist(), self.second.tolist(), self.composed.tolist(), strict=True)
        return {(chr(first), chr(second)): chr(composed) for first, second, composed in rows}


def decode_table(data: bytes) -> NfcTable:
    """Decode the bytes of `nfc_unicode.bin`.

    Raises:
        ImportError: The bytes are not an intact table of this format: the installation is damaged.
    """
    (pairs,), probed, payload = open_table(FILE, data, HEADER, {0: MAGIC, 1: FORMAT})
    if len(payload) != 12 * pairs:
        raise damaged(FILE, "its checksum does not match")
    first, second, composed = np.frombuffer(payload, dtype="<u4").astype(np.uint32).reshape(3, pairs)
    return NfcTable(tokenizers_version=probed, first=first, second=second, composed=composed)


@lru_cache(maxsize=1)
def load_table() -> NfcTable:
    """Return the table that ships with this package; read once."""
    return decode_table((Path(__file__).parent / "nfc_unicode.bin").read_bytes())


def field_of_each(name: str) -> NDArray[np.uint8]:
    """Return one field of `_unicode`'s record for each code point, (0x110000,)."""
    table = _unicode.load_table()
    # Gathered by whole blocks: code point by code point would take most of the package's import.
    blocks = table.records[name][table.stage2].reshape(-1, 1 << table.block_shift)
    field: NDArray[np.uint8] = blocks[table.stage1].reshape(-1)[: _unicode.CODE_POINTS]
    return field


def unstable(table: NfcTable) -> NDArray[np.bool_]:
    """Return which code points NFC may change: they decompose for good, or may compose with what stands before them.

    Of these UAX #15 says that NFC_Quick_Check is No or Maybe. All others that are starters begin anew: nothing before
    them changes them, nor they what stands before them.

    Returns:
        bool (0x110000,).
    """
    result: NDArray[np.bool_] = field_of_each("nfd_length") > 0
    result[table.composed] = False
    result[table.second] = True
    result[list(HANGUL_SECONDS)] = True
    return result


def unsettled(table: NfcTable) -> NDArray[np.uint8]:
    """Return of each code point up to the last that is unsettled: bit 0, whether NFC may change it; bit 1, nonstarter.

    A text may be cut before each settled one (neither bit), and its parts normalized apart.

    Returns:
        uint8 (n,), C-contiguous; the code points from n on are settled.
    """
    bits = unstable(table).astype(np.uint8) | (field_of_each("combining") > 0).astype(np.uint8) << 1
    return np.ascontiguousarray(bits[: int(np.flatnonzero(bits)[-1]) + 1])
