"""Distributions of the next token: what is measured, against formulas by hand, and what broken answers come to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeonnx.errors import ValidationError
from edgeonnx.evaluate.language import (
    LanguageReference,
    build_language_reference,
    cut_windows,
    measure_language,
)
from edgeonnx.evaluate.metrics import LANGUAGE, METRICS

VOCABULARY = 11
WINDOWS = ((1, 2, 3, 4, 5), (6, 7, 8))
_TABLE = np.random.default_rng(3).standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32) * 3

Logits = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def source(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The logits of a token hang on that token alone."""
    found: NDArray[np.float32] = _TABLE[ids]
    return found


def show(ids: object) -> str:
    return str(list(ids))  # type: ignore[call-overload]


@pytest.fixture
def reference(tmp_path: Path) -> LanguageReference:
    return build_language_reference(source, WINDOWS, tmp_path)


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


def test_the_source_itself_is_perfect(reference: LanguageReference) -> None:
    found = measure_language(source, reference, show, worst=2)
    assert (found.metrics["top1"], found.metrics["kl_mean"], found.metrics["perplexity_ratio"]) == (1.0, 0.0, 1.0)
    assert set(found.metrics) == {*LANGUAGE, "source_perplexity"}
    following = [probabilities(_TABLE[a])[b] for window in WINDOWS for a, b in pairwise(window)]
    assert found.metrics["source_perplexity"] == pytest.approx(np.exp(-np.log(following).mean()), rel=1e-4)


def test_figures_are_those_of_the_formulas(reference: LanguageReference) -> None:
    def other(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        logits = source(ids).copy()
        logits[..., 4] += np.where(ids == 7, 20, 0.5).astype(np.float32)
        return logits

    found = measure_language(other, reference, show, worst=3)
    tokens = np.array([token for window in WINDOWS for token in window])
    p, q = probabilities(source(tokens)), probabilities(other(tokens))
    divergence = (p * np.log(p / q)).sum(axis=-1)
    assert found.metrics["kl_mean"] == pytest.approx(divergence.mean(), rel=1e-2)
    assert found.metrics["kl_max"] == pytest.approx(divergence.max(), rel=1e-2)
    assert found.metrics["top1"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert found.metrics["top1"] < 1
    worst = found.worst[0]
    assert (worst.text, worst.tokens) == ("[6, 7]", 2)
    assert (worst.expected, worst.found) == (f"[{_TABLE[7].argmax()}]", "[4]")
    assert worst.score == pytest.approx(np.exp(-divergence.max()), abs=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_broken_position_makes_every_metric_the_worst(reference: LanguageReference, value: float) -> None:
    def broken(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        logits = source(ids).copy()
        logits[..., :] = np.where((ids == 8)[..., None], value, logits)
        return logits

    found = measure_language(broken, reference, show, worst=1)
    assert all(value == METRICS[name].worst for name, value in found.metrics.items() if name in METRICS)
    assert found.metrics["source_perplexity"] < 1e6
    assert (found.worst[0].tokens, found.worst[0].score) == (3, 0.0)


def test_a_source_that_gives_no_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="not a number"):
        build_language_reference(lambda ids: source(ids) * np.float32(np.nan), WINDOWS, tmp_path)


def test_another_vocabulary_is_refused(reference: LanguageReference) -> None:
    with pytest.raises(ValidationError, match="another shape"):
        measure_language(lambda ids: source(ids)[..., :-1], reference, show, worst=1)


def test_progress_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = build_language_reference(source, WINDOWS, tmp_path, lambda done, of: seen.append((done, of)))
    measure_language(source, made, show, worst=0, on_window=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)] * 2


class TestWindows:
    def test_long_texts_are_cut_and_short_ends_dropped(self) -> None:
        windows = cut_windows([list(range(70)), [1], [], [3, 4], list(range(35))], width=32)
        assert [len(window) for window in windows] == [32, 32, 2, 32]
        assert windows[1][0] == 32

    def test_an_end_that_is_long_enough_stays(self) -> None:
        assert [len(window) for window in cut_windows([list(range(100))], width=60)] == [60, 40]

    def test_more_than_enough_is_thinned_evenly(self) -> None:
        windows = cut_windows([[number] * 50 for number in range(40)], width=50, enough=480)
        assert sum(map(len, windows)) == 500
        assert [window[0] for window in windows] == list(range(0, 40, 4))

    def test_no_fewer_than_enough(self) -> None:
        windows = cut_windows([[number] * (2 + 30 * (number % 3)) for number in range(60)], width=100, enough=1000)
        assert 1000 <= sum(map(len, windows)) < 1000 + 2 * 62

    def test_a_single_window_is_enough(self) -> None:
        assert len(cut_windows([list(range(50))], width=50, enough=10)) == 1

    def test_no_text_gives_no_window(self) -> None:
        assert cut_windows([[], [1]]) == ()
