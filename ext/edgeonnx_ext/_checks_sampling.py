"""The checks of arguments of the sampling kernels, and their parameters as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from edgeonnx_ext import _checks
from edgeonnx_ext.sampling import SamplingParameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LARGEST_VOCABULARY = 2**31 - 1

# What a row of logits can be that no token can be drawn from; the compiled kernel gives these numbers.
NOT_A_NUMBER = 1
INFINITE = 2
NOTHING_LEFT = 3
_PROBLEMS = {
    NOT_A_NUMBER: "a NaN",
    INFINITE: "+infinity (after the repetition penalty)",
    NOTHING_LEFT: "-infinity alone (after the repetition penalty)",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The checked parameters of a call.

    Attributes:
        numbers: float64 (rows, 4): repetition penalty, temperature, top_p, min_p.
        top_k: int64 (rows,); 0 keeps all.
        history: int64, the histories of all rows, one after the other.
        starts: int64 (rows + 1,), where each row's history starts and ends.
    """

    numbers: NDArray[np.float64]
    top_k: NDArray[np.int64]
    history: NDArray[np.int64]
    starts: NDArray[np.int64]


def sample_arguments(
    logits: Any, uniforms: Any, parameters: Any, ids: Any, history: Sequence[Any] | None, logprobs: Any
) -> Plan:
    """Check the arguments of `sample_into`, except for what stands in the logits.

    Raises:
        TypeError: As _checks.array; or parameters of another type.
        ValueError: As _checks.array; or shapes that do not fit together, overlapping buffers, uniforms outside of
            [0, 1), or a negative id in a history.
    """
    rows = _check_logits(logits)
    _row_buffer("uniforms", uniforms, np.float64, rows, writable=False)
    if rows and not (float(uniforms.min()) >= 0.0 and float(uniforms.max()) < 1.0):
        raise ValueError(f"uniforms: expected numbers from 0 to below 1, found {uniforms.min()} to {uniforms.max()}")
    _row_buffer("ids", ids, np.int64, rows, writable=True)
    buffers = {"logits": logits, "uniforms": uniforms, "ids": ids}
    if logprobs is not None:
        _row_buffer("logprobs", logprobs, np.float32, rows, writable=True)
        buffers["logprobs"] = logprobs
    _checks.apart(**buffers)
    return _plan(rows, parameters, history)


def probabilities_arguments(logits: Any, parameters: Any, probabilities: Any, history: Sequence[Any] | None) -> Plan:
    """Check the arguments of `probabilities_into`, except for what stands in the logits.

    Raises:
        TypeError: As sample_arguments.
        ValueError: As sample_arguments.
    """
    rows = _check_logits(logits)
    _checks.array("probabilities", probabilities, np.float32, 2, writable=True)
    if probabilities.shape != logits.shape:
        raise ValueError(f"probabilities: expected the shape of logits {logits.shape}, found {probabilities.shape}")
    _checks.apart(logits=logits, probabilities=probabilities)
    return _plan(rows, parameters, history)


def raise_row(row: int, problem: int) -> NoReturn:
    """Raise the ValueError for logits from which no token can be drawn.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"logits: expected numbers to draw a token from, found {_PROBLEMS[problem]} in row {row}")


def _check_logits(logits: Any) -> int:
    _checks.array("logits", logits, np.float32, 2)
    if not 0 < logits.shape[1] <= LARGEST_VOCABULARY:
        raise ValueError(f"logits: expected 1 to {LARGEST_VOCABULARY} columns, found shape {logits.shape}")
    return int(logits.shape[0])


def _row_buffer(name: str, value: Any, dtype: Any, rows: int, *, writable: bool) -> None:
    _checks.array(name, value, dtype, 1, writable=writable)
    if value.shape != (rows,):
        raise ValueError(f"{name}: expected shape ({rows},), one for each row of logits, found {value.shape}")


def _plan(rows: int, parameters: Any, history: Sequence[Any] | None) -> Plan:
    each = (parameters,) * rows if isinstance(parameters, SamplingParameters) else tuple(parameters)
    if len(each) != rows:
        raise ValueError(f"parameters: expected one, or one for each of the {rows} rows, found {len(each)}")
    for row, item in enumerate(each):
        if not isinstance(item, SamplingParameters):
            raise TypeError(f"parameters[{row}]: expected SamplingParameters, found {type(item).__name__}")
    numbers = [(item.repetition_penalty, item.temperature, item.top_p, item.min_p) for item in each]
    # No row keeps more than the vocabulary, so that a larger top_k is as good as LARGEST_VOCABULARY.
    top_k = [min(item.top_k, LARGEST_VOCABULARY) for item in each]
    joined, starts = _join_histories(rows, history)
    return Plan(
        numbers=np.array(numbers, dtype=np.float64).reshape(rows, 4),
        top_k=np.array(top_k, dtype=np.int64),
        history=joined,
        starts=starts,
    )


def _join_histories(rows: int, history: Sequence[Any] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = np.zeros(rows + 1, dtype=np.int64)
    if history is None:
        return np.empty(0, dtype=np.int64), starts
    if len(history) != rows:
        raise ValueError(f"history: expected one array for each of the {rows} rows, found {len(history)}")
    for row, item in enumerate(history):
        _checks.array(f"history[{row}]", item, np.int64, 1)
        if item.size and item.min() < 0:
            raise ValueError(f"history[{row}]: expected token ids of 0 or more, found {item.min()}")
    np.cumsum([len(item) for item in history], out=starts[1:])
    return np.concatenate([np.empty(0, dtype=np.int64), *history]), starts
