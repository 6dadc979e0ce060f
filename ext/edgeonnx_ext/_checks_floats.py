"""The checks of arguments of the kernels that write floats as text."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from edgeonnx_ext import _checks


def rows_of_floats(x: Any) -> None:
    """Check an argument of `json_rows` or `base64_rows`.

    Raises:
        TypeError: As _checks.array.
        ValueError: As _checks.array.
    """
    _checks.array("x", x, np.float32, 2)


def refuse_not_finite(x: Any) -> None:
    """Raise ValueError, naming row and column, if there is a NaN or an infinity, which JSON cannot write."""
    if not np.isfinite(x).all():
        raise_not_finite(x)


def raise_not_finite(x: Any) -> NoReturn:
    """Raise the ValueError for the first number of x that is not finite; there is one.

    Raises:
        ValueError: Always.
    """
    row, column = np.argwhere(~np.isfinite(x))[0]
    raise ValueError(f"x: expected finite numbers, found {x[row, column]} at row {row}, column {column}")
