"""The checks of arguments of the score kernels."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import numpy as np

from edgeonnx_ext import _checks
from edgeonnx_ext._checks_pooling import same_or_apart


def elementwise_buffers(x: Any, out: Any) -> None:
    """Check the arguments of softmax, log softmax and sigmoid; `out` may be `x` itself.

    Raises:
        TypeError: As _checks.array.
        ValueError: As _checks.array; or another shape, or a partial overlap.
    """
    _checks.array("x", x, np.float32, 2)
    _checks.array("out", out, np.float32, 2, writable=True)
    same_or_apart(x, out)


def top_k_buffers(x: Any, k: Any, values: Any, indices: Any) -> int:
    """Check the arguments of `top_k_into`, except for NaN; return k.

    Raises:
        TypeError: As _checks.array; or k is no integer.
        ValueError: As _checks.array; or shapes that do not fit, overlapping buffers, or k out of range.
    """
    _checks.array("x", x, np.float32, 2)
    number = operator.index(k)
    if not 1 <= number <= x.shape[1]:
        raise ValueError(f"k: expected 1 to the {x.shape[1]} columns of x, found {number}")
    _checks.array("values", values, np.float32, 2, writable=True)
    _checks.array("indices", indices, np.int64, 2, writable=True)
    expected = (x.shape[0], number)
    for name, buffer in (("values", values), ("indices", indices)):
        if buffer.shape != expected:
            raise ValueError(f"{name}: expected shape {expected}, found {buffer.shape}")
    _checks.apart(x=x, values=values, indices=indices)
    return number


def argmax_buffers(x: Any, indices: Any) -> None:
    """Check the arguments of `argmax_into`, except for NaN.

    Raises:
        TypeError: As _checks.array.
        ValueError: As _checks.array; or shapes that do not fit, overlapping buffers, or no column.
    """
    _checks.array("x", x, np.float32, 2)
    _checks.array("indices", indices, np.int64, 1, writable=True)
    if x.shape[1] == 0:
        raise ValueError(f"x: expected at least one column, found shape {x.shape}")
    if indices.shape != x.shape[:1]:
        raise ValueError(f"indices: expected shape {x.shape[:1]}, found {indices.shape}")
    _checks.apart(x=x, indices=indices)


def refuse_nan(x: Any) -> None:
    """Raise ValueError, naming row and column, if there is a NaN."""
    if np.isnan(x).any():
        raise_nan(x)


def raise_nan(x: Any) -> NoReturn:
    """Raise the ValueError for the first NaN of x, which has one.

    Raises:
        ValueError: Always.
    """
    row, column = np.argwhere(np.isnan(x))[0]
    raise ValueError(f"x: expected numbers that can be ordered, found NaN at row {row}, column {column}")
