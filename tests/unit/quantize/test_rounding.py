"""Row-wise int8 in NumPy: small cases whose numbers one can do by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edgeonnx.quantize.rounding import (
    ACTIVATION_MAX,
    WEIGHT_LIMITS,
    floor_of,
    quantize_table,
    quantize_weight,
    round_bounded_rows,
    round_rows,
)


@pytest.mark.parametrize(("bits", "limit"), [(8, 127), (7, 64)])
def test_each_output_channel_has_its_own_scale(bits: int, limit: int) -> None:
    assert WEIGHT_LIMITS[bits] == limit
    weight = np.array([[limit, -1.0], [-2, 0.5], [0.4, 0]], np.float32)
    rounded, scale = quantize_weight(weight, limit)
    np.testing.assert_array_equal(scale, np.array([1, 1 / limit], np.float32))
    np.testing.assert_array_equal(rounded, [[limit, -limit], [-2, round(limit / 2)], [0, 0]])


def test_two_products_of_seven_bit_weights_fit_into_sixteen_bits() -> None:
    assert 2 * ACTIVATION_MAX * WEIGHT_LIMITS[7] <= np.iinfo(np.int16).max
    assert 2 * ACTIVATION_MAX * (WEIGHT_LIMITS[7] + 1) > np.iinfo(np.int16).max


def test_zeros_stay_zeros_and_nothing_is_divided_by_zero() -> None:
    zeros = np.zeros((3, 4), np.float32)
    with np.errstate(all="raise"):
        rounded, scale = quantize_weight(zeros, 127)
        entries, scales = quantize_table(zeros)
        rows = round_rows(zeros)
        bounded = [round_bounded_rows(zeros, bound, point) for bound, point in ((0.0, 0), (-0.1701, 16))]
    np.testing.assert_array_equal(scale, np.ones(4))
    np.testing.assert_array_equal(scales, np.ones((3, 1)))
    for found in (rounded, entries, rows, *bounded):
        np.testing.assert_array_equal(found, 0)


def test_a_zero_channel_leaves_its_neighbours_alone() -> None:
    weight = np.array([[0, 3.0], [0, -1.5]], np.float32)
    rounded, scale = quantize_weight(weight, 127)
    np.testing.assert_array_equal(rounded, [[0, 127], [0, -64]])
    np.testing.assert_array_equal(scale, np.array([1, 3 / 127], np.float32))


def test_a_table_has_a_scale_per_entry_and_stays_contiguous() -> None:
    rounded, scale = quantize_table(np.array([[127, -2, 0.4], [0, 0, 0], [1, 0, -1]], np.float32))
    np.testing.assert_array_equal(rounded, [[127, -2, 0], [0, 0, 0], [127, 0, -127]])
    np.testing.assert_array_equal(scale, np.array([[1], [1], [1 / 127]], np.float32))
    assert rounded.flags.c_contiguous


def test_rows_are_rounded_to_steps_of_their_largest_magnitude() -> None:
    rows = np.array([[-127, 1.4, 0.6], [12.7, 0.04, 0.06]], np.float32)
    np.testing.assert_allclose(round_rows(rows), [[-127, 1, 1], [12.7, 0, 0.1]], rtol=1e-6)


def test_bounded_rows_use_all_steps_above_the_zero_point() -> None:
    rows = np.array([[235, 1.4, -0.1], [0, 0.1, -0.2]], np.float32)
    # The second row's scale is the floor: 20 steps reach down to -0.2.
    assert floor_of(-0.2, 20) == np.float32(0.01)
    np.testing.assert_allclose(round_bounded_rows(rows, -0.2, 20), [[235, 1, 0], [0, 0.1, -0.2]], rtol=1e-5)


def test_the_smallest_scale_is_never_zero() -> None:
    assert floor_of(0.0, 0) == floor_of(0.0, 16) == np.float32(1e-12)
    assert floor_of(-0.17, 0) == np.float32(0.17)
