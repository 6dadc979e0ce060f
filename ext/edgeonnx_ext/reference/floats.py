"""The plain twins of the kernels that write floats as text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks_floats

if TYPE_CHECKING:
    from numpy.typing import NDArray


def json_rows(x: NDArray[np.float32]) -> list[bytes]:
    """Return each row as a JSON array of the shortest decimals that read back as the same float32.

    Numbers from 1e-5 to below 1e7 (either sign) stand in positional notation, always with a point (`1.0`); others in
    scientific notation (`1.5e-06`). A reader that parses to float64 must round to float32 to get the same bits.

    Args:
        x: float32 (rows, n), C-contiguous.

    Returns:
        One array a row, without spaces; `[]` for rows of no numbers.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: A NaN or an infinity (the message names row and column), or an array that is not contiguous.
    """
    _checks_floats.rows_of_floats(x)
    _checks_floats.refuse_not_finite(x)
    return [b"[%s]" % ",".join(map(_number, row)).encode("ascii") for row in x]


def _number(value: np.float32) -> str:
    if value == 0 or np.float32(1e-5) <= abs(value) < np.float32(1e7):
        return np.format_float_positional(value, unique=True, trim="0")
    return np.format_float_scientific(value, unique=True, trim="-")


def base64_rows(x: NDArray[np.float32]) -> list[str]:
    """Return the little-endian bytes of each row as base64, as OpenAI's API encodes embeddings (RFC 4648, section 4).

    NaN and infinity are bytes like others.

    Args:
        x: float32 (rows, n), C-contiguous.

    Returns:
        One text a row; empty for rows of no numbers.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: An array that is not contiguous.
    """
    _checks_floats.rows_of_floats(x)
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in x.astype("<f4", copy=False)]
