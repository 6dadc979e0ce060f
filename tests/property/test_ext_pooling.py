"""Pooling and normalization agree with the same formula in float64, in both twins."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from edgeonnx_ext.reference import pooling as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.unit.ext.conftest import compiled

VALUES = st.floats(-1e4, 1e4, width=32)


@pytest.fixture(scope="module", params=["compiled", "reference"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_pooling") if request.param == "compiled" else reference


@settings(max_examples=100, deadline=None)
@given(data=st.data(), shape=hnp.array_shapes(min_dims=3, max_dims=3, max_side=6))
def test_the_masked_mean_is_that_of_float64(
    kernels: ModuleType, data: st.DataObject, shape: tuple[int, int, int]
) -> None:
    hidden = data.draw(hnp.arrays(np.float32, shape, elements=VALUES))
    mask = data.draw(hnp.arrays(np.int64, shape[:2], elements=st.integers(0, 1)))
    out = np.empty((shape[0], shape[2]), dtype=np.float32)
    kernels.masked_mean_into(hidden, mask, out)
    weights = mask[:, :, None].astype(np.float64)
    expected = (hidden * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(x=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=VALUES))
def test_normalization_is_that_of_float64(kernels: ModuleType, x: np.ndarray) -> None:
    out = np.empty_like(x)
    kernels.l2_normalize_into(x, out)
    wide = x.astype(np.float64)
    expected = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    kernels.l2_normalize_into(x, x)
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize(
    "kernel",
    ["masked_mean_sqrt_into", "masked_weighted_mean_into", "masked_max_into", "first_token_into", "last_token_into"],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), shape=hnp.array_shapes(min_dims=3, max_dims=3, max_side=9))
def test_compiled_and_plain_agree_on_any_mask(kernel: str, data: st.DataObject, shape: tuple[int, int, int]) -> None:
    hidden = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(width=32)))
    mask = data.draw(hnp.arrays(np.int64, shape[:2], elements=st.integers(0, 1)))
    outs = [np.empty((shape[0], shape[2]), dtype=np.float32) for _ in range(2)]
    getattr(compiled("_pooling"), kernel)(hidden, mask, outs[0])
    getattr(reference, kernel)(hidden, mask, outs[1])
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-6)
