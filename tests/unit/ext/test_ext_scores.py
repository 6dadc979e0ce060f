from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from edgeonnx_ext.reference import scores as reference

from tests.unit.ext.conftest import compiled

ELEMENTWISE = ["softmax_into", "log_softmax_into", "sigmoid_into"]
NAN, INF = np.nan, np.inf


@pytest.fixture(params=["compiled", "reference"])
def scores(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_scores") if request.param == "compiled" else reference


def applied(scores: ModuleType, kernel: str, rows: list[list[float]]) -> np.ndarray:
    x = np.array(rows, dtype=np.float32)
    out = np.full_like(x, -7)
    getattr(scores, kernel)(x, out)
    return out


@pytest.mark.parametrize("kernel", ELEMENTWISE)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 1000])
def test_they_agree_with_float64(scores: ModuleType, kernel: str, columns: int) -> None:
    x = (np.random.default_rng(columns).standard_normal((3, columns)) * 8).astype(np.float32)
    wide = x.astype(np.float64)
    log_softmax = wide - wide.max(axis=1, keepdims=True)
    log_softmax -= np.log(np.exp(log_softmax).sum(axis=1, keepdims=True))
    expected = {
        "softmax_into": np.exp(log_softmax),
        "log_softmax_into": log_softmax,
        "sigmoid_into": 1 / (1 + np.exp(-wide)),
    }
    out = np.empty_like(x)
    getattr(scores, kernel)(x, out)
    np.testing.assert_allclose(out, expected[kernel], rtol=5e-6, atol=1e-7)
    getattr(scores, kernel)(x, x)
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize(
    ("kernel", "row", "expected"),
    [
        ("softmax_into", [1000, 1000], [0.5, 0.5]),
        ("softmax_into", [0, -INF], [1, 0]),
        ("softmax_into", [0, -200], [1, 0]),
        ("softmax_into", [3e38, -3e38], [1, 0]),
        ("softmax_into", [NAN, 1], [NAN, NAN]),
        ("softmax_into", [INF, 1], [NAN, NAN]),
        ("softmax_into", [-INF, -INF], [NAN, NAN]),
        ("log_softmax_into", [0, -INF], [0, -INF]),
        ("log_softmax_into", [0, -200], [0, -200]),
        ("log_softmax_into", [1, NAN], [NAN, NAN]),
        ("log_softmax_into", [INF, 1], [NAN, NAN]),
        ("log_softmax_into", [-INF, -INF], [NAN, NAN]),
        ("sigmoid_into", [0, INF, -INF, NAN], [0.5, 1, 0, NAN]),
        ("sigmoid_into", [-1000, 1000], [0, 1]),
    ],
)
def test_what_becomes_of_extreme_numbers(
    scores: ModuleType, kernel: str, row: list[float], expected: list[float]
) -> None:
    out = applied(scores, kernel, [row, [0] * len(row)])
    np.testing.assert_array_equal(out[0], np.array(expected, dtype=np.float32))
    assert np.isfinite(out[1]).all()


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_a_nan_is_found_wherever_it_stands(scores: ModuleType, place: int) -> None:
    x = np.zeros((1, 40), dtype=np.float32)
    x[0, place] = NAN
    assert np.isnan(applied(scores, "softmax_into", x.tolist())).all()
    with pytest.raises(ValueError, match=f"x: .* found NaN at row 0, column {place}"):
        scores.top_k_into(x, 1, np.empty((1, 1), dtype=np.float32), np.empty((1, 1), dtype=np.int64))
    with pytest.raises(ValueError, match=f"x: .* found NaN at row 0, column {place}"):
        scores.argmax_into(x, np.empty(1, dtype=np.int64))


def top_k(scores: ModuleType, rows: list[list[float]], k: int) -> tuple[list[list[float]], list[list[int]]]:
    x = np.array(rows, dtype=np.float32)
    values, indices = np.empty((len(x), k), dtype=np.float32), np.empty((len(x), k), dtype=np.int64)
    scores.top_k_into(x, k, values, indices)
    return values.tolist(), indices.tolist()


