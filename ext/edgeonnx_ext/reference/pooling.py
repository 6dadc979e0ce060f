"""The plain twins of the pooling and normalization kernels.

The formulas are those of sentence-transformers' Pooling, with one difference: a masked vector is not read at all, so
that a NaN in the padding stays there. NaN and infinity in unmasked vectors propagate as in the formula. All take

- hidden: float32 (rows, tokens, dim), C-contiguous;
- mask: int64 (rows, tokens), C-contiguous, 1 for tokens, 0 for padding on either side;
- out: float32 (rows, dim), C-contiguous, writable, apart from the others;

and raise

- TypeError: a wrong dtype, or no ndarray;
- ValueError: shapes that do not fit, a buffer that is read-only, not contiguous or overlapping, or a mask with other
  values. Nothing was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks_pooling

if TYPE_CHECKING:
    from numpy.typing import NDArray


def masked_mean_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write the mean of each row's unmasked token vectors: sum / max(count, 1e-9); mode `mean`.

    Sums are float64. A row without tokens gives zeros.
    """
    _checks_pooling.pooling_buffers(hidden, mask, out)
    _write_weighted(hidden, mask, out, 1.0)


def masked_mean_sqrt_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write sum / sqrt(max(count, 1e-9)) of each row's unmasked token vectors; mode `mean_sqrt_len_tokens`.

    Sums are float64. A row without tokens gives zeros.
    """
    _checks_pooling.pooling_buffers(hidden, mask, out)
    _write_weighted(hidden, mask, out, 0.5)


def masked_weighted_mean_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write sum(weight * vector) / max(sum(weight), 1e-9) over each row's unmasked tokens; mode `weightedmean`.

    The weight of a token is its position, counted from 1 at the row's first unmasked token. Sums are float64. A row
    without tokens gives zeros.
    """
    _checks_pooling.pooling_buffers(hidden, mask, out)
    _write_weighted(hidden, mask, out, 1.0, by_position=True)


def _write_weighted(
    hidden: NDArray[np.float32],
    mask: NDArray[np.int64],
    out: NDArray[np.float32],
    exponent: float,
    *,
    by_position: bool = False,
) -> None:
    for row in range(hidden.shape[0]):
        places = np.flatnonzero(mask[row])
        weights = places - places[:1] + 1.0 if by_position else np.ones(len(places))
        with np.errstate(invalid="ignore", over="ignore"):
            total = (weights[:, None] * hidden[row, places].astype(np.float64)).sum(axis=0)
            out[row] = (total / max(weights.sum(), 1e-9) ** exponent).astype(np.float32)


def masked_max_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write the largest value of each column over each row's unmasked tokens; mode `max`.

    A NaN makes its column NaN. A row without tokens gives -infinity.
    """
    _checks_pooling.pooling_buffers(hidden, mask, out)
    for row in range(hidden.shape[0]):
        out[row] = hidden[row, mask[row] == 1].max(axis=0, initial=-np.inf)


def first_token_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write the vector of each row's first unmasked token; mode `cls`.

    A row without tokens gives the vector at position 0, as the formula does, or zeros if there is no position.
    """
    _checks_pooling.pooling_buffers(hidden, mask, out)
    out.fill(0.0)
    if hidden.shape[1]:
        out[...] = hidden[np.arange(hidden.shape[0]), mask.argmax(axis=1)]


def last_token_into(hidden: NDArray[np.float32], mask: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Write the vector of each row's last unmasked token; mode `lasttoken`.

    A row without tokens gives zeros.
    """
    _checks_pooling.pooling_buffers(hidden, mask, out)
    out.fill(0.0)
    for row in np.flatnonzero(mask.any(axis=1)):
        out[row] = hidden[row, np.flatnonzero(mask[row])[-1]]


def l2_normalize_into(x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write x / max(||x||, 1e-12) of each row, the formula of torch.nn.functional.normalize (p=2, dim=1).

    NaN and infinity propagate as in the formula: a NaN makes its row NaN; an infinity makes itself NaN and the rest of
    its row 0. The norm is computed in float64, so that it neither overflows nor underflows.

    Args:
        x: float32 (rows, dim), C-contiguous.
        out: float32 of the same shape, C-contiguous, writable; may be `x` itself.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: Another shape, or a buffer that is read-only, not contiguous, or overlaps partly. Nothing was
            written.
    """
    _checks_pooling.normalize_buffers(x, out)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        norms = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
        out[...] = (wide / np.maximum(norms, 1e-12)).astype(np.float32)
