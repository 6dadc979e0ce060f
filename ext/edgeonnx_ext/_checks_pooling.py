"""The checks of arguments of the pooling and normalization kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeonnx_ext import _checks


def pooling_buffers(hidden: Any, mask: Any, out: Any) -> None:
    """Check the arguments of a pooling kernel.

    Raises:
        TypeError: As _checks.array.
        ValueError: As _checks.array; or shapes that do not fit together, overlapping buffers, or a mask of other
            values than 0 and 1.
    """
    _checks.array("hidden", hidden, np.float32, 3)
    _checks.array("mask", mask, np.int64, 2)
    _checks.array("out", out, np.float32, 2, writable=True)
    rows, tokens, dim = hidden.shape
    if mask.shape != (rows, tokens):
        raise ValueError(f"mask: expected shape {(rows, tokens)} for hidden of {hidden.shape}, found {mask.shape}")
    if out.shape != (rows, dim):
        raise ValueError(f"out: expected shape {(rows, dim)} for hidden of {hidden.shape}, found {out.shape}")
    _checks.apart(out=out, hidden=hidden)
    _checks.apart(out=out, mask=mask)
    if mask.size and not 0 <= int(mask.min()) <= int(mask.max()) <= 1:
        raise ValueError(f"mask: expected 0 and 1 only, found values from {mask.min()} to {mask.max()}")


def normalize_buffers(x: Any, out: Any) -> None:
    """Check the arguments of `l2_normalize_into`; `out` may be `x` itself.

    Raises:
        TypeError: As _checks.array.
        ValueError: As _checks.array; or another shape, or a partial overlap.
    """
    _checks.array("x", x, np.float32, 2)
    _checks.array("out", out, np.float32, 2, writable=True)
    same_or_apart(x, out)


def same_or_apart(x: Any, out: Any) -> None:
    """Raise ValueError unless the arrays have one shape and are one memory, or share none."""
    if out.shape != x.shape:
        raise ValueError(f"out: expected the shape of x {x.shape}, found {out.shape}")
    if out is x or not np.may_share_memory(out, x):
        return
    if out.__array_interface__["data"][0] != x.__array_interface__["data"][0]:
        _checks.apart(out=out, x=x)
