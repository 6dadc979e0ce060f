"""The way with the smallest error of the output is taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeonnx.quantize.decoder.activations import Activations
from edgeonnx.quantize.decoder.blocks import round_activations
from edgeonnx.quantize.decoder.choose import choose
from edgeonnx.quantize.decoder.grids import with_means
from edgeonnx.quantize.decoder.recipe import WEIGHT_RECIPES, WeightFormat
from tests.unit.quantize.decoder.graphs import error, on_grid

EIGHT, FOUR = WeightFormat(bits=8, block_size=32), WeightFormat(bits=4, block_size=32)
RECIPE = WEIGHT_RECIPES[8][0]


def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)


def seen(*, outlier: float) -> Activations:
    rows = np.random.default_rng(1).standard_normal((300, 64)).astype(np.float32)
    rows[:, 5] *= outlier
    return Activations(largest=np.abs(rows).max(axis=0), rows=rows)


def product(choice_weight: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.asarray(round_activations(rows, 32) @ choice_weight.T)


def test_a_channel_that_stands_out_is_smoothed_and_the_error_falls() -> None:
    matrix, found = weight(), seen(outlier=60)
    expected = found.rows @ matrix.T
    errors = []
    for may_smooth in (True, False):
        choice = choose([matrix], found, EIGHT, RECIPE, may_smooth=may_smooth)
        assert (choice.smoothing is not None) == may_smooth
        rows = found.rows if choice.smoothing is None else found.rows / choice.smoothing
        errors.append(error(product(choice.matrices[0].floats(), rows), expected))
    assert errors[0] < errors[1] / 4


def test_without_calibration_nothing_is_smoothed_or_fed_back() -> None:
    choice = choose([weight()], None, FOUR, RECIPE, may_smooth=True)
    assert choice.smoothing is None
    np.testing.assert_allclose(choice.matrices[0].floats(), weight(), atol=0.3)


def test_a_matrix_on_a_grid_stays_on_it_at_four_bits() -> None:
    matrix, found = on_grid(weight()), seen(outlier=1)
    choice = choose([matrix, matrix[:9]], found, FOUR, RECIPE, may_smooth=True)
    assert choice.means
    assert choice.smoothing is None
    assert [blocks.values.shape for blocks in choice.matrices] == [(48, 3, 32), (9, 3, 32)]
    assert error(product(choice.matrices[0].floats(), with_means(found.rows)), found.rows @ matrix.T) < 2e-4
    rounded = choose([matrix], found, FOUR, replace(RECIPE, exact=False), may_smooth=True)
    assert not rounded.means


def test_one_matrix_without_a_grid_is_enough_for_rounding_all_that_share_the_input() -> None:
    choice = choose([on_grid(weight()), weight()], None, FOUR, RECIPE, may_smooth=False)
    assert not choice.means


@pytest.mark.parametrize("size", [16, 32])
def test_a_matrix_with_whole_zero_points_gets_empty_columns_beside_one_that_needs_them(size: int) -> None:
    whole = np.random.default_rng(4).integers(-8, 8, (10, 64)).astype(np.float32)
    whole[:, ::32], whole[:, 1::32] = -8, 7
    choice = choose([on_grid(weight()), whole], None, WeightFormat(bits=4, block_size=size), RECIPE, may_smooth=False)
    assert choice.means
    assert [blocks.inputs for blocks in choice.matrices] == [66, 66]
    rows = seen(outlier=1).rows
    np.testing.assert_allclose(with_means(rows) @ choice.matrices[1].floats().T, rows @ whole.T, atol=1e-3)
