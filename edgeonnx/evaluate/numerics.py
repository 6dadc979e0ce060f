"""Formulas of the measurements, over float64 arrays. Pure NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Classes = NDArray[np.int64]

FLAT = 1e-6
"""Values that spread by less than this part of their size are one value: it is the noise of float32."""
SIMILARITY_DECIMALS = 6
"""Similarities closer than this are ties: their order would be the noise of float32."""


def cosines(want: Floats, have: Floats) -> Floats:
    """Cosines along the last axis.

    Two zero vectors are equal (1), a zero vector and another are not (0), as in `edgeonnx.bundle.golden`. What is not
    finite gives NaN.

    Args:
        want: (..., dimension).
        have: The same shape.

    Returns:
        (...), from -1 to 1.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        left, right = np.linalg.norm(want, axis=-1), np.linalg.norm(have, axis=-1)
        product = (_unit(want, left) * _unit(have, right)).sum(axis=-1)
    return np.where((left == 0) & (right == 0), 1.0, np.clip(product, -1.0, 1.0))


def similarities(vectors: Floats) -> Floats:
    """Cosines between all pairs of rows.

    Args:
        vectors: (rows, dimension).

    Returns:
        (rows * (rows - 1) / 2,): the upper triangle, row by row.
    """
    unit = _unit(vectors, np.linalg.norm(vectors, axis=-1))
    pairs: Floats = (unit @ unit.T)[np.triu_indices(len(vectors), k=1)]
    return np.round(pairs, SIMILARITY_DECIMALS)


def _unit(vectors: Floats, norms: Floats) -> Floats:
    return vectors / np.where(norms == 0, 1.0, norms)[..., None]


def ranks(values: Floats) -> Floats:
    """Ranks from 1, ties by their average rank ("fractional ranking").

    Args:
        values: (n,).
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)


def pearson(first: Floats, second: Floats) -> float:
    """Pearson's correlation coefficient: the cosine of the centred values (K. Pearson, 1895).

    It is not defined where one side is constant: 1 if both are (there is nothing to get wrong), 0 if one is.

    Args:
        first: (n,).
        second: (n,).

    Returns:
        From -1 to 1; NaN if a value is not finite.
    """
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    flat = (is_flat(first), is_flat(second))
    if any(flat):
        return 1.0 if all(flat) else 0.0
    return float(cosines(first - first.mean(), second - second.mean()))


def is_flat(values: Floats) -> bool:
    """Whether values are one value, up to the noise of float32; a single value is."""
    return len(values) < 2 or bool(np.ptp(values) <= FLAT * np.abs(values).max())


def spearman(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation: Pearson's of the ranks (C. Spearman, 1904), ties by their average rank.

    Args:
        first: (n,).
        second: (n,).

    Returns:
        From -1 to 1; NaN if a value is not finite.
    """
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    if is_flat(first) or is_flat(second):  # ranks would blow the noise up to an order
        return pearson(first, second)
    return pearson(ranks(first), ranks(second))


def macro_f1(truth: NDArray[np.bool_], found: NDArray[np.bool_]) -> float:
    """Mean over the classes of F1 = 2 TP / (2 TP + FP + FN).

    A class that neither the truth nor the answers have is left out.

    Args:
        truth: bool (rows, classes).
        found: The same shape.

    Returns:
        From 0 to 1; 1 if there is no class at all.
    """
    hits = (truth & found).sum(axis=0)
    places = truth.sum(axis=0) + found.sum(axis=0)
    present = places > 0
    return float((2.0 * hits[present] / places[present]).mean()) if present.any() else 1.0
