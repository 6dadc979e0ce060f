"""The checks of arguments that the compiled image kernel and its plain twin share: both raise the same errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgeonnx_ext import _checks
from edgeonnx_ext.images import MAX_SIDE, ImagePreprocessing

if TYPE_CHECKING:
    from edgeonnx_ext._resampling import Plan


def image_tuple(images: Any) -> tuple[Any, ...]:
    """Return `images` as a tuple, which no other thread can change.

    Raises:
        TypeError: One array, or no iterable.
    """
    if isinstance(images, np.ndarray):
        raise TypeError("images: expected a list of images, found one numpy.ndarray. Pass [image].")
    return tuple(images)


def batch(images: tuple[Any, ...], out: Any, preprocessing: Any) -> list[Plan]:
    """Check the arguments of `preprocess_batch_into` and return the plan of each image.

    Raises:
        TypeError: A wrong dtype, no ndarray, or no ImagePreprocessing.
        ValueError: Shapes that do not fit, or a buffer that is read-only, not contiguous or overlapping.
    """
    _description(preprocessing)
    _checks.array("out", out, np.float32, 4, writable=True)
    if len(images) != out.shape[0]:
        raise ValueError(f"out: expected {len(images)} rows, one for each image, found shape {out.shape}")
    return [_one(f"images[{row}]", image, out, preprocessing) for row, image in enumerate(images)]


def single(image: Any, out: Any, preprocessing: Any) -> Plan:
    """Check the arguments of `preprocess_into` and return the plan of the image.

    Raises:
        TypeError: A wrong dtype, no ndarray, or no ImagePreprocessing.
        ValueError: As batch.
    """
    _description(preprocessing)
    _checks.array("out", out, np.float32, 3, writable=True)
    return _one("image", image, out, preprocessing)


def _description(preprocessing: Any) -> None:
    if not isinstance(preprocessing, ImagePreprocessing):
        raise TypeError(f"preprocessing: expected an ImagePreprocessing, found {type(preprocessing).__name__}")


def _one(name: str, image: Any, out: Any, preprocessing: ImagePreprocessing) -> Plan:
    _checks.array(name, image, np.uint8, 3)
    height, width, channels = image.shape
    if channels != 3:
        raise ValueError(f"{name}: expected RGB, shape (height, width, 3), found {image.shape}. Convert it to RGB.")
    if not 1 <= min(height, width) <= max(height, width) <= MAX_SIDE:
        raise ValueError(f"{name}: expected sides in [1, {MAX_SIDE}], found shape {image.shape}")
    expected = preprocessing.output_shape(height, width)
    if out.shape[-3:] != expected:
        raise ValueError(
            f"out: expected {expected} for {name} of {height} x {width} pixels, found shape {out.shape}. "
            "ImagePreprocessing.output_shape tells the shape."
        )
    _checks.apart(out=out, **{name: image})
    return preprocessing.plan(height, width)
