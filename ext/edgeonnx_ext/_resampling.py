"""Where each pixel of a resized and cropped image comes from: one integer table for each axis.

The arithmetic is that of Pillow (libImaging/Resample.c, Geometry.c), which the image processors of transformers use:
the weights of an output pixel are computed in float64, normalized to 1, and rounded to 22 fractional bits; each pass
adds them up in integers, rounds, and stores bytes. So the bytes are equal to Pillow's, bit for bit.

The tables are made with NumPy for the compiled kernel and its twin alike. Besides being one code, it is what makes the
bits equal on every machine: a compiler may fuse a C multiplication and addition (it does so on ARM), NumPy cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Pillow keeps two bits for sums outside [0, 255], as the bicubic filter overshoots: 32 - 8 - 2.
PRECISION_BITS: Final = 22

NEAREST: Final = 0
BILINEAR: Final = 2
BICUBIC: Final = 3

# How many source pixels a filter reaches to each side when it enlarges.
SUPPORT: Final = {BILINEAR: 1.0, BICUBIC: 2.0}

ResizeOrder = Literal["horizontal_first", "tall_vertical_first", "larger_shrink_first"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """How one axis is resized and cropped.

    Output pixel `before + i`, for i in [0, count), is the sum over t in [0, taps) of weights[i, t] times source pixel
    first[i] + t; pixels before and after are padding. All have the same number of taps, some with a weight of 0, as a
    loop of one length is faster than one of exactly as many steps as needed.

    Attributes:
        length: Pixels of the output, padding included.
        before: Pixels of padding before the first.
        first: int32 (count,), never falling, at most the size of the source minus taps.
        weights: int32 (count, taps), in units of 2**-22.
        copies: Each output pixel is one source pixel, and these follow each other: no arithmetic is needed.
    """

    length: int
    before: int
    first: NDArray[np.int32]
    weights: NDArray[np.int32]
    copies: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How one image is resized and cropped: both axes, and which pass comes first."""

    rows: Axis
    columns: Axis
    vertical_first: bool


def resize_order_of_pillow(version: str) -> ResizeOrder:
    """Return the order of the passes in a Pillow version such as "12.3.0".

    The pass that comes first rounds first, so that the order shows in the last bit of some pixels.

    Raises:
        ValueError: Not a version.
    """
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        raise ValueError(f"version: expected a Pillow version such as '12.3.0', found {version!r}")
    release = (int(parts[0]), int(parts[1]))
    if release >= (13, 0):
        return "larger_shrink_first"
    return "tall_vertical_first" if release >= (12, 2) else "horizontal_first"


def is_vertical_first(order: ResizeOrder, size: tuple[int, int], resized: tuple[int, int]) -> bool:
    """Return whether the vertical pass comes first.

    Args:
        order: "horizontal_first" up to Pillow 12.1; "tall_vertical_first" in 12.2 and 12.3, for images that are 100
            times as high as wide; "larger_shrink_first" from 13.0, where the height loses more than twice the pixels
            that the width loses.
        size: Height and width of the source.
        resized: Height and width after resizing.
    """
    height, width = size
    lost = height - resized[0]
    if order == "larger_shrink_first":
        return lost > 0 and lost > (width - resized[1]) * 2
    return order == "tall_vertical_first" and lost > 0 and height > width * 100


@lru_cache(maxsize=32)  # cameras and thumbnails repeat their sizes; a table is a few kB, 1 MB at most
def make_axis(size: int, resized: int, crop: int | None, resample: int) -> Axis:
    """Return how an axis of `size` pixels becomes `resized`, of which the centre `crop` stay (None: all)."""
    before, start, count = crop_window(resized, crop)
    window = slice(start, start + count)
    if resized == size:
        first = np.arange(start, start + count, dtype=np.int64)
        weights = np.full((count, 1), 1 << PRECISION_BITS, dtype=np.int64)
    elif resample == NEAREST:
        first, weights = _nearest_table(size, resized, window)
    else:
        first, weights = _filter_table(size, resized, window, resample)
    return Axis(
        length=resized if crop is None else crop,
        before=before,
        first=_frozen(first),
        weights=_frozen(weights),
        copies=resized == size,
    )


def crop_window(resized: int, crop: int | None) -> tuple[int, int, int]:
    """Return padding before, first pixel kept, and number of pixels kept (transformers' `center_crop`, one axis).

    An odd pixel is cut after the centre, and padded before it.
    """
    if crop is None:
        return 0, 0, resized
    if crop <= resized:
        return 0, (resized - crop) // 2, crop
    return (crop - resized + 1) // 2, 0, resized


def _frozen(values: NDArray[np.int64]) -> NDArray[np.int32]:
    result = np.ascontiguousarray(values, dtype=np.int32)
    result.flags.writeable = False  # the cache hands it out again
    return result


def _nearest_table(size: int, resized: int, window: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and weights of the nearest pixels, whose places Pillow finds by repeated addition.

    The last place is inside the image: n additions are off by n * size * 2**-53 at most, which is less than half a
    step, size / 2n, as n is at most 2**20.
    """
    steps = np.full(resized, size / resized)
    steps[0] *= 0.5
    places = np.add.accumulate(steps)[window].astype(np.int64)
    return places, np.full((len(places), 1), 1 << PRECISION_BITS, dtype=np.int64)


def _filter_table(size: int, resized: int, window: slice, resample: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and weights of a filter: Pillow's `precompute_coeffs` and `normalize_coeffs_8bpc`."""
    scale = size / resized
    filter_scale = max(scale, 1.0)
    support = SUPPORT[resample] * filter_scale
    centre = (np.arange(window.start, window.stop) + 0.5) * scale
    # The casts truncate, as they do in C: below 0 towards 0.
    begin = np.maximum((centre - support + 0.5).astype(np.int64), 0)[:, np.newaxis]
    end = np.minimum((centre + support + 0.5).astype(np.int64), size)[:, np.newaxis]
    taps = int((end - begin).max())
    first = np.minimum(begin, size - taps)
    source = first + np.arange(taps)
    distance = (source - centre[:, np.newaxis] + 0.5) * (1.0 / filter_scale)
    values = _bilinear(distance) if resample == BILINEAR else _bicubic(distance)
    values[(source < begin) | (source >= end)] = 0.0
    # Not sum(): its pairs round otherwise than one addition after the other.
    values /= np.add.accumulate(values, axis=1)[:, -1:]
    scaled = values * (1 << PRECISION_BITS)
    return first[:, 0], np.where(scaled < 0, -0.5 + scaled, 0.5 + scaled).astype(np.int64)


def _bilinear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    return np.where(x < 1.0, 1.0 - x, 0.0)


def _bicubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cubic convolution kernel with a = -0.5 (Keys 1981)."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
