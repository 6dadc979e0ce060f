"""The next token of each sequence of a batch: one call of the extension for all rows.

A row's token depends on that row alone: its logits, its parameters, its history and its own generator of random
numbers. What a request did not ask for costs nothing.

A row from which no token can be drawn (a NaN, nothing left by its constraint) fails by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from edgeonnx_ext import log_softmax_into, sample_into, top_k_into

from edgeonnx.errors import EdgeOnnxError, InferenceError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from device_agent.inference.generation.request import GenerationRequest

SEED_MASK = (1 << 64) - 1
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Choice:
    """The token of a row.

    Attributes:
        token: Its id.
        logprob: Its log probability as the model gives it; None: not asked for.
        top: The most probable tokens with theirs.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False, slots=True)
class Sampler:
    """How the tokens of one sequence are drawn.

    Attributes:
        request: The request.
        greedy: Nothing is asked for but the most probable token.
        counts: How often each token is in the answer; counted only where a penalty needs it.
    """

    request: GenerationRequest
    greedy: bool = field(init=False)
    counts: dict[int, int] = field(init=False, default_factory=dict)
    _random: np.random.Generator | None = field(init=False, default=None)
    _bias: tuple[NDArray[np.int64], NDArray[np.float32]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        request, sampling = self.request, self.request.sampling
        if sampling.temperature != 0:
            seed = request.seed
            self._random = np.random.default_rng(None if seed is None else seed & SEED_MASK)
        if request.logit_bias:
            ids = np.fromiter(request.logit_bias.keys(), dtype=np.int64)
            self._bias = ids, np.fromiter(request.logit_bias.values(), dtype=np.float32)
        self.greedy = (
            sampling.temperature == 0
            and sampling.repetition_penalty == 1
            and request.top_logprobs is None
            and request.constraint is None
            and not self._bias
            and not self._penalizes
        )

    @property
    def _penalizes(self) -> bool:
        return bool(self.request.presence_penalty or self.request.frequency_penalty)

    def uniform(self) -> float:
        """The next random number of the sequence, from 0 to below 1."""
        return 0.0 if self._random is None else self._random.random()

    def adjust(self, logits: NDArray[np.float32]) -> None:
        """Apply bias, penalties and the constraint to a row, in place.

        Penalties are OpenAI's: `logit - count * frequency_penalty - (count > 0) * presence_penalty`, where the count
        is of the token in the answer so far ("Frequency and presence penalties" of its API's documentation).
        """
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self.counts:
            ids = np.fromiter(self.counts.keys(), dtype=np.int64, count=len(self.counts))
            often = np.fromiter(self.counts.values(), dtype=np.float32, count=len(self.counts))
            logits[ids] -= often * self.request.frequency_penalty + np.float32(self.request.presence_penalty)
        if self.request.constraint is not None:
            self.request.constraint.mask(logits)

    def accept(self, token: int) -> None:
        """Take note of the token that came."""
        if self._penalizes:
            self.counts[token] = self.counts.get(token, 0) + 1
        if self.request.constraint is not None:
            self.request.constraint.accept(token)


def choose(
    logits: NDArray[np.float32], samplers: Sequence[Sampler], histories: Sequence[NDArray[np.int64]]
) -> list[Choice | EdgeOnnxError]:
    """Choose a token for each row.

    Args:
        logits: float32 (rows, vocabulary), C-contiguous; rows are changed where something is asked for.
        samplers: One for each row.
        histories: int64 (tokens,): prompt and answer of each row so far.

    Returns:
        For each row the token, or why there is none.
    """
    if all(sampler.greedy for sampler in samplers):
        return [_most_probable(row) for row in logits]
    ids = np.zeros(len(samplers), dtype=np.int64)
    raw: dict[int, NDArray[np.float32]] = {}
    failed: dict[int, EdgeOnnxError] = {}
    for row, sampler in enumerate(samplers):
        try:
            if sampler.request.top_logprobs is not None:
                raw[row] = _logprobs(logits[row : row + 1])
            sampler.adjust(logits[row])
        except Exception as error:  # noqa: BLE001 - a constraint may raise anything, and it is one row's
            failed[row] = own_error(error)
    uniforms = np.array([sampler.uniform() for sampler in samplers])
    parameters = [sampler.request.sampling for sampler in samplers]
    repeated = [
        history if sampling.repetition_penalty != 1 else _NOTHING
        for history, sampling in zip(histories, parameters, strict=True)
    ]
    failed = {
        **_each_row(
            lambda rows: sample_into(logits[rows], uniforms[rows], parameters[rows], ids[rows], repeated[rows]),
            len(samplers),
        ),
        **failed,
    }
    return [failed.get(row) or _choice(token, row, samplers[row], raw) for row, token in enumerate(ids.tolist())]


def _most_probable(logits: NDArray[np.float32]) -> Choice | EdgeOnnxError:
    """The token of the largest logit, the first of equal ones."""
    token = int(logits.argmax())  # a NaN, if there is one; and for one row much faster than along an axis
    if np.isfinite(logits[token]):
        return Choice(token)
    return InferenceError("no token can be chosen", found=f"a logit of {logits[token]}")


def _each_row(draw: Callable[[slice], None], count: int) -> dict[int, EdgeOnnxError]:
    """Draw for all rows at once; if that fails, row by row. Returns why rows failed, by row."""
    try:
        draw(slice(0, count))
    except ValueError as error:
        if count == 1:
            return {0: own_error(error)}
    else:
        return {}
    failed = {}
    for row in range(count):
        try:
            draw(slice(row, row + 1))
        except ValueError as error:
            failed[row] = own_error(error)
    return failed


def _logprobs(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log probabilities of one row, float32 (1, vocabulary)."""
    found = np.empty_like(logits)
    log_softmax_into(logits, found)
    return found


def _choice(token: int, row: int, sampler: Sampler, raw: Mapping[int, NDArray[np.float32]]) -> Choice | EdgeOnnxError:
    """The choice of a row, with what it asked to be told of it."""
    if row not in raw:
        return Choice(token)
    logprobs, count = raw[row], min(sampler.request.top_logprobs or 0, raw[row].shape[1])
    if not count:
        return Choice(token, float(logprobs[0, token]))
    values, ids = np.empty((1, count), dtype=np.float32), np.empty((1, count), dtype=np.int64)
    try:
        top_k_into(logprobs, count, values, ids)
    except ValueError as error:
        return own_error(error)
    top = tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True))
    return Choice(token, float(logprobs[0, token]), top)


def own_error(error: Exception, message: str = "no token can be chosen") -> EdgeOnnxError:
    """An error of ours as it is, any other as one of ours with this message."""
    if isinstance(error, EdgeOnnxError):
        return error
    return InferenceError(message, found=f"{type(error).__name__}: {first_line(error)}")
