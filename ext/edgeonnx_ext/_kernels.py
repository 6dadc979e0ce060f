"""Picks each kernel: compiled, or its plain twin where there is none or EDGEONNX_EXT_PURE=1 asks for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

PURE = os.environ.get("EDGEONNX_EXT_PURE") == "1"

# Why a plain twin is in use; None if both compiled kernels loaded.
NATIVE_PROBLEM: str | None = "EDGEONNX_EXT_PURE=1 is set" if PURE else None

if TYPE_CHECKING:
    from edgeonnx_ext._pooling import l2_normalize_into, masked_mean_into
    from edgeonnx_ext._wordpiece import Tokenized, WordPieceTokenizer
elif PURE:
    from edgeonnx_ext._reference import Tokenized, WordPieceTokenizer, l2_normalize_into, masked_mean_into
else:
    try:
        from edgeonnx_ext._wordpiece import Tokenized, WordPieceTokenizer
    except ImportError as error:
        from edgeonnx_ext._reference import Tokenized, WordPieceTokenizer

        NATIVE_PROBLEM = f"edgeonnx_ext._wordpiece does not load: {error}"
    try:
        from edgeonnx_ext._pooling import l2_normalize_into, masked_mean_into
    except ImportError as error:
        from edgeonnx_ext._reference import l2_normalize_into, masked_mean_into

        NATIVE_PROBLEM = f"edgeonnx_ext._pooling does not load: {error}"

HAS_NATIVE: bool = NATIVE_PROBLEM is None

__all__ = [
    "HAS_NATIVE",
    "NATIVE_PROBLEM",
    "PURE",
    "Tokenized",
    "WordPieceTokenizer",
    "l2_normalize_into",
    "masked_mean_into",
]
