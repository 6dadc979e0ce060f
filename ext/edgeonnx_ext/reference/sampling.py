"""The plain twins of the sampling kernels.

The filters and their order are those of transformers' generation (generation/logits_process.py and
`_get_logits_processor` in generation/utils.py): repetition penalty, temperature, top-k, top-p, min-p, each on what the
one before left. They are computed on the scores before the division by the temperature, which does not change their
order, and with sums in float64: a token whose sum of probabilities lies within float32 rounding of top_p may fall on
the other side than in transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from edgeonnx_ext import _checks_sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx_ext._checks_sampling import Plan
    from edgeonnx_ext.sampling import SamplingParameters

    Ids = NDArray[np.int64]
    Kept = tuple[Ids, NDArray[np.float64]]

# Of the natural exponential: weights below it are 0.
LEAST_EXPONENT: Final = -87.0


def sample_into(
    logits: NDArray[np.float32],
    uniforms: NDArray[np.float64],
    parameters: SamplingParameters | Sequence[SamplingParameters],
    ids: Ids,
    history: Sequence[Ids] | None = None,
    logprobs: NDArray[np.float32] | None = None,
) -> None:
    """Draw one token a row: the first, in the order of ids, at which the kept probabilities add up to more than u.

    A pure function: the same arguments give the same tokens, and a row does not depend on the others. The filters are
    those of SamplingParameters; `probabilities_into` writes what they leave.

    Args:
        logits: float32 (rows, vocabulary), C-contiguous; not changed. -infinity excludes a token.
        uniforms: float64 (rows,), C-contiguous, from 0 to below 1: u of each row, best from a seeded generator of its
            own.
        parameters: One for all rows, or one for each.
        ids: int64 (rows,), C-contiguous, writable: the drawn tokens.
        history: An int64 array (n,) for each row: the tokens to which the repetition penalty applies (prompt and
            answer so far). Ids beyond the vocabulary are ignored. None: no tokens.
        logprobs: float32 (rows,), C-contiguous, writable: the natural logarithm of the drawn token's probability as
            the model gives it, log_softmax(logits), without penalty, temperature and filters. None: not written.

    Raises:
        TypeError: A wrong dtype, no ndarray, or parameters of another type.
        ValueError: Logits with a NaN or +infinity, or a row of -infinity alone (the message names the row); u out of
            range; a negative id in a history; shapes that do not fit, or a buffer that is read-only, not contiguous,
            or overlaps another. Nothing was written.
    """
    plan = _checks_sampling.sample_arguments(logits, uniforms, parameters, ids, history, logprobs)
    found = np.zeros(len(ids), dtype=np.int64)
    for row in range(len(ids)):
        kept, weights = _kept_tokens(logits, plan, row)
        sums = np.cumsum(weights)
        place = int(np.searchsorted(sums, uniforms[row] * sums[-1], side="right"))
        found[row] = kept[min(place, int(np.flatnonzero(weights)[-1]))]
    ids[...] = found
    if logprobs is not None:
        for row, token in enumerate(found):
            wide = logits[row].astype(np.float64)
            logprobs[row] = wide[token] - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def probabilities_into(
    logits: NDArray[np.float32],
    parameters: SamplingParameters | Sequence[SamplingParameters],
    probabilities: NDArray[np.float32],
    history: Sequence[Ids] | None = None,
) -> None:
    """Write the probabilities with which `sample_into` draws; 0 for tokens that the filters remove.

    Args:
        logits: As sample_into.
        parameters: As sample_into.
        probabilities: float32 (rows, vocabulary), C-contiguous, writable, apart from the logits.
        history: As sample_into.

    Raises:
        TypeError: As sample_into.
        ValueError: As sample_into.
    """
    plan = _checks_sampling.probabilities_arguments(logits, parameters, probabilities, history)
    rows = [_kept_tokens(logits, plan, row) for row in range(len(logits))]
    probabilities.fill(0.0)
    for row, (kept, weights) in enumerate(rows):
        probabilities[row, kept] = weights / weights.sum()


def _kept_tokens(logits: NDArray[np.float32], plan: Plan, row: int) -> Kept:
    """The ids that the filters keep, ascending, and exp((score - the largest) / temperature) of each."""
    penalty, temperature, top_p, min_p = plan.numbers[row]
    history = plan.history[plan.starts[row] : plan.starts[row + 1]]
    scores = _penalize(logits[row], np.float32(penalty), history)
    _check_scores(scores, row)
    if temperature == 0:
        return np.array([scores.argmax()]), np.ones(1)
    kept = np.arange(len(scores))
    if 0 < plan.top_k[row] < len(scores):
        kept = np.flatnonzero(scores >= np.sort(scores)[-plan.top_k[row]])
    exponents = (scores[kept].astype(np.float64) - scores.max()) / temperature
    # As in the compiled kernel, whose weights are float32: below this they would be subnormal.
    weights = np.where(exponents < LEAST_EXPONENT, 0.0, np.exp(exponents))
    if top_p < 1:
        kept, weights = _keep_top_p(kept, weights, top_p)
    if min_p > 0:
        kept, weights = kept[weights >= min_p], weights[weights >= min_p]
    return kept, weights


def _penalize(scores: NDArray[np.float32], penalty: np.float32, history: Ids) -> NDArray[np.float32]:
    """A copy in which the scores of the history's tokens are penalized once."""
    tokens = history[history < len(scores)]
    result = scores.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        result[tokens] = np.where(scores[tokens] < 0, scores[tokens] * penalty, scores[tokens] / penalty)
    return result


def _check_scores(scores: NDArray[np.float32], row: int) -> None:
    """Raise ValueError if no token can be drawn."""
    if np.isnan(scores).any():
        _checks_sampling.raise_row(row, _checks_sampling.NOT_A_NUMBER)
    if scores.max() == np.inf:
        _checks_sampling.raise_row(row, _checks_sampling.INFINITE)
    if scores.max() == -np.inf:
        _checks_sampling.raise_row(row, _checks_sampling.NOTHING_LEFT)


def _keep_top_p(kept: Ids, weights: NDArray[np.float64], top_p: float) -> Kept:
    """Keep the fewest of the largest weights that reach top_p of the sum; of equal ones the higher ids stay."""
    order = np.argsort(weights, kind="stable")[::-1]
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    stays = before < top_p * weights.sum()
    stays[0] = True
    places = np.sort(order[stays])
    return kept[places], weights[places]
