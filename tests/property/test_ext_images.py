"""Resized images are Pillow's, shapes are transformers', and no table reads beyond its image."""

from __future__ import annotations

import importlib
import json
from types import ModuleType

import numpy as np
import pytest
from edgeonnx_ext import _resampling as resampling
from edgeonnx_ext.images import (
    ImagePreprocessing,
    PreprocessorDataError,
    UnknownPreprocessorError,
    resize_order_of_pillow,
)
from edgeonnx_ext.reference import images as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.ext.conftest import compiled

SIDES = st.one_of(st.integers(1, 8), st.integers(1, 90))
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(params=["compiled", "reference"], scope="module")
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_images") if request.param == "compiled" else reference


def image_of(seed: int, height: int, width: int) -> np.ndarray:
    """Return noise, or noise of black and white only, which drives sums out of [0, 255]."""
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(image < 128, 0, 255).astype(np.uint8) if seed % 2 else image


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS, source=st.tuples(SIDES, SIDES), size=st.tuples(SIDES, SIDES), resample=st.sampled_from([0, 2, 3]))
def test_resizing_is_that_of_pillow(kernels, seed: int, source, size, resample: int) -> None:
    pil = pytest.importorskip("PIL.Image")
    order = resize_order_of_pillow(importlib.import_module("PIL").__version__)
    image = image_of(seed, *source)
    out = np.empty((3, *size), dtype=np.float32)
    kernels.preprocess_into(image, out, ImagePreprocessing(size=size, resample=resample, resize_order=order))
    expected = np.asarray(pil.fromarray(image).resize(size[::-1], resample))
    np.testing.assert_array_equal(out.transpose(1, 2, 0), expected)


@settings(max_examples=150, deadline=None)
@given(
    seed=SEEDS,
    source=st.tuples(SIDES, SIDES),
    shortest_edge=st.integers(1, 60),
    crop=st.none() | st.tuples(SIDES, SIDES),
    resample=st.sampled_from([0, 2, 3]),
    order=st.sampled_from(["horizontal_first", "tall_vertical_first", "larger_shrink_first"]),
)
def test_the_compiled_kernel_is_its_twin(seed: int, source, shortest_edge: int, crop, resample: int, order) -> None:
    preprocessing = ImagePreprocessing(
        shortest_edge=shortest_edge, crop=crop, resample=resample, resize_order=order, rescale_factor=1 / 255
    )
    image = image_of(seed, *source)
    shape = preprocessing.output_shape(*source)
    found, expected = np.full(shape, np.nan, dtype=np.float32), np.full(shape, -1, dtype=np.float32)
    compiled("_images").preprocess_into(image, found, preprocessing)
    reference.preprocess_into(image, expected, preprocessing)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(1, 9000),
    resized=st.integers(1, 3000),
    crop=st.none() | st.integers(1, 3000),
    resample=st.sampled_from([0, 2, 3]),
)
def test_tables_stay_inside_the_image_and_their_sums_in_int32(size: int, resized: int, crop, resample: int) -> None:
    axis = resampling.make_axis.__wrapped__(size, resized, crop, resample)
    count = len(axis.first)
    assert axis.length == (crop or resized)
    assert 0 <= axis.before <= axis.length - count
    assert len(axis.weights) == count
    assert axis.first[0] >= 0
    assert (np.diff(axis.first) >= 0).all()
    assert axis.first[-1] + axis.weights.shape[1] <= size
    assert np.abs(axis.weights.astype(np.int64)).sum(axis=1).max() * 255 + 2**21 < 2**31


@settings(max_examples=300, deadline=None)
@given(
    height=st.integers(1, 3000), width=st.integers(1, 3000), shortest=st.integers(1, 500), longest=st.integers(1, 900)
)
def test_shapes_are_those_of_transformers(height: int, width: int, shortest: int, longest: int) -> None:
    transforms = pytest.importorskip("transformers.image_transforms")
    plain = transforms.get_resize_output_image_size(
        np.empty((height, width, 3), dtype=np.bool_),
        shortest,
        default_to_square=False,
        input_data_format="channels_last",
    )
    bounded = transforms.get_size_with_aspect_ratio((height, width), shortest, longest)
    for given_edges, expected in (((shortest, None), plain), ((shortest, longest), bounded)):
        preprocessing = ImagePreprocessing(shortest_edge=given_edges[0], longest_edge=given_edges[1])
        if 1 <= min(expected) <= max(expected) <= 2**20:
            assert preprocessing.resized_shape(height, width) == expected
        else:
            with pytest.raises(ValueError, match="after resizing"):
                preprocessing.resized_shape(height, width)


SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 400) | st.floats() | st.sampled_from(["bilinear", "channels_first"])
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=4)
    | st.dictionaries(st.sampled_from(["height", "width", "shortest_edge", "longest_edge"]), SCALARS, max_size=3)
)
KEYS = st.sampled_from(
    [
        *("size", "crop_size", "crop_pct", "resample", "default_to_square", "image_mean", "image_std"),
        *("rescale_factor", "do_resize", "do_center_crop", "do_rescale", "do_normalize", "data_format", "do_pad"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    fields=st.dictionaries(KEYS, VALUES, max_size=5),
    name=st.sampled_from(["ViTImageProcessor", "CLIPImageProcessor", "ConvNextImageProcessor", None]),
)
def test_a_document_is_read_or_refused(fields: dict, name: str | None) -> None:
    data = json.dumps({"image_processor_type": name, **fields}).encode()
    try:
        preprocessing = ImagePreprocessing.from_preprocessor_config(data)
    except (UnknownPreprocessorError, PreprocessorDataError):
        return
    assert preprocessing.values.shape == (3, 256)
    assert len(preprocessing.output_shape(30, 40)) == 3


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789.eE-size', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises((UnknownPreprocessorError, PreprocessorDataError)):
        ImagePreprocessing.from_preprocessor_config(data)
