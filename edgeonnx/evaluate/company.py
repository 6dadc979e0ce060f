"""Does a decoder's answer depend on the sequences that share its runs?

Each sequence is put into the caches and continued alone. The same is then done among others: prompts of several lengths
as one padded batch, and steps of rows of different lengths side by side. The source plays no part: how near an answer
is to the source's is another question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.bundle.golden import compare_outputs
from edgeonnx.evaluate.metrics import METRICS, rounded
from edgeonnx.spec.generation import LOGITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.decoder import HostDecoder

STEPS = 4
SIZES = (2, 3, 8)


@dataclass(frozen=True, kw_only=True)
class Company:
    """How much answers depend on what shares their runs.

    Attributes:
        metrics: `invariance_min`, the smallest cosine of the logits alone and in company, and `invariance_diff`, the
            largest absolute difference, divided by the largest magnitude of the batch's logits.
        sequences: Number of sequences.
        runs: Number of batches that were compared.
    """

    metrics: dict[str, float]
    sequences: int
    runs: int


def measure_company(decoder: HostDecoder, rows: Sequence[Sequence[int]]) -> Company:
    """Compare a graph's answers alone with its answers in company.

    Args:
        decoder: The graph; its caches are made anew.
        rows: Token ids of some sequences of different lengths, each longer than `STEPS` tokens.

    Raises:
        ValidationError: The graph does not run.
    """
    alone = [_answers(decoder, [row]) for row in rows]
    cosine, largest, runs = 1.0, 0.0, 0
    for size in SIZES:
        for start in range(0, len(rows), size):
            group = rows[start : start + size]
            if len(group) == 1:
                continue
            expected = np.concatenate([alone[start + place] for place in range(len(group))], axis=1)
            for want, have in zip(expected, _answers(decoder, group), strict=True):
                found = compare_outputs({LOGITS: want}, {LOGITS: have}, np.ones((len(group), 1), dtype=np.int64))
                cosine, largest = min(cosine, found.min_cosine), max(largest, found.scaled_diff)
                if not np.isfinite(found.scaled_diff):
                    worst = {name: METRICS[name].worst for name in ("invariance_min", "invariance_diff")}
                    return Company(metrics=worst, sequences=len(rows), runs=runs + 1)
            runs += 1
    metrics = rounded({"invariance_min": cosine, "invariance_diff": largest})
    return Company(metrics=metrics, sequences=len(rows), runs=runs)


def _answers(decoder: HostDecoder, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """float32 (1 + steps, rows, vocabulary): the logits after a prompt of each row, and after each step of all."""
    lengths = np.array([len(row) - STEPS for row in rows], dtype=np.int64)
    width = int(lengths.max())
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : lengths[place]] = row[: lengths[place]]
    decoder.reserve(len(rows), width + STEPS)
    answers = [_prompts(decoder, ids, lengths)]
    for done in range(STEPS):
        tokens = np.array([row[-STEPS + done] for row in rows], dtype=np.int64)
        answers.append(decoder.step(tokens, lengths + done))
    return np.stack(answers)


def _prompts(decoder: HostDecoder, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 (rows, vocabulary): the logits after the last token of each of several padded prompts."""
    mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
    return decoder.prompts(ids, mask)[np.arange(len(ids)), lengths - 1]
