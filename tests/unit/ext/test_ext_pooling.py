from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest


def test_the_mean_is_over_unmasked_tokens(twin: SimpleNamespace) -> None:
    hidden = np.array([[[1, 2], [3, 6], [100, 100]], [[5, 5], [7, 7], [9, 9]]], dtype=np.float32)
    mask = np.array([[1, 1, 0], [0, 0, 0]], dtype=np.int64)
    out = np.full((2, 2), -1, dtype=np.float32)
    twin.masked_mean_into(hidden, mask, out)
    assert out.tolist() == [[2, 4], [0, 0]]


def test_it_agrees_with_torch(twin: SimpleNamespace) -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(1)
    hidden = generator.standard_normal((7, 61, 384)).astype(np.float32)
    mask = (np.arange(61) < generator.integers(1, 62, size=(7, 1))).astype(np.int64)
    mean, unit = np.empty((7, 384), dtype=np.float32), np.empty((7, 384), dtype=np.float32)
    twin.masked_mean_into(hidden, mask, mean)
    twin.l2_normalize_into(mean, unit)
    weights = torch.from_numpy(mask).unsqueeze(-1).float()
    expected = (torch.from_numpy(hidden) * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    np.testing.assert_allclose(mean, expected.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(unit, torch.nn.functional.normalize(expected, dim=1).numpy(), rtol=0, atol=1e-6)


def test_nan_and_infinity_of_tokens_propagate_those_of_padding_do_not(twin: SimpleNamespace) -> None:
    hidden = np.array([[[1, np.nan], [1, 2]], [[np.inf, 1], [1, 2]], [[1, 1], [np.nan, np.inf]]], dtype=np.float32)
    mask = np.array([[1, 1], [1, 1], [1, 0]], dtype=np.int64)
    out = np.empty((3, 2), dtype=np.float32)
    twin.masked_mean_into(hidden, mask, out)
    np.testing.assert_array_equal(out, np.array([[1, np.nan], [np.inf, 1.5], [1, 1]], dtype=np.float32))


def test_normalization_follows_the_formula_of_torch(twin: SimpleNamespace) -> None:
    x = np.array([[3, 4], [0, 0], [1e-20, 0], [np.nan, 1], [np.inf, 1], [-np.inf, np.inf]], dtype=np.float32)
    out = np.empty_like(x)
    twin.l2_normalize_into(x, out)
    nan = np.nan
    expected = [[0.6, 0.8], [0, 0], [1e-8, 0], [nan, nan], [nan, 0], [nan, nan]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_large_values_do_not_overflow(twin: SimpleNamespace) -> None:
    x = np.array([[3e30, 4e30]], dtype=np.float32)
    twin.l2_normalize_into(x, x)
    np.testing.assert_allclose(x, [[0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_arrays_are_fine(twin: SimpleNamespace, shape: tuple[int, int, int]) -> None:
    rows, tokens, dim = shape
    out = np.full((rows, dim), -1, dtype=np.float32)
    twin.masked_mean_into(np.ones(shape, dtype=np.float32), np.ones((rows, tokens), dtype=np.int64), out)
    twin.l2_normalize_into(out, out)
    assert (out == 0).all()


def changed(name: str, value: object) -> dict[str, object]:
    arguments: dict[str, object] = {
        "hidden": np.ones((2, 3, 4), dtype=np.float32),
        "mask": np.ones((2, 3), dtype=np.int64),
        "out": np.full((2, 4), -1, dtype=np.float32),
    }
    return {**arguments, name: value}


SHARED = np.full((2, 3, 4), -1, dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("hidden", np.ones((2, 3, 4)), TypeError, "hidden: expected dtype float32, found float64"),
        ("hidden", np.ones((2, 3), dtype=np.float32), ValueError, "hidden: expected 3 dimensions"),
        ("hidden", np.ones((2, 3, 8), dtype=np.float32)[:, :, ::2], ValueError, "hidden: expected a C-contiguous"),
        ("hidden", [1.0], TypeError, "hidden: expected a numpy.ndarray"),
        ("mask", np.ones((2, 3), dtype=np.int32), TypeError, "mask: expected dtype int64"),
        ("mask", np.ones((3, 2), dtype=np.int64), ValueError, r"mask: expected shape \(2, 3\)"),
        ("mask", np.full((2, 3), 2, dtype=np.int64), ValueError, "mask: expected 0 and 1 only"),
        ("mask", np.full((2, 3), -1, dtype=np.int64), ValueError, "mask: expected 0 and 1 only"),
        ("out", np.full((2, 5), -1, dtype=np.float32), ValueError, r"out: expected shape \(2, 4\)"),
        ("out", np.full((2, 4), -1, dtype=np.float64), TypeError, "out: expected dtype float32"),
        ("out", np.full((4, 2), -1, dtype=np.float32).T, ValueError, "out: expected a C-contiguous"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(
    twin: SimpleNamespace, name: str, value: object, error: type[Exception], message: str
) -> None:
    arguments = changed(name, value)
    with pytest.raises(error, match=message):
        twin.masked_mean_into(**arguments)
    assert (arguments["out"] == -1).all()


def test_read_only_and_overlapping_outputs_are_refused(twin: SimpleNamespace) -> None:
    hidden = np.full((2, 2, 4), -1, dtype=np.float32)
    mask = np.ones((2, 2), dtype=np.int64)
    with pytest.raises(ValueError, match="out and hidden: expected buffers apart"):
        twin.masked_mean_into(hidden, mask, hidden[0])
    out = np.zeros((2, 4), dtype=np.float32)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="out: expected a writable array"):
        twin.masked_mean_into(hidden, mask, out)
    memory = np.full((3, 4), -1, dtype=np.float32)
    with pytest.raises(ValueError, match="out and x: expected buffers apart"):
        twin.l2_normalize_into(memory[:2], memory[1:])
    with pytest.raises(ValueError, match="out: expected the shape of x"):
        twin.l2_normalize_into(memory, memory[:2])
    assert (memory == -1).all()
    assert (hidden == -1).all()


def test_reading_from_a_read_only_array_is_fine(twin: SimpleNamespace) -> None:
    x = np.array([[3, 4]], dtype=np.float32)
    x.setflags(write=False)
    out = np.empty_like(x)
    twin.l2_normalize_into(x, out)
    np.testing.assert_allclose(out, [[0.6, 0.8]], rtol=1e-6)
