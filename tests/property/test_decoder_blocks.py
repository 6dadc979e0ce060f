"""Weights in blocks: whatever the matrix, packing loses nothing, and rounding moves no weight by more than a step."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.quantize.decoder.blocks import Blocks, round_asymmetric, round_symmetric
from edgeonnx.quantize.decoder.grids import GRID_SIZE, eight_bits, find_grid, four_bits

SIZES = st.sampled_from([16, 32, 64])
BITS = st.sampled_from([4, 8])


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.integers(1, 6)), draw(st.integers(1, 140))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    scale = 10.0 ** draw(st.integers(-6, 4))
    weight = rng.standard_normal(shape) * scale + draw(st.sampled_from([0.0, scale, -3 * scale]))
    weight[:, draw(st.integers(0, shape[1])) :] = 0
    return np.asarray(weight, dtype=np.float32)


def halves(packed: np.ndarray) -> np.ndarray:
    """The numbers of 4 bits in bytes, the low half first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


@settings(max_examples=60, deadline=None)
@given(weight=matrices(), size=SIZES, bits=BITS)
def test_packing_loses_nothing(weight: np.ndarray, size: int, bits: int) -> None:
    blocks = round_asymmetric(weight, size, bits)
    values, zero_points = blocks.packed_values(), blocks.packed_zero_points()
    assert zero_points is not None
    assert blocks.zero_points is not None
    if bits == 4:
        values, zero_points = halves(values), halves(zero_points)[:, : blocks.zero_points.shape[1]]
    np.testing.assert_array_equal(values, blocks.values)
    np.testing.assert_array_equal(zero_points, blocks.zero_points)
    assert blocks.values.max() < 1 << bits


@settings(max_examples=60, deadline=None)
@given(weight=matrices(), size=SIZES, bits=BITS)
def test_no_weight_moves_by_more_than_a_step(weight: np.ndarray, size: int, bits: int) -> None:
    for blocks in (round_asymmetric(weight, size, bits), round_symmetric(weight, size, bits)):
        moved = np.abs(blocks.floats() - weight)
        step = np.repeat(blocks.scales, size, axis=1)[:, : weight.shape[1]]
        assert (moved <= step * 1.001 + np.abs(weight) * 1e-6).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), size=st.sampled_from([16, 32]), shift=st.floats(-4, 19))
def test_a_grid_is_kept_wherever_zero_lies(seed: int, size: int, shift: float) -> None:
    """Also where all weights of a block have one sign."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 16, (3, 2 * GRID_SIZE))
    levels[:, ::GRID_SIZE], levels[:, 1::GRID_SIZE] = 0, 15
    weight = np.asarray((levels - np.float32(shift)) * np.float32(0.01), dtype=np.float32)
    grid = find_grid(weight)
    assert grid is not None
    blocks, offsets = four_bits(grid, size)
    above = 0 if offsets is None else np.repeat(offsets, GRID_SIZE, axis=1)
    np.testing.assert_allclose(blocks.floats() + above, weight, atol=1e-4)
    np.testing.assert_allclose(eight_bits(grid, size).floats(), weight, atol=0.0006)


def test_blocks_keep_what_they_are_given() -> None:
    values = np.arange(32, dtype=np.uint8).reshape(1, 1, 32)
    one = np.ones((1, 1), np.float32)
    blocks = Blocks(bits=8, inputs=30, values=values, scales=one, zero_points=None)
    np.testing.assert_array_equal(blocks.floats(), np.arange(30, dtype=np.float32)[None] - 128)
