from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from edgeonnx_ext.reference import pooling as reference

from tests.unit.ext.conftest import compiled

KERNELS = [
    "masked_mean_into",
    "masked_mean_sqrt_into",
    "masked_weighted_mean_into",
    "masked_max_into",
    "first_token_into",
    "last_token_into",
]


@pytest.fixture(params=["compiled", "reference"])
def pooling(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_pooling") if request.param == "compiled" else reference


def test_the_mean_is_over_unmasked_tokens(pooling: ModuleType) -> None:
    hidden = np.array([[[1, 2], [3, 6], [100, 100]], [[5, 5], [7, 7], [9, 9]]], dtype=np.float32)
    mask = np.array([[1, 1, 0], [0, 0, 0]], dtype=np.int64)
    out = np.full((2, 2), -1, dtype=np.float32)
    pooling.masked_mean_into(hidden, mask, out)
    assert out.tolist() == [[2, 4], [0, 0]]


HIDDEN = np.array([[[1, 2], [3, 6], [5, 4], [100, -100]], [[50, 50], [7, 1], [9, 3], [11, 5]]], dtype=np.float32)
MASK = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], dtype=np.int64)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("masked_mean_into", [[3, 4], [9, 3]]),
        ("masked_mean_sqrt_into", [[9 / 3**0.5, 12 / 3**0.5], [27 / 3**0.5, 9 / 3**0.5]]),
        ("masked_weighted_mean_into", [[22 / 6, 26 / 6], [58 / 6, 22 / 6]]),
        ("masked_max_into", [[5, 6], [11, 5]]),
        ("first_token_into", [[1, 2], [7, 1]]),
        ("last_token_into", [[5, 4], [11, 5]]),
    ],
)
def test_each_pooling_on_numbers_that_one_can_check(
    pooling: ModuleType, kernel: str, expected: list[list[float]]
) -> None:
    out = np.full((2, 2), -1, dtype=np.float32)
    getattr(pooling, kernel)(HIDDEN, MASK, out)
    np.testing.assert_allclose(out, np.array(expected, dtype=np.float32), rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("masked_mean_into", [0, 0]),
        ("masked_mean_sqrt_into", [0, 0]),
        ("masked_weighted_mean_into", [0, 0]),
        ("masked_max_into", [-np.inf, -np.inf]),
        ("first_token_into", [1, 2]),
        ("last_token_into", [0, 0]),
    ],
)
def test_a_row_without_tokens(pooling: ModuleType, kernel: str, expected: list[float]) -> None:
    out = np.full((1, 2), -1, dtype=np.float32)
    getattr(pooling, kernel)(HIDDEN[:1], np.zeros((1, 4), dtype=np.int64), out)
    assert out.tolist() == [expected]


MODES = {
    "masked_mean_into": "mean",
    "masked_mean_sqrt_into": "mean_sqrt_len_tokens",
    "masked_weighted_mean_into": "weightedmean",
    "masked_max_into": "max",
    "first_token_into": "cls",
    "last_token_into": "lasttoken",
}


