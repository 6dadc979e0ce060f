"""What the files of Unicode facts have in common: a header that ends with a checksum and the version that was probed.

`_unicode.py`, `_nfc_unicode.py` and `_regex_unicode.py` say what follows it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from struct import Struct


def damaged(name: str, what: str) -> ImportError:
    """Return the error for a file that is not what was installed."""
    return ImportError(f"edgeonnx_ext/{name} is damaged: {what}. Reinstall edgeonnx.")


def open_table(name: str, data: bytes, header: Struct, expected: dict[int, Any]) -> tuple[tuple[Any, ...], str, bytes]:
    """Check a file's header and checksum.

    Args:
        name: The file's name, for messages.
        data: Its bytes.
        header: Magic, format, the table's own fields, crc32 of all that follows, version of `tokenizers`.
        expected: Fields of the header that must have these values: by place, at least 0 (magic) and 1 (format).

    Returns:
        The table's own fields, the version that was probed, and what follows the header.

    Raises:
        ImportError: It is not an intact table of this format: the installation is damaged.
    """
    if len(data) < header.size:
        raise damaged(name, f"it has {len(data)} bytes, fewer than its header")
    fields = header.unpack_from(data)
    if any(fields[place] != value for place, value in expected.items()):
        raise damaged(name, f"expected {expected[0]!r} format {expected[1]}, found {fields[0]!r} format {fields[1]}")
    payload = data[header.size :]
    if zlib.crc32(payload) != fields[-2]:
        raise damaged(name, "its checksum does not match")
    return fields[2:-2], fields[-1].rstrip(b"\0").decode("ascii"), payload
