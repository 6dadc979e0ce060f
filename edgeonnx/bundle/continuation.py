"""How a decoder's golden set is replayed: as sequences are served, not as one padded batch.

A device puts a prompt into a row of its caches, continues it, and then runs single tokens of many rows of different
lengths side by side. So does the replay: each row is put in alone, in two parts, up to its last tokens, and these go
through steps that all rows share. Whoever has the caches gives the two kinds of runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from edgeonnx.bundle.golden import MASK_INPUT
from edgeonnx.spec.generation import INPUT_IDS, LOGITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

SHARED_STEPS = 3
"""So many of the last tokens of every row go through steps that all rows share."""


class Extend(Protocol):
    """Puts tokens into one row of the caches."""

    def __call__(self, row: int, ids: Sequence[int], start: int, /) -> NDArray[np.float32]:
        """`ids` into `row`, which holds `start` tokens; float32 (vocabulary,): the logits after the last of them."""


class Step(Protocol):
    """Puts one token into each of the first rows of the caches."""

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64], /) -> NDArray[np.float32]:
        """`ids` (rows,) into rows that hold `lengths` (rows,) tokens; float32 (rows, vocabulary): the logits after."""


def replay_function(
    extend: Extend, step: Step
) -> Callable[[dict[str, NDArray[np.int64]]], dict[str, NDArray[np.float32]]]:
    """The function that `GoldenSet.replay` takes.

    Args:
        extend: Puts tokens into one row, as a prompt where the row is empty. What it gives may be overwritten by the
            next run.
        step: Puts one token into each of the first rows. The same holds for what it gives.

    Returns:
        A function from `input_ids` and `attention_mask`, int64 (rows, tokens), padded on the right, to `logits`,
        float32 (rows, vocabulary), after each row's last token. It fills the rows from 0 on, each from its beginning.
    """

    def replay(inputs: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
        ids, lengths = inputs[INPUT_IDS], inputs[MASK_INPUT].sum(axis=1)
        shared = min(SHARED_STEPS, int(lengths.min()) - 1)  # a prompt has at least one token
        before = lengths - shared
        logits = np.stack([_put(extend, row, ids[row, : before[row]].tolist()) for row in range(len(ids))])
        for done in range(shared):
            places = before + done
            logits = np.array(step(ids[np.arange(len(ids)), places], places))
        return {LOGITS: logits}

    return replay


def _put(extend: Extend, row: int, ids: list[int]) -> NDArray[np.float32]:
    """A prompt, and a continuation of it where there are tokens for both."""
    cut = (len(ids) + 1) // 2
    logits = extend(row, ids[:cut], 0)
    if cut < len(ids):
        logits = extend(row, ids[cut:], cut)
    return np.array(logits)
