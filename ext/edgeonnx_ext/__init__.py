"""The compiled package of edgeonnx: text to padded id buffers, pooling, normalization.

It depends on numpy alone; the `tokenizers` library is imported only for a tokenizer that this package does not know.
Each kernel has a plain twin (`_reference.py`) with the same results and errors. `HAS_NATIVE` tells whether all compiled
kernels are in use; if not, `NATIVE_PROBLEM` says why. EDGEONNX_EXT_PURE=1 forces the twins.

Build host and device run this same code, so the tokenizer on the device is the one that was proven on the host.
"""

from __future__ import annotations

from edgeonnx_ext._kernels import (
    HAS_NATIVE,
    NATIVE_PROBLEM,
    Tokenized,
    WordPieceTokenizer,
    l2_normalize_into,
    masked_mean_into,
)
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.text import TextBatch, TextEncoder, open_text_encoder
from edgeonnx_ext.wordpiece import AddedToken, TemplatePiece, WordPieceModel

__all__ = [
    "HAS_NATIVE",
    "NATIVE_PROBLEM",
    "AddedToken",
    "TemplatePiece",
    "TextBatch",
    "TextEncoder",
    "Tokenized",
    "TokenizerDataError",
    "UnknownTokenizerError",
    "WordPieceModel",
    "WordPieceTokenizer",
    "l2_normalize_into",
    "masked_mean_into",
    "open_text_encoder",
]
