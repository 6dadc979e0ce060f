"""What a `preprocessor_config.json` says, as one frozen description of how an image becomes the input of a model.

The steps are those of the PIL image processors of transformers (image_processing_backends.py, `PilBackend`): resize,
centre crop, rescale, normalize, channels first. `preprocess_into` does them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, get_args

import numpy as np

from edgeonnx_ext import _preprocessor_config as config
from edgeonnx_ext._preprocessor_config import PreprocessorDataError, UnknownPreprocessorError
from edgeonnx_ext._resampling import (
    BICUBIC,
    BILINEAR,
    NEAREST,
    Plan,
    ResizeOrder,
    is_vertical_first,
    make_axis,
    resize_order_of_pillow,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ImagePreprocessing",
    "PreprocessorDataError",
    "ResizeOrder",
    "UnknownPreprocessorError",
    "resize_order_of_pillow",
]

MAX_SIDE = 65_535  # of an image, and of a size in a description; JPEG has the same limit
MAX_RESIZED_SIDE = 2**20  # an image of one pixel by thousands would become a strip of millions

Triple = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class ImagePreprocessing:
    """How an RGB image becomes the input of a model. A step whose field is None is not done.

    Attributes:
        size: Resize to this (height, width), whatever the shape of the image. Not together with `shortest_edge`.
        shortest_edge: Resize so that the shorter side has this many pixels, and the longer one as many as keep the
            shape of the image, rounded down.
        longest_edge: With `shortest_edge`: where the longer side would have more pixels than this, it gets these, and
            the shorter one as many as keep the shape.
        resample: The filter, by Pillow's numbers: 0 nearest, 2 bilinear, 3 bicubic. The last two average over as many
            source pixels as an output pixel covers (antialiasing).
        resize_order: Which of the two passes of resizing comes first: `resize_order_of_pillow` of the Pillow version
            that the source processor ran with. It shows in the last bit of some pixels.
        crop: Then keep this (height, width) of the centre; a side that is too short is padded with black.
        rescale_factor: Then multiply by this, in float64, rounded to float32.
        mean: Then subtract this, for red, green and blue. Together with `std`.
        std: And divide by this.

    Raises:
        ValueError: Values that contradict each other or are out of range.
    """

    size: tuple[int, int] | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None
    resample: int = BILINEAR
    resize_order: ResizeOrder = "larger_shrink_first"
    crop: tuple[int, int] | None = None
    rescale_factor: float | None = None
    mean: Triple | None = None
    std: Triple | None = None

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_colours(self)
        if self.resample not in (NEAREST, BILINEAR, BICUBIC):
            raise ValueError(f"resample: expected 0 (nearest), 2 (bilinear) or 3 (bicubic), found {self.resample!r}")
        if self.resize_order not in get_args(ResizeOrder):
            raise ValueError(f"resize_order: expected one of {get_args(ResizeOrder)}, found {self.resize_order!r}")

    @classmethod
    def from_preprocessor_config(
        cls, data: bytes, *, processor_type: str | None = None, resize_order: ResizeOrder = "larger_shrink_first"
    ) -> ImagePreprocessing:
        """Read a `preprocessor_config.json`.

        Fields that the document leaves out have the value that the image processor's class in transformers gives
        them. Two classes do the same steps: one with PIL, one with torchvision ("Fast" in older documents), whose
        resizing differs in the last bit of some pixels. This is the one with PIL, whatever the document was saved by.

        Args:
            data: The file's bytes, UTF-8.
            processor_type: Name of the class, for an old document that does not name it, such as "ViTImageProcessor".
            resize_order: As in the attributes.

        Returns:
            The description.

        Raises:
            UnknownPreprocessorError: A class, field or value that is not done here exactly as transformers does it.
            PreprocessorDataError: Not UTF-8, not JSON, or fields of the wrong type or out of range.
        """
        fields = config.read(data, processor_type)
        try:
            return cls(**fields, resize_order=resize_order)
        except ValueError as error:
            raise PreprocessorDataError(f"preprocessor_config.json: {error}") from error

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The output for each byte of each channel, float32 (3, 256), read-only.

        Bytes are all that rescaling and normalizing ever see, so that the table holds exactly what the formulas of
        transformers (image_transforms.py, `rescale` and `normalize`) give: float64 product rounded to float32, then
        float32 difference and quotient.
        """
        levels = np.arange(256, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # absurd factors give infinity and NaN, as in transformers
            if self.rescale_factor is not None:
                levels *= self.rescale_factor
            table = np.tile(levels.astype(np.float32), (3, 1))
            if self.mean is not None and self.std is not None:
                mean, std = (np.array(triple, dtype=np.float32)[:, np.newaxis] for triple in (self.mean, self.std))
                table = (table - mean) / std
        table.flags.writeable = False
        return table

    def resized_shape(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing, before the crop.

        Raises:
            ValueError: A side would have no pixel, or more than 1,048,576.
        """
        if self.shortest_edge is None:
            return self.size or (height, width)
        if self.longest_edge is None:
            resized = _shortest_edge_shape(height, width, self.shortest_edge)
        else:
            resized = _bounded_shape(height, width, self.shortest_edge, self.longest_edge)
        if not 1 <= min(resized) <= max(resized) <= MAX_RESIZED_SIDE:
            raise ValueError(
                f"image: expected sides in [1, {MAX_RESIZED_SIDE:,}] after resizing, found {resized} for a height and "
                f"width of {(height, width)}"
            )
        return resized

    def output_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the shape of the output for an image of this height and width: 3, height, width.

        Raises:
            ValueError: As resized_shape.
        """
        return (3, *(self.crop or self.resized_shape(height, width)))

    def plan(self, height: int, width: int) -> Plan:
        """Return how an image of this height and width is resized and cropped.

        Raises:
            ValueError: As resized_shape.
        """
        resized = self.resized_shape(height, width)
        crop_height, crop_width = self.crop or (None, None)
        return Plan(
            rows=make_axis(height, resized[0], crop_height, self.resample),
            columns=make_axis(width, resized[1], crop_width, self.resample),
            vertical_first=is_vertical_first(self.resize_order, (height, width), resized),
        )


def _shortest_edge_shape(height: int, width: int, shortest_edge: int) -> tuple[int, int]:
    """Return transformers' `get_resize_output_image_size` without a maximum."""
    longest_edge = int(shortest_edge * max(height, width) / min(height, width))
    return (longest_edge, shortest_edge) if width <= height else (shortest_edge, longest_edge)


def _bounded_shape(height: int, width: int, shortest_edge: int, longest_edge: int) -> tuple[int, int]:
    """Return transformers' `get_size_with_aspect_ratio`: the longer side is computed from the unrounded shorter one."""
    shorter, longer = float(min(height, width)), float(max(height, width))
    exact: float = shortest_edge
    if longer / shorter * shortest_edge > longest_edge:
        exact = longest_edge * shorter / longer
        shortest_edge = round(exact)
    if min(height, width) == shortest_edge:
        return height, width
    if width < height:
        return int(exact * height / width), shortest_edge
    return shortest_edge, int(exact * width / height)


def _check_sizes(given: ImagePreprocessing) -> None:
    if given.size is not None and given.shortest_edge is not None:
        raise ValueError("size, shortest_edge: expected one of them, found both")
    if given.longest_edge is not None and given.shortest_edge is None:
        raise ValueError("longest_edge: expected it together with shortest_edge, found it alone")
    for name in ("size", "crop"):
        pair = getattr(given, name)
        if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_side, pair))):
            raise ValueError(f"{name}: expected height and width in [1, {MAX_SIDE}], found {pair!r}")
    for name in ("shortest_edge", "longest_edge"):
        side = getattr(given, name)
        if side is not None and not _is_side(side):
            raise ValueError(f"{name}: expected an integer in [1, {MAX_SIDE}], found {side!r}")


def _is_side(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIDE


def _check_colours(given: ImagePreprocessing) -> None:
    if (given.mean is None) != (given.std is None):
        raise ValueError("mean, std: expected both or neither")
    if given.rescale_factor is not None and not _is_float32(given.rescale_factor):
        raise ValueError(f"rescale_factor: expected a finite number, found {given.rescale_factor!r}")
    for name in ("mean", "std"):
        triple = getattr(given, name)
        if triple is None:
            continue
        if not (isinstance(triple, tuple) and len(triple) == 3 and all(map(_is_float32, triple))):
            raise ValueError(f"{name}: expected three finite numbers, found {triple!r}")
    if given.std is not None and not all(np.float32(value) for value in given.std):
        raise ValueError(f"std: expected numbers other than 0 in float32, found {given.std!r}")


def _is_float32(value: object) -> bool:
    """Return whether it is a number that is finite in float32, where the arithmetic happens."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and abs(value) <= float(np.finfo(np.float32).max)
    except OverflowError:  # an int beyond float64
        return False
