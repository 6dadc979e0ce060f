"""The compiled sampling agrees with its plain twin, and draws only what the filters keep."""

from __future__ import annotations

from typing import Any

import numpy as np
from edgeonnx_ext.reference import sampling as reference
from edgeonnx_ext.sampling import SamplingParameters
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.unit.ext.conftest import compiled

PARAMETERS = st.builds(
    SamplingParameters,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.25, 2.0]),
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 80),
    top_p=st.sampled_from([0.0, 0.13, 0.61, 0.97, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.37, 1.0]),
)


@st.composite
def rows_of_logits(draw: Any) -> np.ndarray:
    """Ordinary rows, rows of few different numbers, and rows with excluded tokens."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 300)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = generator.standard_normal(shape) * draw(st.sampled_from([0.0, 0.5, 4.0, 30.0]))
    if draw(st.booleans()):
        logits = np.round(logits)
    if draw(st.booleans()):
        logits[generator.random(shape) < 0.3] = -np.inf
        logits[:, 0] = 0.0
    return logits.astype(np.float32)


def sample(kernels: Any, logits: np.ndarray, uniforms: np.ndarray, parameters: Any, history: Any) -> tuple[Any, ...]:
    ids, logprobs = np.empty(len(logits), dtype=np.int64), np.empty(len(logits), dtype=np.float32)
    probabilities = np.empty_like(logits)
    kernels.sample_into(logits, uniforms, parameters, ids, history, logprobs)
    kernels.probabilities_into(logits, parameters, probabilities, history)
    return ids, logprobs, probabilities


SPREAD = np.array([[0.5, -0.5, 2.6, 5.216, -5.06, -2.5, -9.3, -4.98]], dtype=np.float32)


@settings(max_examples=150, deadline=None)
@example(logits=SPREAD, parameters=SamplingParameters(temperature=0.1, top_k=0, top_p=1.0), seed=0)
@given(logits=rows_of_logits(), parameters=PARAMETERS, seed=st.integers(0, 2**32))
def test_compiled_and_plain_agree(logits: np.ndarray, parameters: SamplingParameters, seed: int) -> None:
    generator = np.random.default_rng(seed)
    uniforms = generator.random(len(logits))
    history = [generator.integers(0, logits.shape[1] + 3, size=generator.integers(0, 9)) for _ in logits]
    ids, logprobs, probabilities = sample(compiled("_sampling"), logits, uniforms, parameters, history)
    expected_ids, expected_logprobs, expected = sample(reference, logits, uniforms, parameters, history)
    assert (probabilities[np.arange(len(ids)), ids] > 0).all()
    # float32 exponentials lie within 1e-5 of those in float64, so that a number at an edge may fall on either side.
    sums = np.cumsum(expected, axis=1, dtype=np.float64)
    assume((np.abs(sums - uniforms[:, None]) > 1e-5).all())
    at_an_edge = (((probabilities > 0) != (expected > 0)) & (np.maximum(probabilities, expected) > 1e-30)).sum(axis=1)
    assert at_an_edge.max() <= 1
    assume(not at_an_edge.any())
    np.testing.assert_allclose(probabilities, expected, rtol=2e-5, atol=1e-35)
    assert ids.tolist() == expected_ids.tolist()
    np.testing.assert_allclose(logprobs, expected_logprobs, rtol=1e-5, atol=1e-6)


@settings(max_examples=80, deadline=None)
@given(logits=rows_of_logits(), top_p=st.floats(0.0, 0.999))
def test_top_p_keeps_the_fewest_that_reach_it(logits: np.ndarray, top_p: float) -> None:
    probabilities = np.empty_like(logits)
    compiled("_sampling").probabilities_into(logits, SamplingParameters(top_p=top_p), probabilities)
    wide = logits.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    for row, kept in enumerate(probabilities > 0):
        assert weights[row, kept].sum() > top_p - 1e-5
        assert weights[row, kept].sum() - weights[row, kept].min() < top_p + 1e-5
        assert weights[row, kept].min() >= weights[row, ~kept].max(initial=0.0)
