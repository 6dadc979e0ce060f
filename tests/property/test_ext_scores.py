"""The compiled scores agree with their plain twins on any numbers."""

from __future__ import annotations

import numpy as np
import pytest
from edgeonnx_ext.reference import scores as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.unit.ext.conftest import compiled

# More columns than two blocks of 64, in which the kernels take the maxima.
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 140))


@pytest.mark.parametrize("kernel", ["softmax_into", "log_softmax_into", "sigmoid_into"])
@settings(max_examples=100, deadline=None)
@given(x=hnp.arrays(np.float32, SHAPES, elements=st.floats(width=32)))
def test_softmax_and_sigmoid(kernel: str, x: np.ndarray) -> None:
    found, expected = np.empty_like(x), np.empty_like(x)
    getattr(compiled("_scores"), kernel)(x, found)
    getattr(reference, kernel)(x, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-37)


@settings(max_examples=150, deadline=None)
@given(
    x=hnp.arrays(np.float32, SHAPES, elements=st.floats(allow_nan=False, width=32) | st.integers(-2, 2)),
    data=st.data(),
)
def test_top_k_and_argmax(x: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, x.shape[1]))
    results = []
    for kernels in (compiled("_scores"), reference):
        values, indices = np.empty((len(x), k), dtype=np.float32), np.empty((len(x), k), dtype=np.int64)
        first = np.empty(len(x), dtype=np.int64)
        kernels.top_k_into(x, k, values, indices)
        kernels.argmax_into(x, first)
        assert first.tolist() == indices[:, 0].tolist()
        results.append((values.tolist(), indices.tolist()))
    assert results[0] == results[1]
