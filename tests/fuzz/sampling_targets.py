"""Target of sampling."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.fuzz.arrays import broken, floats, generator_of
from tests.fuzz.target import Attempt, Target, same_refusal, twins

COLUMNS = (1, 2, 3, 7, 16, 33, 100, 300)
# Of a cumulative probability: what float32 weights and float64 sums leave open.
EDGE = 1e-5
LEAST = 1e-30  # below, float32 may round a probability to 0


def _parameters(rng: random.Random) -> Any:
    from edgeonnx_ext.sampling import SamplingParameters

    return SamplingParameters(
        repetition_penalty=rng.choice((1.0, 1.0, 0.5, 1.3, 10.0)),
        temperature=rng.choice((0, 0.1, 0.7, 1.0, 1.0, 5.0)),
        top_k=rng.choice((0, 0, 1, 2, 5, 50, 10**6)),
        top_p=rng.choice((1.0, 1.0, 0.0, 0.3, 0.9, 0.999)),
        min_p=rng.choice((0.0, 0.0, 0.01, 0.3, 1.0)),
    )


def _arguments(rng: random.Random) -> dict[str, Any]:
    numbers = generator_of(rng)
    rows, columns = rng.choice((0, 1, 1, 2, 4)), rng.choice(COLUMNS)
    logits = floats(rng, (rows, columns), finite=rng.random() < 0.7)
    if rng.random() < 0.3 and columns > 1:
        logits[numbers.random(logits.shape) < 0.5] = -np.inf  # a mask
    uniforms = numbers.random(rows)
    if rows and rng.random() < 0.3:
        uniforms[rng.randrange(rows)] = rng.choice((0.0, 0.5, np.nextafter(1.0, 0.0)))
    history = [numbers.integers(0, columns + 3, rng.randrange(6)) for _ in range(rows)] if rng.random() < 0.5 else None
    one = rng.random() < 0.5
    return {
        "logits": logits,
        "uniforms": uniforms,
        "parameters": _parameters(rng) if one else [_parameters(rng) for _ in range(rows)],
        "ids": np.full(rows, -7, dtype=np.int64),
        "history": history,
        "logprobs": np.full(rows, -7, dtype=np.float32),
    }


def _check_draw(arguments: dict[str, Any], probabilities: np.ndarray, what: str) -> None:
    """Fail unless each token is the first at which the probabilities add up to more than u."""
    wide = arguments["logits"].astype(np.float64)
    for row, token in enumerate(arguments["ids"].tolist()):
        kept = probabilities[row].astype(np.float64)
        assert abs(kept.sum() - 1.0) < EDGE, f"{what}: row {row} adds up to {kept.sum()}"
        before, u = kept[:token].sum(), arguments["uniforms"][row]
        # At 0 a token may be drawn whose probability is only in float32 0.
        assert kept[token] > 0 or u == 0, f"{what}: row {row}, token {token} was removed"
        assert before - EDGE <= u <= before + kept[token] + EDGE, f"{what}: row {row}, token {token}, u {u}"
        largest = wide[row].max()
        expected = wide[row, token] - largest - np.log(np.exp(wide[row] - largest).sum())
        assert np.isclose(arguments["logprobs"][row], expected, rtol=1e-6, atol=1e-5), f"{what}: row {row}"


def _open_sampling() -> Attempt:
    kinds = twins("_sampling", "sampling")

    def attempt(rng: random.Random) -> None:
        arguments = _arguments(rng)
        if rng.random() < 0.15:
            changed = broken(rng, {k: v for k, v in arguments.items() if k != "logprobs"}, {"ids"})
            same_refusal(
                {kind: lambda t=t: t.sample_into(**changed) for kind, t in kinds.items()}, TypeError, ValueError
            )
            assert (arguments["ids"] == -7).all()
            return
        before = arguments["logits"].copy()
        found: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for kind, twin in kinds.items():
            given = {**arguments, "ids": arguments["ids"].copy(), "logprobs": arguments["logprobs"].copy()}
            probabilities = np.full_like(before, -7)
            try:
                twin.sample_into(**given)
            except ValueError as error:
                refused[kind] = str(error)
                assert (given["ids"] == -7).all(), "ids were written"
                continue
            twin.probabilities_into(given["logits"], given["parameters"], probabilities, given["history"])
            _check_draw(given, probabilities, f"{kind}: {arguments}")
            found[kind] = probabilities
        np.testing.assert_array_equal(arguments["logits"], before, err_msg="the logits were changed")
        assert not refused or (not found and len(set(refused.values())) == 1), (
            f"{refused}, found {list(found)}: {arguments}"
        )
        if len(found) == 2:
            _same_probabilities(found["compiled"], found["reference"], arguments)

    return attempt


def _same_probabilities(ours: np.ndarray, plain: np.ndarray, arguments: dict[str, Any]) -> None:
    """Fail unless both twins keep the same tokens, but for equally probable ones at the edge of top-p or min-p."""
    for row in range(len(ours)):
        other = np.flatnonzero((ours[row] > LEAST) != (plain[row] > LEAST))
        if not len(other):
            np.testing.assert_allclose(ours[row], plain[row], rtol=2e-5, atol=LEAST, err_msg=str(arguments))
            continue
        masses = np.maximum(ours[row], plain[row])[other]
        assert np.ptp(masses) <= 1e-5 * masses.max(), f"row {row}: {other}, {arguments}"


TARGETS = [
    Target(
        name="sampling",
        invariant="the drawn token is the first at which the kept probabilities add up to more than u; both twins keep "
        "the same tokens, and refuse the same rows and arguments with the same words",
        open=_open_sampling,
    ),
]
