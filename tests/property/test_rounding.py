"""The arithmetic of row-wise int8, over arrays that hypothesis chooses."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edgeonnx.quantize.rounding import (
    ACTIVATION_MAX,
    WEIGHT_LIMITS,
    floor_of,
    quantize_table,
    quantize_weight,
    round_bounded_rows,
    round_rows,
)

Float = np.ndarray
SLACK = 1 + 1e-4
"""Half a step, and what float32 loses in a division and a product of up to 255 steps."""

# Zero or of a size that activations and weights have: a scale that underflows is not what is tested here.
_NUMBERS = st.one_of(
    st.just(0.0), st.floats(2**-20, 2**20, width=32), st.floats(2**-20, 2**20, width=32).map(lambda x: -x)
)
_MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=_NUMBERS)
_LIMITS = st.sampled_from(sorted(WEIGHT_LIMITS.values()))


@settings(max_examples=100, deadline=None)
@given(weight=_MATRICES, limit=_LIMITS)
def test_a_weight_is_off_by_half_a_step_at_most(weight: Float, limit: int) -> None:
    rounded, scale = quantize_weight(weight, limit)
    assert (rounded.dtype, scale.dtype) == (np.int8, np.float32)
    assert (rounded.shape, scale.shape) == (weight.shape, weight.shape[1:])
    steps = rounded.astype(np.int64)
    assert np.abs(steps).max() <= limit
    assert (np.abs(steps).max(axis=0) == np.where(weight.any(axis=0), limit, 0)).all()  # the whole range is used
    assert (np.abs(steps * scale.astype(np.float64) - weight) <= scale / 2 * SLACK).all()
    np.testing.assert_array_equal(scale[~weight.any(axis=0)], 1)


@settings(max_examples=50, deadline=None)
@given(table=_MATRICES)
def test_an_entry_of_a_table_is_off_by_half_a_step_of_its_own(table: Float) -> None:
    rounded, scale = quantize_table(table)
    assert (rounded.dtype, scale.dtype) == (np.int8, np.float32)
    assert (rounded.shape, scale.shape) == (table.shape, (len(table), 1))
    assert (np.abs(rounded * scale.astype(np.float64) - table) <= scale / 2 * SLACK).all()
    assert not rounded[~table.any(axis=1)].any()


@settings(max_examples=100, deadline=None)
@given(rows=_MATRICES)
def test_a_row_is_off_by_half_a_step_at_most(rows: Float) -> None:
    found = round_rows(rows)
    assert found.dtype == np.float32
    half = np.abs(rows).max(axis=1, keepdims=True) / 127 / 2
    assert (np.abs(found.astype(np.float64) - rows) <= half * SLACK).all()
    np.testing.assert_array_equal(found[~rows.any(axis=1)], 0)


@settings(max_examples=100, deadline=None)
@given(rows=_MATRICES, bound=st.sampled_from([0.0, -0.1701, -3.0]), data=st.data())
def test_a_row_depends_on_no_other_row(rows: Float, bound: float, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(rows) - 1))
    alone = rows[index : index + 1]
    np.testing.assert_array_equal(round_rows(rows)[index], round_rows(alone)[0])
    point = 16 if bound else 0
    above = np.maximum(rows, np.float32(bound))
    together = round_bounded_rows(above, bound, point)[index]
    np.testing.assert_array_equal(together, round_bounded_rows(above[index : index + 1], bound, point)[0])


@settings(max_examples=100, deadline=None)
@given(rows=_MATRICES, bound=st.sampled_from([0.0, -0.1701, -3.0]), point=st.integers(1, 254))
def test_nothing_between_the_bound_and_the_largest_is_clipped(rows: Float, bound: float, point: int) -> None:
    zero_point = point if bound else 0
    rows = np.maximum(rows, np.float32(bound))
    found = round_bounded_rows(rows, bound, zero_point)
    assert found.dtype == np.float32
    largest = rows.max(axis=1, keepdims=True) / (ACTIVATION_MAX - zero_point)
    step = np.maximum(largest, floor_of(bound, zero_point))
    # A value that was clipped would be off by more than half a step.
    assert (np.abs(found.astype(np.float64) - rows) <= step / 2 * SLACK).all()
    np.testing.assert_array_equal(found[rows == 0], 0)
