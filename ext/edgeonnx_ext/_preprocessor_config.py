"""Strict reading of a `preprocessor_config.json`; each problem is told with its field.

The rule: a class, field or value is accepted only if `ImagePreprocessing` does it exactly as transformers does;
anything else raises UnknownPreprocessorError.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Object: TypeAlias = "dict[str, Json]"
Fields: TypeAlias = "dict[str, Any]"  # arguments of ImagePreprocessing, which checks their ranges


class UnknownPreprocessorError(ValueError):
    """The image processor does something that this package does not do exactly.

    Attributes:
        reason: The class, field or value, such as "image processor class 'DetrImageProcessor'".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"preprocessor_config.json: {reason} is not known")
        self.reason = reason


class PreprocessorDataError(ValueError):
    """The document is broken: not JSON, a field of the wrong type, a value out of range."""


HALF: Final = [0.5, 0.5, 0.5]
IMAGENET_MEAN: Final = [0.485, 0.456, 0.406]
IMAGENET_STD: Final = [0.229, 0.224, 0.225]
CLIP_MEAN: Final = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD: Final = [0.26862954, 0.26130258, 0.27577711]


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a class of transformers does where the document is silent.

    Attributes:
        resample: Pillow's number of the filter.
        size: As in the document.
        square: Whether an integer size is both sides, rather than the shortest edge.
        crop: Side of the centre crop; None if the class does not crop.
        mean: Means of red, green, blue.
        std: Standard deviations.
        by_ratio: Crops by the rule of ConvNext: `crop_pct`, below 384 pixels only.
    """

    resample: int = 2
    size: Object
    square: bool = True
    crop: int | None = None
    mean: list[float]
    std: list[float]
    by_ratio: bool = False


_CLIP = Defaults(resample=3, size={"shortest_edge": 224}, square=False, crop=224, mean=CLIP_MEAN, std=CLIP_STD)
_SIDES_224: Final[Object] = {"height": 224, "width": 224}

# The classes of transformers 5.24 whose steps are exactly those of PilBackend (and ConvNext, which crops in `resize`).
# A test compares this table with the installed transformers.
CLASSES: Final = {
    "Bit": _CLIP,
    "Blip": Defaults(resample=3, size={"height": 384, "width": 384}, mean=CLIP_MEAN, std=CLIP_STD),
    "CLIP": _CLIP,
    "ChineseCLIP": _CLIP,
    "ConvNext": Defaults(resample=3, size={"shortest_edge": 384}, square=False, mean=HALF, std=HALF, by_ratio=True),
    "DeiT": Defaults(resample=3, size={"height": 256, "width": 256}, crop=224, mean=HALF, std=HALF),
    "MobileNetV1": Defaults(size={"shortest_edge": 256}, square=False, crop=224, mean=HALF, std=HALF),
    "Pvt": Defaults(resample=3, size=_SIDES_224, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "Siglip": Defaults(resample=3, size=_SIDES_224, square=False, mean=HALF, std=HALF),
    "ViT": Defaults(size=_SIDES_224, mean=HALF, std=HALF),
}
SUFFIXES: Final = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")

# Fields that say something about an image, read below.
READ: Final = frozenset(
    {
        "crop_pct",
        "crop_size",
        "default_to_square",
        "do_center_crop",
        "do_normalize",
        "do_rescale",
        "do_resize",
        "image_mean",
        "image_std",
        "rescale_factor",
        "resample",
        "size",
    }
)
# Fields that do not change the output here: names, the kind of tensor, what PIL processors ignore; and converting to
# RGB, as the image is RGB already.
WITHOUT_EFFECT: Final = frozenset(
    {
        "_processor_class",
        "_valid_processor_keys",
        "device",
        "disable_grouping",
        "do_convert_rgb",
        "feature_extractor_type",
        "image_processor_type",
        "processor_class",
        "return_tensors",
    }
)
# Fields that are fine with these values, where they change nothing.
NEUTRAL: Final[dict[str, tuple[Json, ...]]] = {
    "data_format": ("channels_first",),
    "do_pad": (False,),
    "input_data_format": ("channels_last",),
}


def read(data: bytes, processor_type: str | None) -> Fields:
    """Return the arguments of ImagePreprocessing, without `resize_order`.

    Raises:
        UnknownPreprocessorError: A class, field or value that is not done exactly.
        PreprocessorDataError: Not JSON, or a field of the wrong type.
    """
    # In transformers a null is a field that is not there.
    root: Object = {key: value for key, value in _parse(data).items() if value is not None}
    defaults = _defaults(root, processor_type)
    for key, value in root.items():
        known = key in READ | WITHOUT_EFFECT or value in NEUTRAL.get(key, ())
        if not known or (key == "crop_pct" and not defaults.by_ratio):
            raise UnknownPreprocessorError(f"field {key!r} with the value {_shown(value)}")
    return {**_read_sizes(root, defaults), **_read_colours(root, defaults)}


def _parse(data: bytes) -> Object:
    if not data:
        _refuse("expected a JSON document, found 0 bytes. Copy the file again.")
    try:
        root: Json = json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        _refuse(f"expected UTF-8, found byte {data[error.start]:#04x} at {error.start}", error)
    except json.JSONDecodeError as error:
        _refuse(f"expected JSON, found {error} in {len(data)} bytes", error)
    except RecursionError as error:
        _refuse("expected an image processor, found JSON that is nested too deeply", error)
    if not isinstance(root, dict):
        _refuse(f"expected a JSON object, found {type(root).__name__}")
    return root


def _unique_keys(pairs: list[tuple[str, Json]]) -> Object:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = sorted(key for key, _ in pairs)
        twice = next(key for key, following in pairwise(keys) if key == following)
        _refuse(f"expected unique keys in each object, found {twice!r} twice")
    return result


def _defaults(root: Object, processor_type: str | None) -> Defaults:
    name = root.get("image_processor_type", root.get("feature_extractor_type", processor_type))
    if name is None:
        raise UnknownPreprocessorError("an image processor without image_processor_type (pass processor_type)")
    for suffix in SUFFIXES:
        if isinstance(name, str) and name.endswith(suffix) and name.removesuffix(suffix) in CLASSES:
            return CLASSES[name.removesuffix(suffix)]
    raise UnknownPreprocessorError(f"image processor class {_shown(name)}")


def _read_sizes(root: Object, defaults: Defaults) -> Fields:
    fields: Fields = {}
    if _flag(root, "do_resize", default=True):
        fields = _read_resize(root, defaults)
    if _flag(root, "do_center_crop", default=defaults.crop is not None):
        if "crop" in fields:
            raise UnknownPreprocessorError("do_center_crop after crop_pct")
        side: Json = root.get("crop_size", defaults.crop)
        if side is None:
            _refuse("expected crop_size with do_center_crop, found none")
        fields["crop"] = _sides(side, "crop_size")
    return fields


def _read_resize(root: Object, defaults: Defaults) -> Fields:
    resample = root.get("resample", defaults.resample)
    if isinstance(resample, bool) or not isinstance(resample, int):
        _refuse(f"expected an integer at resample, found {_shown(resample)}")
    if resample not in (0, 2, 3):
        raise UnknownPreprocessorError(f"resample {resample}")
    size = root.get("size", defaults.size)
    square = _flag(root, "default_to_square", default=defaults.square)
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
    if not isinstance(size, dict) or "shortest_edge" not in size:
        if defaults.by_ratio:
            raise UnknownPreprocessorError(f"size {_shown(size)} without shortest_edge")
        return {"resample": resample, "size": _sides(size, "size")}
    edges = {key: _side(size, key, "size") for key in size}
    if not edges.keys() <= {"shortest_edge", "longest_edge"}:
        raise UnknownPreprocessorError(f"size {_shown(size)}")
    if defaults.by_ratio:
        return {"resample": resample, **_cropped_by_ratio(root, edges)}
    return {"resample": resample, **edges}


def _cropped_by_ratio(root: Object, edges: dict[str, int]) -> Fields:
    """Return what ConvNextImageProcessor does: resize larger and crop below 384 pixels, resize to a square from there.

    The ratio is 224 / 256 unless the document says otherwise.
    """
    if "longest_edge" in edges:
        raise UnknownPreprocessorError("size.longest_edge together with crop_pct")
    side = edges["shortest_edge"]
    if side >= 384:
        return {"size": (side, side)}
    ratio = _number(root.get("crop_pct", 224 / 256), "crop_pct")
    if not 1 / 64 <= ratio <= 1:
        raise UnknownPreprocessorError(f"crop_pct {ratio}")
    return {"shortest_edge": int(side / ratio), "crop": (side, side)}


def _sides(value: Json, path: str) -> tuple[int, int]:
    """Return height and width from one integer, a list of both, or an object with both."""
    if isinstance(value, dict):
        if value.keys() != {"height", "width"}:
            raise UnknownPreprocessorError(f"{path} {_shown(value)}")
        return _side(value, "height", path), _side(value, "width", path)
    if isinstance(value, list) and len(value) == 2:
        height, width = value
    else:
        height = width = value
    return _side({"height": height}, "height", path), _side({"width": width}, "width", path)


def _side(sides: Object, key: str, path: str) -> int:
    value = sides[key]
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(f"expected an integer at {path}.{key}, found {_shown(value)}")
    return value


def _read_colours(root: Object, defaults: Defaults) -> Fields:
    fields: Fields = {}
    if _flag(root, "do_rescale", default=True):
        fields["rescale_factor"] = _number(root.get("rescale_factor", 1 / 255), "rescale_factor")
    if _flag(root, "do_normalize", default=True):
        fields["mean"] = _triple(root.get("image_mean", [*defaults.mean]), "image_mean")
        fields["std"] = _triple(root.get("image_std", [*defaults.std]), "image_std")
    return fields


def _triple(value: Json, path: str) -> tuple[float, float, float]:
    if not isinstance(value, list):
        value = [value, value, value]
    if len(value) != 3:
        _refuse(f"expected three numbers at {path}, one for each colour, found {_shown(value)}")
    red, green, blue = (_number(item, path) for item in value)
    return red, green, blue


def _number(value: Json, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(f"expected a number at {path}, found {_shown(value)}")
    try:
        return float(value)
    except OverflowError as error:
        _refuse(f"expected a number at {path}, found {_shown(value)}", error)


def _flag(root: Object, key: str, *, default: bool) -> bool:
    value = root.get(key, default)
    if not isinstance(value, bool):
        _refuse(f"expected true or false at {key}, found {_shown(value)}")
    return value


def _refuse(problem: str, cause: Exception | None = None) -> NoReturn:
    raise PreprocessorDataError(f"preprocessor_config.json: {problem}") from cause


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
