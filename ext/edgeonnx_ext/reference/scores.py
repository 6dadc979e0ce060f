"""The plain twins of the score kernels. They compute in float64 and write float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _log_softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Float64 (rows, n), n at least 1; the row is NaN if it has a NaN or +infinity, or -infinity alone."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = wide - wide.max(axis=1, keepdims=True)
        shifted[np.isnan(shifted).any(axis=1)] = np.nan
        result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def softmax_into(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write exp(x) / sum(exp(x)) of each row, the formula of torch.nn.functional.softmax (dim=1).

    A row that holds a NaN or +infinity, or -infinity alone, becomes NaN, as in torch; -infinity elsewhere gives 0.

    Args:
        x: float32 (rows, n), C-contiguous.
        out: float32 of the same shape, C-contiguous, writable; may be `x` itself.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: Another shape, or a buffer that is read-only, not contiguous, or overlaps partly. Nothing was
            written.
    """
    _checks_scores.elementwise_buffers(x, out)
    if x.size:
        out[...] = np.exp(_log_softmax(x))


def log_softmax_into(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write x - log(sum(exp(x))) of each row, the formula of torch.nn.functional.log_softmax (dim=1).

    A row that holds a NaN or +infinity, or -infinity alone, becomes NaN, as in torch; -infinity elsewhere stays.

    Args:
        x: As softmax_into.
        out: As softmax_into.

    Raises:
        TypeError: As softmax_into.
        ValueError: As softmax_into.
    """
    _checks_scores.elementwise_buffers(x, out)
    if x.size:
        with np.errstate(over="ignore"):
            out[...] = _log_softmax(x)


def sigmoid_into(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write 1 / (1 + exp(-x)); +infinity gives 1, -infinity 0, and a NaN stays NaN.

    Args:
        x: As softmax_into.
        out: As softmax_into.

    Raises:
        TypeError: As softmax_into.
        ValueError: As softmax_into.
    """
    _checks_scores.elementwise_buffers(x, out)
    power = np.exp(-np.abs(x.astype(np.float64)))  # of |x|, so that it cannot overflow
    out[...] = np.where(x >= 0, 1.0, power) / (1.0 + power)


def top_k_into(x: NDArray[np.float32], k: int, values: NDArray[np.float32], indices: NDArray[np.int64]) -> None:
    """Write the k largest of each row, the largest first; of equal ones the lower index first.

    Args:
        x: float32 (rows, n), C-contiguous. Infinities are numbers like others.
        k: 1 to n.
        values: float32 (rows, k), C-contiguous, writable.
        indices: int64 (rows, k), C-contiguous, writable: the columns of the values.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: k out of range, a NaN, shapes that do not fit, or a buffer that is read-only, not contiguous, or
            overlaps another. Nothing was written.
    """
    number = _checks_scores.top_k_buffers(x, k, values, indices)
    _checks_scores.refuse_nan(x)
    indices[...] = np.argsort(-x, axis=1, kind="stable")[:, :number]
    values[...] = np.take_along_axis(x, indices, axis=1)


def argmax_into(x: NDArray[np.float32], indices: NDArray[np.int64]) -> None:
    """Write the column of the largest number of each row; of equal ones the lowest.

    Args:
        x: float32 (rows, n), n at least 1, C-contiguous. Infinities are numbers like others.
        indices: int64 (rows,), C-contiguous, writable.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: A NaN, no column, shapes that do not fit, or a buffer that is read-only, not contiguous, or overlaps
            the other. Nothing was written.
    """
    _checks_scores.argmax_buffers(x, indices)
    found = x.argmax(axis=1)  # the first NaN, if there is one
    if np.isnan(np.take_along_axis(x, found[:, None], axis=1)).any():
        _checks_scores.raise_nan(x)
    indices[...] = found
