from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext.reference import sampling as reference
from edgeonnx_ext.sampling import SamplingParameters

from tests.unit.ext.conftest import compiled

NAN, INF = np.nan, np.inf


@pytest.fixture(params=["compiled", "reference"])
def sampling(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_sampling") if request.param == "compiled" else reference


def drawn(sampling: ModuleType, logits: Any, uniforms: list[float], parameters: Any, history: Any = None) -> list[int]:
    ids = np.full(len(uniforms), -7, dtype=np.int64)
    sampling.sample_into(np.array(logits, np.float32), np.array(uniforms), parameters, ids, history)
    return ids.tolist()


def kept(sampling: ModuleType, row: list[float], history: list[int] | None = None, **parameters: Any) -> list[int]:
    """Ids that the filters leave in one row."""
    logits = np.array([row], dtype=np.float32)
    out = np.full_like(logits, -7)
    tokens = None if history is None else [np.array(history, dtype=np.int64)]
    sampling.probabilities_into(logits, SamplingParameters(**parameters), out, tokens)
    assert out.sum() == pytest.approx(1, abs=1e-6)
    return np.flatnonzero(out[0]).tolist()


LOGS = np.log([0.1, 0.4, 0.2, 0.3]).tolist()


def test_the_uniform_number_walks_through_the_ids(sampling: ModuleType) -> None:
    uniforms = [0.0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, 0.999]
    assert drawn(sampling, [LOGS] * 8, uniforms, SamplingParameters()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_token_that_is_excluded_is_never_drawn(sampling: ModuleType) -> None:
    logits = [[-INF, 0, -INF, 0, -INF]] * 4
    assert drawn(sampling, logits, [0.0, 0.49, 0.5, 1 - 2**-53], SamplingParameters()) == [1, 1, 3, 3]


def test_a_row_does_not_depend_on_the_others(sampling: ModuleType) -> None:
    generator = np.random.default_rng(3)
    logits = generator.standard_normal((6, 300)).astype(np.float32)
    uniforms = generator.random(6)
    parameters = [SamplingParameters(temperature=0.5 + row, top_k=10 * row, top_p=0.9) for row in range(6)]
    together = drawn(sampling, logits, uniforms.tolist(), parameters)
    alone = [drawn(sampling, logits[[row]], [uniforms[row]], parameters[row])[0] for row in range(6)]
    assert together == alone


@pytest.mark.parametrize("columns", [1, 2, 63, 64, 65, 129, 1000])
def test_frequencies_are_the_probabilities(sampling: ModuleType, columns: int) -> None:
    """Evenly spread uniforms draw each token as often as its probability says."""
    logits = np.random.default_rng(columns).standard_normal((1, columns)).astype(np.float32) * 2
    uniforms = (np.arange(500) + 0.5) / 500
    ids = np.empty(500, dtype=np.int64)
    sampling.sample_into(np.repeat(logits, 500, axis=0), uniforms, SamplingParameters(), ids)
    weights = np.exp(logits[0].astype(np.float64))
    assert np.abs(np.bincount(ids, minlength=columns) / 500 - weights / weights.sum()).max() < 2.1 / 500
    assert (np.diff(ids) >= 0).all()


def test_temperature_0_takes_the_largest_and_of_equal_ones_the_lowest_id(sampling: ModuleType) -> None:
    parameters = SamplingParameters(temperature=0, top_k=3, top_p=0.1, min_p=0.5)
    logits = np.zeros((2, 200), dtype=np.float32)
    logits[0, [150, 70]] = 1
    assert drawn(sampling, logits, [0.9, 0.9], parameters) == [70, 0]


def test_temperature_divides_the_scores(sampling: ModuleType) -> None:
    out = np.empty((1, 2), dtype=np.float32)
    sampling.probabilities_into(np.array([[0, 1]], np.float32), SamplingParameters(temperature=0.5), out)
    np.testing.assert_allclose(out, [[1 / (1 + np.e**2), np.e**2 / (1 + np.e**2)]], rtol=1e-6)


def test_the_filters_keep_what_they_say(sampling: ModuleType) -> None:
    assert kept(sampling, LOGS, top_k=2) == [1, 3]
    assert kept(sampling, LOGS, top_k=9) == [0, 1, 2, 3]
    assert kept(sampling, [1, 2, 2, 2, 0], top_k=2) == [1, 2, 3], "all that reach the k-th largest"
    assert kept(sampling, LOGS, top_p=0.69) == [1, 3]
    assert kept(sampling, LOGS, top_p=0.71) == [1, 2, 3]
    assert kept(sampling, LOGS, top_p=0.0) == [1]
    assert kept(sampling, [0, 0, 0, 0], top_p=0.5) == [2, 3], "of equal ones the higher ids"
    assert kept(sampling, LOGS, min_p=0.49) == [1, 2, 3]
    assert kept(sampling, LOGS, min_p=0.51) == [1, 3]
    assert kept(sampling, LOGS, min_p=1.0) == [1]
    assert kept(sampling, LOGS, top_k=3, top_p=0.75) == [1, 3], "top-p of what top-k left"
    assert kept(sampling, LOGS, top_p=0.71, min_p=0.6) == [1, 3]


@pytest.mark.parametrize("token", [0, 1, 62, 63, 64, 65, 127, 128, 254, 255])
def test_equal_scores_share_the_uniform_numbers_exactly(sampling: ModuleType, token: int) -> None:
    logits = np.zeros((3, 256), dtype=np.float32)
    uniforms = [token / 256, (token + 1e-9) / 256, (token + 1 - 1e-9) / 256]
    assert drawn(sampling, logits, uniforms, SamplingParameters()) == [token] * 3


@pytest.mark.parametrize(("least", "most"), [(-0.5, 0.5), (-1e-3, 1e-3), (3.0, 3.5), (-9.0, -8.5), (-3.0, 9.0)])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_top_p_finds_the_edge_among_many_that_lie_close(
    sampling: ModuleType, least: float, most: float, top_p: float
) -> None:
    row = np.linspace(least, most, 3001, dtype=np.float32)
    sums = np.cumsum(np.exp(row[::-1].astype(np.float64)))
    count = int(np.searchsorted(sums, top_p * sums[-1])) + 1
    found = kept(sampling, row.tolist(), top_p=top_p)
    assert found == list(range(3001 - len(found), 3001))
    assert abs(len(found) - count) <= 1, "an exponential of float32 may move the edge by one"


def test_the_penalty_applies_once_a_token_and_by_the_sign(sampling: ModuleType) -> None:
    out = np.empty((2, 3), dtype=np.float32)
    logits = np.array([[2, -1, 0.5], [2, -1, 0.5]], dtype=np.float32)
    history = [np.array([0, 1, 0, 1, 99]), np.array([], dtype=np.int64)]
    before = logits.copy()
    sampling.probabilities_into(logits, SamplingParameters(repetition_penalty=2.0), out, history)
    expected = np.exp([[1, -2, 0.5], [2, -1, 0.5]])
    np.testing.assert_allclose(out, expected / expected.sum(axis=1, keepdims=True), rtol=1e-6)
    assert (logits == before).all(), "the logits are not changed"


def test_the_penalty_also_decides_greedily(sampling: ModuleType) -> None:
    parameters = SamplingParameters(temperature=0, repetition_penalty=3.0)
    assert drawn(sampling, [[3, 2]], [0.0], parameters, [np.array([0])]) == [1]


def test_logprobs_are_those_of_the_model(sampling: ModuleType) -> None:
    ids, logprobs = np.empty(2, dtype=np.int64), np.empty(2, dtype=np.float32)
    parameters = SamplingParameters(temperature=0.3, top_k=1, repetition_penalty=1.1)
    logits = np.array([LOGS, [1e6, 1e6, -INF, -INF]], dtype=np.float32)
    sampling.sample_into(logits, np.array([0.5, 0.9]), parameters, ids, [np.array([1])] * 2, logprobs)
    np.testing.assert_allclose(logprobs, np.log([0.4, 0.5]), rtol=1e-6)


def test_extreme_numbers_are_numbers(sampling: ModuleType) -> None:
    assert drawn(sampling, [[3e38, -3e38, 3e38]], [0.6], SamplingParameters(temperature=1e-6)) == [2]
    assert drawn(sampling, [[1e-45, 0.0]], [0.6], SamplingParameters(temperature=1e6, top_p=0.99)) == [1]
    assert kept(sampling, [0.0, -0.0, -1e-45], top_k=2) == [0, 1]
    assert kept(sampling, [3e38, -3e38, 1], top_p=0.9999) == [0]
    assert kept(sampling, [5, -INF, -INF], top_k=2, min_p=0.1) == [0]


@pytest.mark.parametrize("parameters", [{}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, NAN, 1], "found a NaN in row 1"),
        ([NAN, NAN, NAN], "found a NaN in row 1"),
        ([0, INF, 1], r"found \+infinity .* in row 1"),
        ([-INF, -INF, -INF], "found -infinity alone .* in row 1"),
    ],
)
def test_rows_that_nothing_can_be_drawn_from(
    sampling: ModuleType, parameters: dict[str, Any], row: list[float], message: str
) -> None:
    logits = np.array([[0, 1, 2], row], dtype=np.float32)
    ids, logprobs = np.full(2, -7, dtype=np.int64), np.full(2, -7, dtype=np.float32)
    probabilities = np.full((2, 3), -7, dtype=np.float32)
    chosen = SamplingParameters(**parameters)
    with pytest.raises(ValueError, match=message):
        sampling.sample_into(logits, np.zeros(2), chosen, ids, None, logprobs)
    with pytest.raises(ValueError, match=message):
        sampling.probabilities_into(logits, chosen, probabilities)
    assert (ids == -7).all()
    assert (logprobs == -7).all()
    assert (probabilities == -7).all()


