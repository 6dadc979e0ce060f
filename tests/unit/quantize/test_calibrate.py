"""Calibration sees every real token once, and no padding."""

from __future__ import annotations

import numpy as np

from edgeonnx.bundle.golden import MASK_INPUT
from edgeonnx.quantize.calibrate import SAMPLE_ROWS, calibrate
from tests.support.graphs import HIDDEN, WIDE, tensor, tiny_batches, tiny_graph


def test_rows_are_those_of_the_real_tokens() -> None:
    graph, batches = tiny_graph(), tiny_batches()
    seen = calibrate(graph, batches)
    (first,) = (item for name, item in seen.items() if "query" in name)
    ids = np.concatenate([batch["input_ids"][batch[MASK_INPUT] != 0] for batch in batches])
    expected = tensor(graph, "words")[ids]
    np.testing.assert_array_equal(first.rows, expected)
    np.testing.assert_array_equal(first.largest, np.abs(expected).max(axis=0))
    assert sorted(len(item.largest) for item in seen.values()) == [HIDDEN, HIDDEN, HIDDEN, WIDE]


def test_padding_is_not_looked_at() -> None:
    batch = tiny_batches(((3, 8),))[0]
    padded = {name: np.pad(value, ((0, 0), (0, 5))) for name, value in batch.items()}
    one, other = calibrate(tiny_graph(), [batch]), calibrate(tiny_graph(), [padded])
    for name, item in one.items():
        assert item.rows.shape == other[name].rows.shape
        np.testing.assert_allclose(item.largest, other[name].largest, rtol=1e-5)


def test_many_rows_are_sampled_but_the_maximum_is_of_all() -> None:
    graph, batches = tiny_graph(), tiny_batches(((100, 32),))
    (first,) = (item for name, item in calibrate(graph, batches).items() if "query" in name)
    real = batches[0]["input_ids"][batches[0][MASK_INPUT] != 0]
    assert len(real) > SAMPLE_ROWS == len(first.rows)
    np.testing.assert_array_equal(first.largest, np.abs(tensor(graph, "words")[real]).max(axis=0))