def test_the_largest_come_first_and_of_equal_ones_the_lower_index(scores: ModuleType) -> None:
    rows = [[1, 3, 2, 3, 0], [-INF, INF, -1, -1, -INF], [0, -0.0, 0, -0.0, 0]]
    values, indices = top_k(scores, rows, 4)
    assert values == [[3, 3, 2, 1], [INF, -1, -1, -INF], [0, 0, 0, 0]]
    assert indices == [[1, 3, 2, 0], [1, 2, 3, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize(("columns", "k"), [(1, 1), (63, 5), (64, 64), (65, 2), (200, 199), (1000, 10)])
def test_top_k_is_a_stable_sort_cut_off(scores: ModuleType, columns: int, k: int) -> None:
    x = np.random.default_rng(k).integers(-20, 20, size=(4, columns)).astype(np.float32)
    values, indices = top_k(scores, x.tolist(), k)
    expected = np.argsort(-x, axis=1, kind="stable")[:, :k]
    assert indices == expected.tolist()
    assert values == np.take_along_axis(x, expected, axis=1).tolist()


def test_argmax_takes_the_lowest_of_equal_ones(scores: ModuleType) -> None:
    indices = np.full(3, -1, dtype=np.int64)
    scores.argmax_into(np.array([[1, 5, 5], [-INF, -INF, -INF], [0, 2, INF]], dtype=np.float32), indices)
    assert indices.tolist() == [1, 0, 2]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_arrays_are_fine(scores: ModuleType, shape: tuple[int, int]) -> None:
    for kernel in ELEMENTWISE:
        x = np.empty(shape, dtype=np.float32)
        getattr(scores, kernel)(x, np.empty_like(x))
    scores.top_k_into(
        np.empty((0, 3), np.float32), 2, np.empty((0, 2), dtype=np.float32), np.empty((0, 2), dtype=np.int64)
    )
    scores.argmax_into(np.empty((0, 3), dtype=np.float32), np.empty(0, dtype=np.int64))


MEMORY = np.full(16, -7, dtype=np.float32)


@pytest.mark.parametrize("kernel", ELEMENTWISE)
@pytest.mark.parametrize(
    ("x", "out", "error", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3), np.float32), TypeError, "x: expected dtype float32, found float64"),
        (np.ones(3, np.float32), np.ones(3, np.float32), ValueError, "x: expected 2 dimensions"),
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), ValueError, "out: expected the shape of x"),
        (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32).T, ValueError, "out: expected a C-contiguous"),
        (MEMORY[:6].reshape(2, 3), MEMORY[1:7].reshape(2, 3), ValueError, "out and x: expected buffers apart"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(
    scores: ModuleType, kernel: str, x: np.ndarray, out: np.ndarray, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        getattr(scores, kernel)(x, out)
    assert (MEMORY == -7).all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k": 0}, ValueError, "k: expected 1 to the 3 columns of x, found 0"),
        ({"k": 4}, ValueError, "k: expected 1 to the 3 columns of x, found 4"),
        ({"k": 2.0}, TypeError, "integer"),
        ({"values": np.ones((2, 3), np.float32)}, ValueError, r"values: expected shape \(2, 2\)"),
        ({"indices": np.ones((2, 2), np.int32)}, TypeError, "indices: expected dtype int64"),
        ({"x": np.ones((0, 0), np.float32)}, ValueError, "k: expected 1 to the 0 columns"),
    ],
)
def test_wrong_arguments_of_top_k(
    scores: ModuleType, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    arguments: dict[str, object] = {
        "x": np.ones((2, 3), np.float32),
        "k": 2,
        "values": np.full((2, 2), -7, np.float32),
        "indices": np.full((2, 2), -7, np.int64),
    }
    with pytest.raises(error, match=message):
        scores.top_k_into(**{**arguments, **changes})
    assert (arguments["values"] == -7).all()


def test_nothing_is_written_if_the_last_row_has_a_nan(scores: ModuleType) -> None:
    x = np.array([[1, 2], [1, NAN]], dtype=np.float32)
    values, indices = np.full((2, 1), -7, dtype=np.float32), np.full((2, 1), -7, dtype=np.int64)
    with pytest.raises(ValueError, match="NaN at row 1, column 1"):
        scores.top_k_into(x, 1, values, indices)
    with pytest.raises(ValueError, match="NaN at row 1, column 1"):
        scores.argmax_into(x, indices[:, 0].copy())
    assert (values == -7).all()
    assert (indices == -7).all()


def test_argmax_needs_a_column(scores: ModuleType) -> None:
    with pytest.raises(ValueError, match="x: expected at least one column"):
        scores.argmax_into(np.empty((2, 0), dtype=np.float32), np.empty(2, dtype=np.int64))
    with pytest.raises(ValueError, match=r"indices: expected shape \(2,\)"):
        scores.argmax_into(np.ones((2, 1), dtype=np.float32), np.empty(3, dtype=np.int64))
