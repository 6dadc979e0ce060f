"""Rounding with feedback: nearer on the activations it is meant for, and plain rounding where nothing can be gained."""

from __future__ import annotations

import numpy as np
import pytest

from edgeonnx.quantize.decoder.blocks import round_asymmetric
from edgeonnx.quantize.decoder.feedback import CHUNK, round_with_feedback, spreading


def weight(outputs: int = 30, inputs: int = 80) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32)


def rows(count: int = 400, inputs: int = 80) -> np.ndarray:
    """Channels that go together, as those of a model do."""
    rng = np.random.default_rng(1)
    return np.asarray(rng.standard_normal((count, 12)) @ rng.standard_normal((12, inputs)), dtype=np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_output_changes_much_less_than_by_plain_rounding(bits: int) -> None:
    matrix, seen = weight(), rows()
    fed = round_with_feedback(matrix, spreading(seen), 32, bits)
    plain = round_asymmetric(matrix, 32, bits)
    errors = [np.square(seen @ (item.floats() - matrix).T).mean() for item in (fed, plain)]
    assert errors[0] < errors[1] / 3


def test_without_anything_in_common_it_is_plain_rounding() -> None:
    matrix = weight()
    fed = round_with_feedback(matrix, np.eye(80, dtype=np.float32), 32, 8)
    plain = round_asymmetric(matrix, 32, 8)
    np.testing.assert_array_equal(fed.values, plain.values)
    np.testing.assert_array_equal(fed.scales, plain.scales)


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    seen = rows()
    seen[:, 7] = 0
    fed = round_with_feedback(weight(), spreading(seen), 16, 8)
    assert np.isfinite(fed.floats()).all()
    assert np.abs(fed.floats()[:, 7] - weight()[:, 7]).max() < 0.05
    assert np.isfinite(spreading(np.zeros((3, 8), np.float32))).all()


def test_outputs_do_not_depend_on_each_other() -> None:
    matrix = weight(CHUNK + 3, 32)
    factor = spreading(rows(inputs=32))
    whole, part = round_with_feedback(matrix, factor, 32, 4), round_with_feedback(matrix[-5:], factor, 32, 4)
    np.testing.assert_array_equal(whole.values[-5:], part.values)


def test_a_weight_that_stands_out_is_cut_where_that_pays_for_the_others() -> None:
    matrix = np.random.default_rng(3).standard_t(3, (64, 32)).astype(np.float32)
    found = round_with_feedback(matrix, np.eye(32, dtype=np.float32), 32, 4)
    plain = round_asymmetric(matrix, 32, 4)
    errors = [np.square(item.floats() - matrix).sum(axis=1) for item in (found, plain)]
    assert (errors[0] <= errors[1] * 1.0001).all()
    assert errors[0].sum() < 0.98 * errors[1].sum()
    whole = found.scales == plain.scales
    assert whole.any()
    assert not whole.all()
