"""The formulas: values worked out by hand, and what is not defined."""

from __future__ import annotations

import numpy as np
import pytest

from edgeonnx.evaluate.numerics import cosines, macro_f1, pearson, ranks, similarities, spearman

NAN = float("nan")


def f64(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(
    ("want", "have", "cosine"),
    [
        ((3, 4), (6, 8), 1.0),
        ((1, 0), (0, 5), 0.0),
        ((1, 0), (-2, 0), -1.0),
        ((1, 0), (1, 1), 0.5**0.5),
        ((0, 0), (0, 0), 1.0),
        ((0, 0), (1, 0), 0.0),
        ((1, 0), (0, 0), 0.0),
        ((1e-300, 0), (1e-300, 0), 1.0),
        ((1, 0), (NAN, 0), NAN),
        ((np.inf, 0), (np.inf, 0), NAN),
    ],
)
def test_cosine(want: tuple[float, float], have: tuple[float, float], cosine: float) -> None:
    assert cosines(f64(*want), f64(*have)) == pytest.approx(cosine, nan_ok=True)


def test_ranks_of_ties_are_averaged() -> None:
    assert ranks(f64(10, 30, 20, 20, 30, 20)).tolist() == [1, 5.5, 3, 3, 5.5, 3]


def test_correlations() -> None:
    assert pearson(f64(1, 2, 3), f64(2, 4, 6)) == pytest.approx(1)
    assert pearson(f64(1, 2, 3), f64(1, 3, 2)) == pytest.approx(0.5)
    assert pearson(f64(1, 2, 3), f64(3, 2, 1)) == pytest.approx(-1)
    assert spearman(f64(1, 2, 3, 4), f64(1, 10, 100, 1000)) == pytest.approx(1)
    assert pearson(f64(1, 2, 3, 4), f64(1, 10, 100, 1000)) < 0.9


@pytest.mark.parametrize("correlate", [pearson, spearman])
def test_a_correlation_that_is_not_defined(correlate: object) -> None:
    assert correlate(f64(2, 2, 2), f64(3, 3, 3)) == 1
    assert correlate(f64(2, 2, 2), f64(1, 2, 3)) == 0
    assert correlate(f64(1, 2, 3), f64(2, 2, 2)) == 0
    assert correlate(f64(1, 1 + 1e-9, 1 - 1e-9), f64(1, 1 - 1e-9, 1 + 1e-9)) == 1  # noise, and no order
    assert correlate(f64(5), f64(9)) == 1
    assert np.isnan(correlate(f64(1, NAN, 3), f64(1, 2, 3)))
    assert np.isnan(correlate(f64(1, 2, 3), f64(1, np.inf, 3)))


def test_similarities_are_the_upper_triangle_without_noise() -> None:
    vectors = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.0, 0.0]])
    assert similarities(vectors).tolist() == [0, 0.707107, 0, 0.707107, 0, 0]
    assert similarities(vectors[:1]).tolist() == []


def test_macro_f1_leaves_out_classes_that_nobody_has() -> None:
    truth = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], dtype=bool)
    found = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    assert macro_f1(truth, found) == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert macro_f1(truth, truth) == 1
    assert macro_f1(np.zeros((2, 3), bool), np.zeros((2, 3), bool)) == 1
