"""Picks each kernel: compiled, or its plain twin where there is none or EDGEONNX_EXT_PURE=1 asks for it.

The kernels of one compiled module stand or fall together, so that two that share objects are always of one kind.
"""

# ruff: noqa: TC004 - type checkers see the stubs of the compiled modules; at run time the loop below sets the names

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

PURE = os.environ.get("EDGEONNX_EXT_PURE") == "1"

# The compiled modules, the module of their plain twins, and the kernels that both have.
MODULES: Final = {
    "_wordpiece": ("wordpiece", ("WordPieceTokenizer",)),
    "_bpe": ("bpe", ("BpeTokenizer",)),
    "_decode": ("decoding", ("DecodeStream", "Decoder")),
    "_nfc": ("nfc", ("is_stable", "nfc", "nfc_aligned")),
    "_pooling": (
        "pooling",
        (
            "first_token_into",
            "l2_normalize_into",
            "last_token_into",
            "masked_max_into",
            "masked_mean_into",
            "masked_mean_sqrt_into",
            "masked_weighted_mean_into",
        ),
    ),
    "_scores": ("scores", ("argmax_into", "log_softmax_into", "sigmoid_into", "softmax_into", "top_k_into")),
    "_sampling": ("sampling", ("probabilities_into", "sample_into")),
    "_floats": ("floats", ("base64_rows", "json_rows")),
    "_images": ("images", ("preprocess_batch_into", "preprocess_into")),
}
TWINS: Final = {name: (module, twin) for module, (twin, names) in MODULES.items() for name in names}

# Why plain twins are in use, a line for each module; None if every compiled kernel loaded.
NATIVE_PROBLEM: str | None = None


def _load(compiled: str) -> ModuleType:
    """Return the compiled module, or its twin if it does not load (then NATIVE_PROBLEM says why)."""
    global NATIVE_PROBLEM
    if PURE:
        NATIVE_PROBLEM = "EDGEONNX_EXT_PURE=1 is set"
    else:
        try:
            return import_module(f"edgeonnx_ext.{compiled}")
        except ImportError as error:
            problem = f"edgeonnx_ext.{compiled} does not load: {error}"
            NATIVE_PROBLEM = problem if NATIVE_PROBLEM is None else f"{NATIVE_PROBLEM}\n{problem}"
    return import_module(f"edgeonnx_ext.reference.{MODULES[compiled][0]}")


if TYPE_CHECKING:
    from edgeonnx_ext._bpe import BpeTokenizer
    from edgeonnx_ext._decode import Decoder, DecodeStream
    from edgeonnx_ext._floats import base64_rows, json_rows
    from edgeonnx_ext._images import preprocess_batch_into, preprocess_into
    from edgeonnx_ext._nfc import is_stable, nfc, nfc_aligned
    from edgeonnx_ext._pooling import (
        first_token_into,
        l2_normalize_into,
        last_token_into,
        masked_max_into,
        masked_mean_into,
        masked_mean_sqrt_into,
        masked_weighted_mean_into,
    )
    from edgeonnx_ext._sampling import probabilities_into, sample_into
    from edgeonnx_ext._scores import argmax_into, log_softmax_into, sigmoid_into, softmax_into, top_k_into
    from edgeonnx_ext._wordpiece import WordPieceTokenizer
else:
    for _compiled, (_, _names) in MODULES.items():
        _module = _load(_compiled)
        globals().update({_name: getattr(_module, _name) for _name in _names})

HAS_NATIVE: bool = NATIVE_PROBLEM is None

__all__ = [
    "HAS_NATIVE",
    "MODULES",
    "NATIVE_PROBLEM",
    "PURE",
    "TWINS",
    "BpeTokenizer",
    "DecodeStream",
    "Decoder",
    "WordPieceTokenizer",
    "argmax_into",
    "base64_rows",
    "first_token_into",
    "is_stable",
    "json_rows",
    "l2_normalize_into",
    "last_token_into",
    "log_softmax_into",
    "masked_max_into",
    "masked_mean_into",
    "masked_mean_sqrt_into",
    "masked_weighted_mean_into",
    "nfc",
    "nfc_aligned",
    "preprocess_batch_into",
    "preprocess_into",
    "probabilities_into",
    "sample_into",
    "sigmoid_into",
    "softmax_into",
    "top_k_into",
]
