"""Text classification: scores to labels, the most likely first."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks
from edgeonnx_ext._checks_scores import refuse_nan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """A label with the score that a model gives it."""

    label: str
    score: float


def label_scores(
    scores: NDArray[np.float32], labels: Sequence[str], top_k: int | None = None
) -> list[list[LabelScore]]:
    """Return the labels of each row with their scores, the largest score first, of equal ones the lower column first.

    Args:
        scores: float32 (rows, labels), C-contiguous: what softmax or sigmoid gave, or the values of a regression.
        labels: The label of each column.
        top_k: How many labels of each row, at least 1; None, or more than there are: all.

    Raises:
        TypeError: A wrong dtype, or no ndarray.
        ValueError: Another number of columns than labels, a NaN, or top_k below 1.
    """
    _checks.array("scores", scores, np.float32, 2)
    if scores.shape[1] != len(labels):
        raise ValueError(f"scores: expected a column for each of the {len(labels)} labels, found {scores.shape}")
    if top_k is not None and operator.index(top_k) < 1:
        raise ValueError(f"top_k: expected 1 or more, or None for all labels, found {top_k}")
    refuse_nan(scores)
    # A few columns: the sort takes less time than the objects of the result.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    values = np.take_along_axis(scores, order, axis=1)
    return [
        [LabelScore(label=labels[column], score=score) for column, score in zip(columns, row, strict=True)]
        for columns, row in zip(order.tolist(), values.tolist(), strict=True)
    ]