def test_a_penalty_that_overflows_is_named(sampling: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"\+infinity \(after the repetition penalty\) in row 0"):
        drawn(sampling, [[3e38, 0]], [0.5], SamplingParameters(repetition_penalty=1e-6), [np.array([0])])


GOOD: dict[str, Any] = {"uniforms": np.zeros(2), "parameters": SamplingParameters(), "history": None, "logprobs": None}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"logits": np.zeros((2, 3))}, TypeError, "logits: expected dtype float32"),
        ({"logits": np.zeros((2, 0), np.float32)}, ValueError, "logits: expected 1 to 2147483647 columns"),
        ({"uniforms": np.zeros(3)}, ValueError, r"uniforms: expected shape \(2,\)"),
        ({"uniforms": np.zeros(2, np.float32)}, TypeError, "uniforms: expected dtype float64"),
        ({"uniforms": np.array([0.5, 1.0])}, ValueError, "uniforms: expected numbers from 0 to below 1"),
        ({"uniforms": np.array([-0.1, 0.5])}, ValueError, "uniforms: expected numbers from 0 to below 1"),
        ({"uniforms": np.array([0.5, NAN])}, ValueError, "uniforms: expected numbers from 0 to below 1"),
        ({"parameters": [SamplingParameters()]}, ValueError, "parameters: expected one, or one for each of the 2 rows"),
        ({"parameters": [SamplingParameters(), {}]}, TypeError, r"parameters\[1\]: expected SamplingParameters"),
        ({"history": [np.zeros(1, np.int64)]}, ValueError, "history: expected one array for each of the 2 rows"),
        ({"history": [np.zeros(1, np.int64), np.array([-1])]}, ValueError, r"history\[1\]: expected token ids of 0"),
        ({"history": [[1], [2]]}, TypeError, r"history\[0\]: expected a numpy.ndarray"),
        ({"logprobs": np.zeros(3, np.float32)}, ValueError, r"logprobs: expected shape \(2,\)"),
        ({"logprobs": np.zeros(2)}, TypeError, "logprobs: expected dtype float32"),
    ],
)
def test_wrong_arguments(sampling: ModuleType, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    ids = np.full(2, -7, dtype=np.int64)
    arguments = {"logits": np.zeros((2, 3), np.float32), "ids": ids, **GOOD, **changes}
    with pytest.raises(error, match=message):
        sampling.sample_into(**arguments)
    assert (ids == -7).all()


def test_wrong_buffers_for_results(sampling: ModuleType) -> None:
    logits, parameters = np.zeros((2, 3), dtype=np.float32), SamplingParameters()
    with pytest.raises(TypeError, match="ids: expected dtype int64"):
        sampling.sample_into(logits, np.zeros(2), parameters, np.zeros(2, dtype=np.int32))
    with pytest.raises(ValueError, match="probabilities: expected the shape of logits"):
        sampling.probabilities_into(logits, parameters, np.zeros((3, 2), dtype=np.float32))
    with pytest.raises(ValueError, match="logits and probabilities: expected buffers apart"):
        sampling.probabilities_into(logits, parameters, logits)


def test_no_rows_are_fine(sampling: ModuleType) -> None:
    logits = np.empty((0, 5), dtype=np.float32)
    sampling.sample_into(logits, np.empty(0), SamplingParameters(), np.empty(0, dtype=np.int64), [])
    sampling.probabilities_into(logits, [], np.empty((0, 5), dtype=np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": -1}, "temperature: expected 0, or a number from 1e-06 to 1e"),
        ({"temperature": NAN}, "temperature: expected"),
        ({"temperature": 1e-9}, "temperature: expected"),
        ({"top_k": -1}, "top_k: expected 0"),
        ({"top_p": 1.1}, "top_p: expected a number from 0 to 1, found 1.1"),
        ({"top_p": NAN}, "top_p: expected"),
        ({"min_p": -0.1}, "min_p: expected"),
        ({"repetition_penalty": 0}, "repetition_penalty: expected"),
        ({"repetition_penalty": INF}, "repetition_penalty: expected"),
    ],
)
def test_parameters_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParameters(**changes)


@pytest.mark.parametrize("changes", [{"top_k": 1.5}, {"temperature": "1"}, {"top_p": None}])
def test_parameters_that_are_no_numbers(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        SamplingParameters(**changes)


TRANSFORMERS_CASES = [
    {},
    {"temperature": 0.7},
    {"top_k": 50},
    {"top_p": 0.9},
    {"min_p": 0.03},
    {"top_k": 40, "top_p": 0.8, "temperature": 1.3},
    {"top_k": 500, "top_p": 0.95, "min_p": 0.02, "temperature": 0.8, "repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "top_p": 0.4},
]


@pytest.mark.slow
def test_kept_tokens_and_probabilities_are_those_of_transformers(sampling: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    generator = np.random.default_rng(5)
    logits = (generator.standard_normal((4, 3000)) * [[1], [2], [3], [5]]).astype(np.float32)
    history = generator.integers(0, 3000, size=(4, 60))
    for case in TRANSFORMERS_CASES:
        steps = processors.LogitsProcessorList()
        for name, step in {
            "repetition_penalty": processors.RepetitionPenaltyLogitsProcessor,
            "temperature": processors.TemperatureLogitsWarper,
            "top_k": processors.TopKLogitsWarper,
            "top_p": processors.TopPLogitsWarper,
            "min_p": processors.MinPLogitsWarper,
        }.items():
            if name in case:
                steps.append(step(case[name]))
        expected = torch.softmax(steps(torch.from_numpy(history), torch.from_numpy(logits)), dim=-1).numpy()
        found = np.empty_like(logits)
        sampling.probabilities_into(logits, SamplingParameters(**case), found, list(history))
        assert ((found > 0) == (expected > 0)).all(), case
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-8)
