"""The text of a float32 reads back as the same float32, is valid JSON, and is the shortest: that which NumPy writes."""

from __future__ import annotations

import json

import numpy as np
from edgeonnx_ext.reference import floats as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.unit.ext.conftest import compiled

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
ORDINARY = st.floats(-100, 100, width=32) | st.floats(-(2.0**-10), 2.0**-10, width=32)


@settings(max_examples=100, deadline=None)
@given(x=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=FINITE | ORDINARY))
def test_json(x: np.ndarray) -> None:
    texts = compiled("_floats").json_rows(x)
    assert texts == reference.json_rows(x)
    found = np.array([json.loads(text) for text in texts]).astype(np.float32)
    assert found.view(np.uint32).tolist() == x.view(np.uint32).tolist()
    assert all(isinstance(value, float) for text in texts for value in json.loads(text))


def test_json_of_many_numbers_of_every_size() -> None:
    generator = np.random.default_rng(6)
    sizes = 10.0 ** generator.uniform(-7, 9, size=(1, 10000))
    x = (sizes * generator.choice([-1, 1], size=sizes.shape)).astype(np.float32)
    assert compiled("_floats").json_rows(x) == reference.json_rows(x)


@settings(max_examples=100, deadline=None)
@given(x=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.floats(width=32)))
def test_base64(x: np.ndarray) -> None:
    assert compiled("_floats").base64_rows(x) == reference.base64_rows(x)
