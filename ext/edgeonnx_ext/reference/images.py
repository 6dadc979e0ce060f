"""The plain twin of the compiled image kernel: whole images, one step after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks_images
from edgeonnx_ext._resampling import PRECISION_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx_ext._resampling import Axis, Plan
    from edgeonnx_ext.images import ImagePreprocessing


def preprocess_into(image: NDArray[np.uint8], out: NDArray[np.float32], preprocessing: ImagePreprocessing) -> None:
    """Resize, crop, rescale and normalize one image into `out`, channels first.

    The result equals that of the PIL image processors of transformers bit for bit, with the Pillow version that
    `preprocessing.resize_order` stands for.

    Args:
        image: uint8 (height, width, 3), RGB, C-contiguous; sides in [1, 65535].
        out: float32 `preprocessing.output_shape(height, width)`, C-contiguous, writable; one row of a model's input.
        preprocessing: What to do.

    Raises:
        TypeError: A wrong dtype, no ndarray, or no ImagePreprocessing.
        ValueError: Shapes that do not fit, a side of no pixel or too many, or a buffer that is read-only, not
            contiguous or overlapping. Nothing was written.
    """
    plan = _checks_images.single(image, out, preprocessing)
    _write(image, out, plan, preprocessing.values)


def preprocess_batch_into(
    images: Sequence[NDArray[np.uint8]], out: NDArray[np.float32], preprocessing: ImagePreprocessing
) -> None:
    """Write each image, as `preprocess_into`, into its row of `out`.

    Args:
        images: As `image` above; their sizes may differ if `preprocessing` makes them equal.
        out: float32 (images, 3, height, width), C-contiguous, writable.
        preprocessing: What to do.

    Raises:
        TypeError: As `preprocess_into`; or one array instead of a list of them.
        ValueError: As `preprocess_into`; or another number of rows.
    """
    checked = _checks_images.image_tuple(images)
    plans = _checks_images.batch(checked, out, preprocessing)
    for image, row, plan in zip(checked, out, plans, strict=True):
        _write(image, row, plan, preprocessing.values)


def _write(image: NDArray[np.uint8], out: NDArray[np.float32], plan: Plan, values: NDArray[np.float32]) -> None:
    if plan.vertical_first:
        resized = _resample_columns(_resample_rows(image, plan.rows), plan.columns)
    else:
        resized = _resample_rows(_resample_columns(image, plan.columns), plan.rows)
    padded = np.zeros((plan.rows.length, plan.columns.length, 3), dtype=np.uint8)
    height, width, _ = resized.shape
    padded[plan.rows.before : plan.rows.before + height, plan.columns.before : plan.columns.before + width] = resized
    for channel in range(3):
        out[channel] = values[channel][padded[:, :, channel]]


def _resample_columns(image: NDArray[np.uint8], axis: Axis) -> NDArray[np.uint8]:
    return _resample_rows(image.transpose(1, 0, 2), axis).transpose(1, 0, 2)


def _resample_rows(image: NDArray[np.uint8], axis: Axis) -> NDArray[np.uint8]:
    total = np.full((len(axis.first), *image.shape[1:]), 1 << (PRECISION_BITS - 1), dtype=np.int32)
    for tap in range(axis.weights.shape[1]):
        total += image[axis.first + tap] * axis.weights[:, tap, np.newaxis, np.newaxis]
    result: NDArray[np.uint8] = np.clip(total >> PRECISION_BITS, 0, 255).astype(np.uint8)
    return result
