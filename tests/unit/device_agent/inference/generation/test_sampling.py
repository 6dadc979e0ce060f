from __future__ import annotations

import numpy as np
import pytest
from edgeonnx_ext import SamplingParameters

from device_agent.inference.generation.request import GREEDY, GenerationRequest
from device_agent.inference.generation.sampling import Choice, Sampler, choose
from edgeonnx.errors import EdgeOnnxError, InferenceError

LOGITS = np.array([[0.0, 2.0, 1.0, -1.0, 2.0]], dtype=np.float32)
WARM = SamplingParameters(temperature=1.0)


def sampler(**fields: object) -> Sampler:
    return Sampler(GenerationRequest(**{"prompt": (1,), "max_tokens": 9, **fields}))  # type: ignore[arg-type]


def chosen(logits: np.ndarray, *samplers: Sampler, history: tuple[int, ...] = (1,)) -> list[Choice | EdgeOnnxError]:
    rows = np.repeat(logits, len(samplers), axis=0) if len(logits) == 1 else logits.copy()
    return choose(rows, samplers, [np.array(history, dtype=np.int64)] * len(samplers))


def token(found: Choice | EdgeOnnxError) -> int:
    assert isinstance(found, Choice), found
    return found.token


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert chosen(LOGITS, sampler()) == [Choice(1)]


def test_bias_and_penalties_are_openais() -> None:
    biased = sampler(logit_bias={3: 3.5})
    assert chosen(LOGITS, biased) == [Choice(3)]
    frequent, present = sampler(frequency_penalty=0.75), sampler(presence_penalty=1.5)
    for each in (1, 4, 1):
        frequent.accept(each)
        present.accept(each)
    frequent_row, present_row = LOGITS[0].copy(), LOGITS[0].copy()
    frequent.adjust(frequent_row)
    present.adjust(present_row)
    np.testing.assert_allclose(frequent_row, [0.0, 0.5, 1.0, -1.0, 1.25])  # twice, and once
    np.testing.assert_allclose(present_row, [0.0, 0.5, 1.0, -1.0, 0.5])  # however often


def test_the_repetition_penalty_looks_at_prompt_and_answer() -> None:
    repeated = sampler(sampling=SamplingParameters(temperature=0.0, repetition_penalty=3.0))
    assert token(chosen(LOGITS, repeated, history=(1,))[0]) == 4


def test_log_probabilities_are_of_what_the_model_says() -> None:
    told = sampler(top_logprobs=2, logit_bias={3: 9.0})
    (found,) = chosen(LOGITS, told)
    expected = LOGITS[0] - np.log(np.exp(LOGITS[0]).sum())
    assert isinstance(found, Choice)
    assert found.token == 3
    assert found.logprob == pytest.approx(expected[3], abs=1e-6)
    assert [each for each, _ in found.top] == [1, 4]
    assert found.top[0][1] == pytest.approx(expected[1], abs=1e-6)


def test_a_seed_fixes_the_draws_whatever_runs_beside() -> None:
    flat = np.zeros((1, 50), dtype=np.float32)
    alone, beside = sampler(sampling=WARM, seed=-7), sampler(sampling=WARM, seed=-7)
    others = [sampler(sampling=WARM) for _ in range(3)]
    first = [token(chosen(flat, alone)[0]) for _ in range(20)]
    second = [token(chosen(flat, *others[: step % 4], beside)[-1]) for step in range(20)]
    assert first == second
    assert len(set(first)) > 5
    assert [token(chosen(flat, sampler(sampling=WARM))[0]) for _ in range(20)] != first


def test_rows_have_parameters_of_their_own() -> None:
    found = chosen(LOGITS, sampler(), sampler(logit_bias={0: 9}), sampler(sampling=SamplingParameters(top_k=1), seed=3))
    assert token(found[0]) == 1
    assert token(found[1]) == 0
    assert token(found[2]) in (1, 4)


@pytest.mark.parametrize("other", [{}, {"sampling": WARM, "seed": 1}, {"top_logprobs": 1}])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_without_numbers_fails_alone(other: dict[str, object], bad: float) -> None:
    rows = np.repeat(LOGITS, 3, axis=0)
    rows[1, 2] = bad
    expected = chosen(LOGITS, sampler(**other))[0]
    found = chosen(rows, *(sampler(**other) for _ in range(3)))
    assert isinstance(found[1], InferenceError)
    assert found[0] == found[2] == expected


class Form:
    """A constraint that allows what it is told, and counts."""

    finished = False

    def __init__(self, allowed: tuple[int, ...] = (), error: Exception | None = None) -> None:
        self.allowed, self.error, self.masked = list(allowed), error, 0

    def mask(self, logits: np.ndarray) -> None:
        self.masked += 1
        if self.error is not None:
            raise self.error
        keep = logits[self.allowed].copy()
        logits[:] = -np.inf
        logits[self.allowed] = keep

    def accept(self, token: int) -> None:
        raise AssertionError("not here")


def test_a_constraint_leaves_only_its_tokens() -> None:
    assert token(chosen(LOGITS, sampler(constraint=Form((0, 3))))[0]) == 0


@pytest.mark.parametrize("form", [Form(error=RuntimeError("no such state")), Form(allowed=())])
def test_a_constraint_that_fails_fails_alone_and_is_asked_once(form: Form) -> None:
    found = chosen(LOGITS, sampler(), sampler(constraint=form), sampler(sampling=GREEDY))
    assert isinstance(found[1], InferenceError)
    assert (token(found[0]), token(found[2])) == (1, 1)
    assert form.masked == 1


def test_what_was_not_asked_for_leaves_the_logits_alone() -> None:
    rows = LOGITS.copy()
    choose(rows, [sampler()], [np.zeros(0, dtype=np.int64)])
    np.testing.assert_array_equal(rows, LOGITS)
