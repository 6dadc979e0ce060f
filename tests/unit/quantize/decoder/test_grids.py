"""Weights that lie on a grid already stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

from edgeonnx.quantize.decoder.blocks import round_asymmetric
from edgeonnx.quantize.decoder.grids import (
    eight_bits,
    find_grid,
    find_multiples,
    four_bits,
    with_means,
    with_offsets,
)
from tests.unit.quantize.decoder.graphs import on_grid


def matrix(outputs: int = 40, inputs: int = 96, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)


def test_a_grid_is_found_and_gives_the_weights_back() -> None:
    weight = on_grid(matrix())
    grid = find_grid(weight)
    assert grid is not None
    restored = grid.levels * grid.steps[..., None] + grid.minima[..., None]
    np.testing.assert_allclose(restored.reshape(weight.shape), weight, atol=1e-6)


def test_a_block_that_uses_few_of_its_levels_has_a_grid_too() -> None:
    weight = on_grid(matrix())
    weight[0, :32] = np.float32(0.25)  # all equal
    weight[1, :32] = np.where(np.arange(32) % 3, 1.0, -0.5)  # two levels
    grid = find_grid(weight)
    assert grid is not None
    restored = grid.levels * grid.steps[..., None] + grid.minima[..., None]
    np.testing.assert_allclose(restored.reshape(weight.shape), weight, atol=1e-6)


def test_float_weights_have_no_grid_and_one_block_without_one_is_enough() -> None:
    assert find_grid(matrix()) is None
    weight = on_grid(matrix(600))
    weight[577, 40] += 0.01  # not among the outputs that are looked at first
    assert find_grid(weight) is None
    assert find_grid(on_grid(matrix())[:, :80]) is None  # blocks are of 32


@pytest.mark.parametrize("size", [16, 32])
def test_eight_bits_are_many_times_nearer_than_rounding_anew(size: int) -> None:
    weight = on_grid(matrix(400))
    grid = find_grid(weight)
    assert grid is not None
    exact = np.abs(eight_bits(grid, size).floats() - weight)
    steps = np.repeat(grid.steps, 32, axis=1)
    assert (exact / steps).max() < 0.03
    anew = np.abs(round_asymmetric(weight, 32, 8).floats() - weight)
    assert np.square(exact).mean() < np.square(anew).mean() / 5


@pytest.mark.parametrize("size", [16, 32])
def test_four_bits_with_offsets_are_the_weights(size: int) -> None:
    weight = on_grid(matrix())
    grid = find_grid(weight)
    assert grid is not None
    blocks, offsets = four_bits(grid, size)
    assert offsets is not None
    np.testing.assert_allclose(blocks.floats() + np.repeat(offsets, 32, axis=1), weight, atol=1e-6)
    rows = matrix(8, 96, seed=2) + 0.5
    product = with_means(rows) @ with_offsets(blocks, offsets).floats().T
    anew = rows @ round_asymmetric(weight, 32, 4).floats().T
    expected = rows @ weight.T
    assert np.square(product - expected).mean() < np.square(anew - expected).mean() / 50


def test_whole_zero_points_need_no_offsets() -> None:
    """Q4_0: multiples of a scale from -8 to 7."""
    whole = np.random.default_rng(4).integers(-8, 8, (40, 64)).astype(np.float32)
    whole[:, ::32], whole[:, 1::32] = -8, 7
    grid = find_grid(whole * np.float32(0.03))
    assert grid is not None
    blocks, offsets = four_bits(grid, 32)
    assert offsets is None
    np.testing.assert_allclose(blocks.floats(), whole * 0.03, atol=1e-6)


def test_multiples_of_a_scale_are_found_and_kept() -> None:
    """Q8_0."""
    whole = np.random.default_rng(5).integers(-127, 128, (40, 64)).astype(np.float32)
    whole[:, ::32] = -127
    found = find_multiples(whole * np.float32(0.01), 16)
    assert found is not None
    assert found.values.shape == (40, 4, 16)
    np.testing.assert_allclose(found.floats(), whole * 0.01, atol=1e-6)
    assert find_multiples(matrix(), 32) is None
