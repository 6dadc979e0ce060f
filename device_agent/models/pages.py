"""Memory of mapped files that is not needed any more.

ONNX Runtime maps a bundle's tensors and makes its own packed copies of matrices that it multiplies. What it read for
that stays resident although nothing reads it again: a language model would weigh nearly twice as much as it must. The
kernel is told that those pages may go; whatever is read later (rows of the embedding table) comes back by itself.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

logger = logging.getLogger("edgeonnx.agent")

SMAPS = Path("/proc/self/smaps")
_MADV_DONTNEED = 4


def clean_mappings(smaps: str, folder: Path) -> list[tuple[int, int]]:
    """Where files of a folder are mapped and memory holds nothing but what those files hold.

    ONNX Runtime maps tensors so that it might write to them, and what it wrote would be lost. It writes nothing, and
    the kernel counts what was written (`Anonymous`), so a mapping with any such page is left out.

    Args:
        smaps: The text of `/proc/self/smaps`, as proc(5) describes it.
        folder: The folder, resolved.

    Returns:
        Start and end of each mapping, in bytes.
    """
    prefix = f"{folder}/"
    found: list[tuple[int, int]] = []
    here: tuple[int, int] | None = None
    for line in smaps.splitlines():
        fields = line.split(maxsplit=5)
        if fields and not fields[0].endswith(":"):
            start, _, end = fields[0].partition("-")
            inside = len(fields) == 6 and fields[5].startswith(prefix)
            here = (int(start, 16), int(end, 16)) if inside else None
        elif here is not None and fields[:2] == ["Anonymous:", "0"]:
            found.append(here)
    return found


def let_go(folder: Path | None) -> None:
    """Let the pages of mapped files go that lie in a folder; nothing happens where the system has no such call.

    Args:
        folder: The folder; None: none is mapped.
    """
    if folder is None:
        return
    try:
        smaps = SMAPS.read_text(encoding="utf-8", errors="surrogateescape")
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in clean_mappings(smaps, folder.resolve()):
        if madvise(start, end - start, _MADV_DONTNEED) != 0:
            logger.debug("pages of %s stay: errno %d", folder, ctypes.get_errno())