@pytest.mark.slow
def test_they_agree_with_sentence_transformers_on_both_padding_sides(pooling: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    modules = pytest.importorskip("sentence_transformers.models")
    generator = np.random.default_rng(2)
    hidden = generator.standard_normal((9, 23, 64)).astype(np.float32)
    lengths = generator.integers(1, 24, size=(9, 1))
    right = (np.arange(23) < lengths).astype(np.int64)
    for mask in (right, right[:, ::-1].copy()):
        features = {"token_embeddings": torch.from_numpy(hidden), "attention_mask": torch.from_numpy(mask)}
        for kernel, mode in MODES.items():
            out = np.empty((9, 64), dtype=np.float32)
            getattr(pooling, kernel)(hidden, mask, out)
            expected = modules.Pooling(64, pooling_mode=mode)(dict(features))["sentence_embedding"]
            np.testing.assert_allclose(out, expected.numpy(), rtol=0, atol=2e-6, err_msg=mode)


@pytest.mark.parametrize("tokens", range(10))
def test_every_number_of_tokens_is_summed_once(pooling: ModuleType, tokens: int) -> None:
    """The compiled loop takes four tokens at a time, and what is left."""
    hidden = (2.0 ** np.arange(tokens, dtype=np.float32)).reshape(1, tokens, 1)
    out = np.empty((1, 1), dtype=np.float32)
    pooling.masked_mean_into(hidden, np.ones((1, tokens), dtype=np.int64), out)
    assert out.item() == pytest.approx((2**tokens - 1) / max(tokens, 1e-9))


@pytest.mark.parametrize("dim", range(1, 20))
def test_every_column_counts_in_the_norm(pooling: ModuleType, dim: int) -> None:
    x = np.ones((1, dim), dtype=np.float32)
    pooling.l2_normalize_into(x, x)
    np.testing.assert_allclose(x, np.full((1, dim), dim**-0.5), rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_stands_in_the_padding_is_never_read(pooling: ModuleType, kernel: str) -> None:
    hidden = HIDDEN.copy()
    hidden[MASK == 0] = np.nan
    out, expected = np.empty((2, 2), dtype=np.float32), np.empty((2, 2), dtype=np.float32)
    getattr(pooling, kernel)(hidden, MASK, out)
    getattr(pooling, kernel)(HIDDEN, MASK, expected)
    assert out.tolist() == expected.tolist()


def test_a_nan_is_the_maximum_wherever_it_stands(pooling: ModuleType) -> None:
    hidden = np.array([[[np.nan], [1]], [[1], [np.nan]], [[-np.inf], [-np.inf]], [[np.inf], [1]]], dtype=np.float32)
    out = np.empty((4, 1), dtype=np.float32)
    pooling.masked_max_into(hidden, np.ones((4, 2), dtype=np.int64), out)
    np.testing.assert_array_equal(out, np.array([[np.nan], [np.nan], [-np.inf], [np.inf]], dtype=np.float32))


def test_it_agrees_with_torch(pooling: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(1)
    hidden = generator.standard_normal((7, 61, 384)).astype(np.float32)
    mask = (np.arange(61) < generator.integers(1, 62, size=(7, 1))).astype(np.int64)
    mean, unit = np.empty((7, 384), dtype=np.float32), np.empty((7, 384), dtype=np.float32)
    pooling.masked_mean_into(hidden, mask, mean)
    pooling.l2_normalize_into(mean, unit)
    weights = torch.from_numpy(mask).unsqueeze(-1).float()
    expected = (torch.from_numpy(hidden) * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    np.testing.assert_allclose(mean, expected.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(unit, torch.nn.functional.normalize(expected, dim=1).numpy(), rtol=0, atol=1e-6)


def test_nan_and_infinity_of_tokens_propagate_those_of_padding_do_not(pooling: ModuleType) -> None:
    hidden = np.array([[[1, np.nan], [1, 2]], [[np.inf, 1], [1, 2]], [[1, 1], [np.nan, np.inf]]], dtype=np.float32)
    mask = np.array([[1, 1], [1, 1], [1, 0]], dtype=np.int64)
    out = np.empty((3, 2), dtype=np.float32)
    pooling.masked_mean_into(hidden, mask, out)
    np.testing.assert_array_equal(out, np.array([[1, np.nan], [np.inf, 1.5], [1, 1]], dtype=np.float32))


def test_normalization_follows_the_formula_of_torch(pooling: ModuleType) -> None:
    x = np.array([[3, 4], [0, 0], [1e-20, 0], [np.nan, 1], [np.inf, 1], [-np.inf, np.inf]], dtype=np.float32)
    out = np.empty_like(x)
    pooling.l2_normalize_into(x, out)
    nan = np.nan
    expected = [[0.6, 0.8], [0, 0], [1e-8, 0], [nan, nan], [nan, 0], [nan, nan]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_large_values_do_not_overflow(pooling: ModuleType) -> None:
    x = np.array([[3e30, 4e30]], dtype=np.float32)
    pooling.l2_normalize_into(x, x)
    np.testing.assert_allclose(x, [[0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_arrays_are_fine(pooling: ModuleType, shape: tuple[int, int, int]) -> None:
    rows, tokens, dim = shape
    out = np.full((rows, dim), -1, dtype=np.float32)
    for kernel in KERNELS:
        getattr(pooling, kernel)(np.ones(shape, dtype=np.float32), np.ones((rows, tokens), dtype=np.int64), out)
        assert (out == (-np.inf if kernel == "masked_max_into" else 0)).all()
    pooling.l2_normalize_into(np.zeros_like(out), out)
    assert (out == 0).all()


def changed(name: str, value: object) -> dict[str, object]:
    arguments: dict[str, object] = {
        "hidden": np.ones((2, 3, 4), dtype=np.float32),
        "mask": np.ones((2, 3), dtype=np.int64),
        "out": np.full((2, 4), -1, dtype=np.float32),
    }
    return {**arguments, name: value}


@pytest.mark.parametrize("kernel", KERNELS)
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
    pooling: ModuleType, kernel: str, name: str, value: object, error: type[Exception], message: str
) -> None:
    arguments = changed(name, value)
    with pytest.raises(error, match=message):
        getattr(pooling, kernel)(**arguments)
    assert (arguments["out"] == -1).all()


def test_read_only_and_overlapping_outputs_are_refused(pooling: ModuleType) -> None:
    hidden = np.full((2, 2, 4), -1, dtype=np.float32)
    mask = np.ones((2, 2), dtype=np.int64)
    with pytest.raises(ValueError, match="out and hidden: expected buffers apart"):
        pooling.masked_mean_into(hidden, mask, hidden[0])
    out = np.zeros((2, 4), dtype=np.float32)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="out: expected a writable array"):
        pooling.masked_mean_into(hidden, mask, out)
    memory = np.full((3, 4), -1, dtype=np.float32)
    with pytest.raises(ValueError, match="out and x: expected buffers apart"):
        pooling.l2_normalize_into(memory[:2], memory[1:])
    with pytest.raises(ValueError, match="out: expected the shape of x"):
        pooling.l2_normalize_into(memory, memory[:2])
    assert (memory == -1).all()
    assert (hidden == -1).all()


def test_reading_from_a_read_only_array_is_fine(pooling: ModuleType) -> None:
    x = np.array([[3, 4]], dtype=np.float32)
    x.setflags(write=False)
    out = np.empty_like(x)
    pooling.l2_normalize_into(x, out)
    np.testing.assert_allclose(out, [[0.6, 0.8]], rtol=1e-6)
