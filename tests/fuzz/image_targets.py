"""Target of images."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import numpy as np

from tests.fuzz.arrays import broken, generator_of
from tests.fuzz.target import Attempt, Target, same_refusal, twins

SIDES = (1, 2, 3, 5, 8, 13, 20, 31, 47)


def _preprocessing(rng: random.Random, **fixed: Any) -> Any:
    from edgeonnx_ext.images import ImagePreprocessing

    side = rng.choice(SIDES)
    sizes = rng.choice(
        (
            {},
            {"size": (rng.choice(SIDES), rng.choice(SIDES))},
            {"shortest_edge": side},
            {"shortest_edge": side, "longest_edge": side + rng.choice(SIDES)},
        )
    )
    colours = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)} if rng.random() < 0.5 else {}
    given = {
        **sizes,
        **colours,
        "resample": rng.choice((0, 2, 2, 3)),
        "resize_order": rng.choice(("horizontal_first", "larger_shrink_first")) if rng.random() < 0.5 else None,
        "crop": (rng.choice(SIDES), rng.choice(SIDES)) if rng.random() < 0.5 else None,
        "rescale_factor": rng.choice((None, 1 / 255, 1 / 127.5)),
        **fixed,
    }
    if given["resize_order"] is None:
        del given["resize_order"]
    return ImagePreprocessing(**given)


def _image(rng: random.Random) -> np.ndarray:
    """Noise, flat areas with edges, or a gradient; sides of one pixel too."""
    shape = (rng.choice(SIDES), rng.choice(SIDES), 3)
    numbers = generator_of(rng)
    kind = rng.randrange(3)
    if kind == 0:
        return numbers.integers(0, 256, shape, dtype=np.uint8)
    if kind == 1:
        return (numbers.random(shape) < 0.1).astype(np.uint8) * np.uint8(255)
    return np.broadcast_to(np.linspace(0, 255, shape[1]).astype(np.uint8)[None, :, None], shape).copy()


def _open_images() -> Attempt:
    kinds = twins("_images", "images")
    has_pillow = importlib.util.find_spec("PIL") is not None

    def attempt(rng: random.Random) -> None:
        image, preprocessing = _image(rng), _preprocessing(rng)
        height, width, _ = image.shape
        try:
            preprocessing.plan(height, width)
            shape = preprocessing.output_shape(height, width)
        except ValueError:
            return  # a side of no pixel
        arguments = {"image": image, "out": np.full(shape, -7, dtype=np.float32), "preprocessing": preprocessing}
        if rng.random() < 0.15:
            changed = broken(rng, arguments, {"out"})
            if (
                changed["image"] is not image
                and isinstance(changed["image"], np.ndarray)
                and changed["image"].ndim == 3
            ):
                return  # another image, which may have the same output
            same_refusal(
                {kind: lambda t=t: t.preprocess_into(**changed) for kind, t in kinds.items()}, TypeError, ValueError
            )
            assert (arguments["out"] == -7).all()
            return
        found = {}
        for kind, twin in kinds.items():
            batch = np.full((2, *shape), -7, dtype=np.float32)
            twin.preprocess_into(image, batch[0], preprocessing)
            assert (batch[1] == -7).all(), f"{kind}: written outside"
            twin.preprocess_batch_into([image, image[::-1].copy()], batch, preprocessing)
            found[kind] = batch
        assert len({batch.tobytes() for batch in found.values()}) == 1, f"{image.shape}, {preprocessing}"
        if has_pillow:
            _resizes_as_pillow(rng, kinds, image)

    return attempt


def _resizes_as_pillow(rng: random.Random, kinds: dict[str, Any], image: np.ndarray) -> None:
    """Fail unless resizing alone gives Pillow's bytes."""
    import PIL
    from edgeonnx_ext.images import resize_order_of_pillow
    from PIL import Image

    size = (rng.choice(SIDES), rng.choice(SIDES))
    order = resize_order_of_pillow(PIL.__version__)
    plain = {
        "shortest_edge": None,
        "longest_edge": None,
        "crop": None,
        "rescale_factor": None,
        "mean": None,
        "std": None,
    }
    preprocessing = _preprocessing(rng, **plain, size=size, resize_order=order)
    expected = np.asarray(Image.fromarray(image).resize(size[::-1], resample=preprocessing.resample))
    for kind, twin in kinds.items():
        out = np.empty((3, *size), dtype=np.float32)
        twin.preprocess_into(image, out, preprocessing)
        np.testing.assert_array_equal(
            out, expected.transpose(2, 0, 1), err_msg=f"{kind}: {image.shape}, {preprocessing}"
        )


TARGETS = [
    Target(
        name="images",
        invariant="both twins write the same bits and nothing else, and resize to Pillow's bytes; bad arguments are "
        "refused alike",
        open=_open_images,
    ),
]
