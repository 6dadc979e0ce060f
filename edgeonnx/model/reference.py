"""The source model's answers, which everything after the export is compared with.

The reference is always the source model's answer for a text alone and unpadded: what its user would call the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edgeonnx.bundle.golden import MASK_INPUT, GoldenSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.ports import FloatTensors, IntTensors, SourceModel

Scalar = TypeVar("Scalar", np.int64, np.float32)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The source model's answers, one row at a time.

    Attributes:
        texts: The texts.
        pairs: The second texts, or None.
        inputs: int64 (1, tokens) by input name, per row.
        outputs: float32 by output name, per row.
        pad_ids: What fills each input up.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    inputs: tuple[IntTensors, ...]
    outputs: tuple[FloatTensors, ...]
    pad_ids: dict[str, int]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [row[MASK_INPUT].shape[1] for row in self.inputs]

    def batch(self, rows: Sequence[int], width: int) -> tuple[IntTensors, FloatTensors]:
        """The inputs of some rows as one padded batch, and the expected outputs padded with zeros."""
        inputs = pad_rows([self.inputs[row] for row in rows], width, self.pad_ids)
        outputs = {
            name: np.concatenate([_fill(self.outputs[row][name], width, 0) for row in rows]) for name in self.outputs[0]
        }
        return inputs, outputs

    def golden(self, rows: Sequence[int]) -> GoldenSet:
        """The golden set made of some rows."""
        width = max(self.lengths[row] for row in rows)
        inputs, outputs = self.batch(rows, width)
        return GoldenSet(
            texts=tuple(self.texts[row] for row in rows),
            pairs=None if self.pairs is None else tuple(self.pairs[row] for row in rows),
            inputs=inputs,
            outputs=outputs,
        )


def pad_rows(rows: Sequence[IntTensors], width: int, pad_ids: dict[str, int]) -> IntTensors:
    """Rows as one batch.

    Args:
        rows: int64 (1, tokens) by input name, per row.
        width: Tokens of the batch.
        pad_ids: What fills each input up; 0 where it is not named.
    """
    return {name: np.concatenate([_fill(row[name], width, pad_ids.get(name, 0)) for row in rows]) for name in rows[0]}


def _fill(value: NDArray[Scalar], width: int, filler: int) -> NDArray[Scalar]:
    """Fill the token axis (axis 1 of 2-D ids and 3-D per-token outputs of one row) up to `width`."""
    if value.dtype != np.int64 and value.ndim == 2:
        return value  # an output per row, not per token
    padding = [(0, 0)] * value.ndim
    padding[1] = (0, width - value.shape[1])
    return np.pad(value, padding, constant_values=filler)


def build_reference(
    source: SourceModel,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    pad_ids: dict[str, int],
    on_row: Callable[[int, int], None] | None = None,
) -> Reference:
    """Ask the source model for each text alone.

    Args:
        source: The source model.
        texts: The texts.
        pairs: The second texts, for tasks that take two.
        pad_ids: What fills each input up.
        on_row: Called with (rows done, all rows), for progress.
    """
    inputs = source.tokenize(texts, pairs)
    outputs = []
    for index, row in enumerate(inputs):
        outputs.append(source.run(row))
        if on_row is not None:
            on_row(index + 1, len(inputs))
    return Reference(
        texts=tuple(texts),
        pairs=None if pairs is None else tuple(pairs),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        pad_ids=pad_ids,
    )
