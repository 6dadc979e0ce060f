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


class TestEarlierScales:
    """127 steps of 0.01 hold 1.27; a scale is kept up to one step more, and down to nine tenths of the steps."""

    @pytest.mark.parametrize(
        ("largest", "kept"), [(1.27, True), (1.2799, True), (1.2801, False), (1.15, True), (1.14, False), (0.0, False)]
    )
    def test_it_is_kept_while_it_fits(self, largest: float, kept: bool) -> None:
        weight = np.array([[largest], [-0.5]] if largest else [[0], [0]], np.float32)
        earlier = np.array([0.01], np.float32)
        rounded, scale = quantize_weight(weight, 127, earlier)
        _, own = quantize_weight(weight, 127)
        np.testing.assert_array_equal(scale, earlier if kept else own)
        assert rounded[0, 0] == (0 if not largest else min(127, round(largest / 0.01)) if kept else 127)

    def test_each_channel_is_judged_by_itself(self) -> None:
        weight = np.array([[1.27, 1.4, 1.26]], np.float32)
        _, scale = quantize_weight(weight, 127, np.full(3, 0.01, np.float32))
        np.testing.assert_allclose(scale, [0.01, 1.4 / 127, 0.01], rtol=1e-6)

    def test_what_is_cut_is_cut_by_a_step_at_most(self) -> None:
        weight = np.linspace(-1.28, 1.28, 101, dtype=np.float32)[:, None]
        rounded, scale = quantize_weight(weight, 127, np.array([0.01], np.float32))
        assert (scale[0], np.abs(rounded).max()) == (np.float32(0.01), 127)
        assert np.abs(rounded * scale - weight).max() <= 0.01 * (1 + 1e-5)

    @pytest.mark.parametrize("broken", [0.0, -0.01, np.nan, np.inf])
    def test_what_is_no_scale_is_not_kept(self, broken: float) -> None:
        weight = np.array([[1.27], [0.3]], np.float32)
        with np.errstate(all="raise"):
            _, scale = quantize_weight(weight, 127, np.array([broken], np.float32))
        np.testing.assert_array_equal(scale, quantize_weight(weight, 127)[1])

    def test_a_table_keeps_them_by_entry(self) -> None:
        table = np.array([[1.27, 0.5], [2.0, 0.5]], np.float32)
        rounded, scale = quantize_table(table, np.array([[0.01], [0.01]], np.float32))
        np.testing.assert_allclose(scale, [[0.01], [2 / 127]], rtol=1e-6)
        np.testing.assert_array_equal(rounded, [[127, 50], [127, 32]])
