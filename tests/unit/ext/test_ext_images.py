from __future__ import annotations

import importlib
import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import _preprocessor_config as config
from edgeonnx_ext import images as ext_images
from edgeonnx_ext.images import ImagePreprocessing
from edgeonnx_ext.reference import images as reference

from tests.unit.ext.conftest import compiled

SHAPES = [
    # source, resized
    ((480, 640), (224, 224)),
    ((640, 480), (88, 65)),  # shrunk by 7.3: horizontal pass first
    ((640, 97), (60, 97)),  # one axis only
    ((97, 640), (97, 60)),
    ((31, 17), (224, 224)),  # enlarged
    ((224, 224), (224, 224)),
    ((1, 1), (5, 7)),
    ((1, 50), (9, 3)),
    ((50, 1), (3, 9)),
    ((301, 3), (24, 24)),  # vertical pass first, in Pillow 12.2 and later
    ((300, 90), (60, 60)),  # vertical pass first, in Pillow 13
    ((7, 5), (1, 1)),
]


@pytest.fixture(params=["compiled", "reference"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return compiled("_images") if request.param == "compiled" else reference


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def gradient(height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [columns * 255 // width, rows * 255 // height, 128 + 127 * np.sin((rows + 2 * columns) / 9)]
    return np.ascontiguousarray(np.stack(waves, axis=-1).astype(np.uint8))


def letters(height: int, width: int) -> np.ndarray:
    """Black strokes on white, where a bicubic filter overshoots to both sides."""
    rows, columns = np.mgrid[0:height, 0:width]
    ink = (columns % 11 < 2) | (rows % 17 < 3) | ((rows + columns) % 23 == 0)
    return np.ascontiguousarray(np.where(ink, 0, 255)[..., np.newaxis].repeat(3, axis=2).astype(np.uint8))


def outputs(kernels: ModuleType, image: np.ndarray, preprocessing: ImagePreprocessing) -> np.ndarray:
    out = np.full(preprocessing.output_shape(*image.shape[:2]), np.nan, dtype=np.float32)
    kernels.preprocess_into(image, out, preprocessing)
    return out


def as_bytes(out: np.ndarray) -> np.ndarray:
    """Return an output without rescaling and normalization as an image again."""
    np.testing.assert_array_equal(out, np.rint(out).clip(0, 255))
    return out.transpose(1, 2, 0).astype(np.uint8)


@pytest.mark.parametrize("draw", [noise, gradient, letters], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("resample", [0, 2, 3], ids=["nearest", "bilinear", "bicubic"])
def test_the_resized_bytes_are_those_of_pillow(kernels: ModuleType, resample: int, draw: Any) -> None:
    pil = pytest.importorskip("PIL.Image")
    order = ext_images.resize_order_of_pillow(importlib.import_module("PIL").__version__)
    for (height, width), size in SHAPES:
        image = draw(height, width)
        expected = np.asarray(pil.fromarray(image).resize(size[::-1], resample))
        found = outputs(kernels, image, ImagePreprocessing(size=size, resample=resample, resize_order=order))
        np.testing.assert_array_equal(as_bytes(found), expected, err_msg=f"{image.shape} to {size}")


@pytest.mark.parametrize(
    ("order", "source", "resized", "vertical_first"),
    [
        ("horizontal_first", (901, 9), (20, 20), False),
        ("tall_vertical_first", (901, 9), (20, 20), True),
        ("tall_vertical_first", (900, 9), (20, 20), False),
        ("tall_vertical_first", (901, 9), (902, 20), False),
        ("larger_shrink_first", (130, 60), (70, 30), False),
        ("larger_shrink_first", (131, 60), (70, 30), True),
        ("larger_shrink_first", (60, 60), (60, 90), False),
        ("larger_shrink_first", (60, 60), (59, 90), True),
    ],
)
def test_the_passes_come_in_the_order_of_the_pillow_version(
    kernels: ModuleType, order: Any, source: tuple[int, int], resized: tuple[int, int], vertical_first: bool
) -> None:
    pil = pytest.importorskip("PIL.Image")
    between = (resized[0], source[1]) if vertical_first else (source[0], resized[1])
    image = noise(*source)
    # One axis at a time, which has one order only in every version.
    expected = pil.fromarray(image).resize(between[::-1], 2).resize(resized[::-1], 2)
    found = outputs(kernels, image, ImagePreprocessing(size=resized, resize_order=order))
    np.testing.assert_array_equal(as_bytes(found), np.asarray(expected))


def test_resized_shapes_are_cropped_without_computing_the_rest(kernels: ModuleType) -> None:
    image = noise(120, 333)
    whole = outputs(kernels, image, ImagePreprocessing(shortest_edge=60, resample=3))
    assert whole.shape == (3, 60, 166)
    cropped = outputs(kernels, image, ImagePreprocessing(shortest_edge=60, resample=3, crop=(41, 40)))
    np.testing.assert_array_equal(cropped, whole[:, 9:50, 63:103])


@pytest.mark.parametrize(
    ("source", "crop", "place"),
    [
        # crop, then rows and columns of the image in it, and its first pixel
        ((3, 3), (6, 6), (slice(2, 5), slice(2, 5), 0, 0)),
        ((5, 4), (6, 6), (slice(1, 6), slice(1, 5), 0, 0)),
        ((9, 2), (4, 5), (slice(0, 4), slice(2, 4), 2, 0)),
        ((2, 8), (5, 3), (slice(2, 4), slice(0, 3), 0, 2)),
    ],
)
def test_a_crop_larger_than_the_image_is_padded_with_black(
    kernels: ModuleType, source: tuple[int, int], crop: tuple[int, int], place: Any
) -> None:
    rows, columns, top, left = place
    image = noise(*source)
    expected = np.full((3, *crop), (0 * 0.5 - 1) / 4, dtype=np.float32)
    inside = image[top:, left:].transpose(2, 0, 1)[:, : rows.stop - rows.start, : columns.stop - columns.start]
    expected[:, rows, columns] = (inside * np.float32(0.5) - 1) / 4
    given = ImagePreprocessing(crop=crop, rescale_factor=0.5, mean=(1.0, 1.0, 1.0), std=(4.0, 4.0, 4.0))
    np.testing.assert_array_equal(outputs(kernels, image, given), expected)


def test_colours_are_float64_products_and_float32_quotients(kernels: ModuleType) -> None:
    image = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    expected = [(scaled - np.float32(m)) / np.float32(s) for m, s in zip(mean, std, strict=True)]
    found = outputs(kernels, image, ImagePreprocessing(rescale_factor=1 / 255, mean=mean, std=std))
    np.testing.assert_array_equal(found.reshape(3, 256), expected)
    np.testing.assert_array_equal(
        outputs(kernels, image, ImagePreprocessing(rescale_factor=1 / 255)).reshape(3, 256), [scaled] * 3
    )


def test_a_batch_of_different_sizes_is_the_images_alone(kernels: ModuleType) -> None:
    given = ImagePreprocessing(shortest_edge=32, crop=(32, 32), rescale_factor=1 / 255)
    images = [noise(50, 70), noise(33, 200), noise(32, 32), noise(300, 20)]
    out = np.full((6, 3, 32, 32), -1, dtype=np.float32)
    kernels.preprocess_batch_into(images, out[1:5], given)
    for image, row in zip(images, out[1:5], strict=True):
        np.testing.assert_array_equal(row, outputs(kernels, image, given))
    assert (out[[0, 5]] == -1).all()
    kernels.preprocess_batch_into([], out[:0], given)


def test_a_read_only_image_is_fine(kernels: ModuleType) -> None:
    image = np.frombuffer(bytes(range(12)), dtype=np.uint8).reshape(2, 2, 3)
    assert outputs(kernels, image, ImagePreprocessing())[:, 1, 1].tolist() == [9, 10, 11]


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


IMAGE = noise(4, 5)
BAD_CALLS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no array": ([[0]], None, TypeError, r"image: expected a numpy.ndarray of uint8, found list"),
    "floats": (IMAGE.astype(np.float32), None, TypeError, r"image: expected dtype uint8, found float32"),
    "grey": (IMAGE[:, :, 0].copy(), None, ValueError, r"image: expected 3 dimensions"),
    "RGBA": (np.zeros((4, 5, 4), np.uint8), None, ValueError, r"image: expected RGB, shape \(height, width, 3\)"),
    "planes": (np.zeros((3, 4, 5), np.uint8), None, ValueError, r"image: expected RGB"),
    "a view": (noise(4, 10)[:, ::2], None, ValueError, r"image: expected a C-contiguous"),
    "no rows": (np.zeros((0, 5, 3), np.uint8), None, ValueError, r"image: expected sides in \[1, 65535\]"),
    "no columns": (np.zeros((5, 0, 3), np.uint8), None, ValueError, r"image: expected sides in \[1, 65535\]"),
    "too long": (np.zeros((65_536, 1, 3), np.uint8), None, ValueError, r"image: expected sides in \[1, 65535\]"),
    "float64 out": (IMAGE, np.zeros((3, 8, 8)), TypeError, r"out: expected dtype float32, found float64"),
    "short out": (IMAGE, np.zeros((3, 8, 7), np.float32), ValueError, r"out: expected \(3, 8, 8\) for image of 4 x 5"),
    "HWC out": (IMAGE, np.zeros((8, 8, 3), np.float32), ValueError, r"out: expected \(3, 8, 8\)"),
    "batch out": (IMAGE, np.zeros((1, 3, 8, 8), np.float32), ValueError, r"out: expected 3 dimensions"),
    "read-only out": (IMAGE, read_only(np.zeros((3, 8, 8), np.float32)), ValueError, r"out: expected a writable array"),
    "strided out": (IMAGE, np.zeros((3, 8, 16), np.float32)[:, :, ::2], ValueError, r"out: expected a C-contiguous"),
}


@pytest.mark.parametrize(("image", "out", "error", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_wrong_arguments_are_refused(
    kernels: ModuleType, image: Any, out: Any, error: type[Exception], message: str
) -> None:
    out = np.zeros((3, 8, 8), dtype=np.float32) if out is None else out
    with pytest.raises(error, match=message):
        kernels.preprocess_into(image, out, ImagePreprocessing(size=(8, 8), mean=(9.0,) * 3, std=(1.0,) * 3))
    assert not out.any()


def test_an_output_in_the_memory_of_the_image_is_refused(kernels: ModuleType) -> None:
    memory = np.zeros(48, dtype=np.uint8)
    with pytest.raises(ValueError, match="out and image: expected buffers apart"):
        kernels.preprocess_into(
            memory[:12].reshape(2, 2, 3), memory.view(np.float32).reshape(3, 2, 2), ImagePreprocessing()
        )


def test_a_wrong_image_in_a_batch_leaves_everything_as_it_was(kernels: ModuleType) -> None:
    out = np.zeros((2, 3, 4, 5), dtype=np.float32)
    with pytest.raises(TypeError, match=r"images\[1\]: expected dtype uint8"):
        kernels.preprocess_batch_into([IMAGE, IMAGE.astype(int)], out, ImagePreprocessing())
    with pytest.raises(ValueError, match=r"out: expected \(3, 5, 4\) for images\[1\]"):
        kernels.preprocess_batch_into([IMAGE, noise(5, 4)], out, ImagePreprocessing())
    with pytest.raises(ValueError, match="out: expected 1 rows, one for each image"):
        kernels.preprocess_batch_into([IMAGE], out, ImagePreprocessing())
    with pytest.raises(TypeError, match=r"images: expected a list of images, found one numpy\.ndarray"):
        kernels.preprocess_batch_into(IMAGE, out, ImagePreprocessing())
    with pytest.raises(TypeError, match="preprocessing: expected an ImagePreprocessing, found dict"):
        kernels.preprocess_batch_into([IMAGE, IMAGE], out, {})
    assert not out.any()


def test_a_strip_is_refused_that_would_grow_beyond_bounds(kernels: ModuleType) -> None:
    given = ImagePreprocessing(shortest_edge=224, crop=(224, 224))
    with pytest.raises(ValueError, match=r"image: expected sides in \[1, 1,048,576\] after resizing"):
        kernels.preprocess_into(np.zeros((1, 5000, 3), np.uint8), np.zeros((3, 224, 224), np.float32), given)
    vanishing = ImagePreprocessing(shortest_edge=10, longest_edge=10, crop=(1, 1))
    with pytest.raises(ValueError, match="after resizing, found"):
        kernels.preprocess_into(np.zeros((1, 500, 3), np.uint8), np.zeros((3, 1, 1), np.float32), vanishing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (8, 8), "shortest_edge": 8}, "size, shortest_edge: expected one of them, found both"),
        ({"longest_edge": 8}, "longest_edge: expected it together with shortest_edge"),
        ({"size": (0, 8)}, r"size: expected height and width in \[1, 65535\], found \(0, 8\)"),
        ({"size": (8, 8, 8)}, "size: expected height and width"),
        ({"crop": (8, 65_536)}, "crop: expected height and width"),
        ({"crop": [8, 8]}, "crop: expected height and width"),
        ({"shortest_edge": True}, "shortest_edge: expected an integer"),
        ({"shortest_edge": 8, "longest_edge": 0}, "longest_edge: expected an integer"),
        ({"resample": 1}, "resample: expected 0"),
        ({"resize_order": "any"}, "resize_order: expected one of"),
        ({"rescale_factor": float("nan")}, "rescale_factor: expected a finite number"),
        ({"rescale_factor": 1e39}, "rescale_factor: expected a finite number"),
        ({"mean": (0.5, 0.5, 0.5)}, "mean, std: expected both or neither"),
        ({"mean": (0.5, 0.5), "std": (1, 1, 1)}, "mean: expected three finite numbers"),
        ({"mean": (0.5, 0.5, 10**400), "std": (1, 1, 1)}, "mean: expected three finite numbers"),
        ({"mean": (0.5, 0.5, 0.5), "std": (1, 1, 1e-60)}, "std: expected numbers other than 0"),
    ],
)
def test_a_contradictory_description_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImagePreprocessing(**arguments)


def processor_class(name: str) -> Any:
    """Return the image processor of transformers that works with PIL."""
    pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    folder = {"ChineseCLIP": "chinese_clip", "MobileNetV1": "mobilenet_v1"}.get(name, name.lower())
    module = importlib.import_module(f"transformers.models.{folder}.image_processing_pil_{folder}")
    return getattr(module, f"{name}ImageProcessorPil")


def expected_of(processor: Any, image: np.ndarray) -> np.ndarray:
    batch = processor(image, return_tensors="np", input_data_format="channels_last")
    result: np.ndarray = batch["pixel_values"][0]
    return result


@pytest.mark.parametrize("name", config.CLASSES)
def test_each_class_gives_what_transformers_gives(kernels: ModuleType, name: str) -> None:
    processor = processor_class(name)()
    order = ext_images.resize_order_of_pillow(importlib.import_module("PIL").__version__)
    for data in (f'{{"image_processor_type": "{name}ImageProcessor"}}', json.dumps(processor.to_dict())):
        given = ImagePreprocessing.from_preprocessor_config(data.encode(), resize_order=order)
        image = letters(123, 157)
        np.testing.assert_array_equal(outputs(kernels, image, given), expected_of(processor, image))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": {"height": 56, "width": 48}}),
        ("CLIP", {"size": 30, "crop_size": 31, "resample": 2, "do_normalize": False}),
        ("Bit", {"size": {"shortest_edge": 50, "longest_edge": 61}, "crop_size": 55}),
        ("DeiT", {"size": {"height": 90, "width": 31}, "do_rescale": False}),
        ("Siglip", {"size": 33}),
        ("ViT", {"do_resize": False}),
        ("ViT", {"image_mean": 0.1, "image_std": [0.1, 0.2, 0.3], "rescale_factor": 0.01, "resample": 0}),
        ("ConvNext", {"size": {"shortest_edge": 40}, "crop_pct": 0.875}),
        ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.9, "resample": 2}),
        ("ConvNext", {"size": {"shortest_edge": 400}}),
        ("ConvNext", {"size": {"shortest_edge": 384}, "do_center_crop": True, "crop_size": 300}),
    ],
)
def test_configured_classes_give_what_transformers_gives(
    kernels: ModuleType, name: str, fields: dict[str, Any]
) -> None:
    processor = processor_class(name).from_dict(fields)
    order = ext_images.resize_order_of_pillow(importlib.import_module("PIL").__version__)
    data = json.dumps({"image_processor_type": f"{name}ImageProcessor", **fields}).encode()
    given = ImagePreprocessing.from_preprocessor_config(data, resize_order=order)
    for image in (gradient(61, 97), noise(140, 45), letters(29, 29)):
        np.testing.assert_array_equal(outputs(kernels, image, given), expected_of(processor, image))
