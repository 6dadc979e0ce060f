"""What a preprocessor_config.json says, and what is not known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from edgeonnx_ext import _preprocessor_config as config
from edgeonnx_ext import images as ext_images
from edgeonnx_ext.images import ImagePreprocessing, PreprocessorDataError, UnknownPreprocessorError


@pytest.mark.parametrize(
    ("version", "order"),
    [
        ("11.3.0", "horizontal_first"),
        ("12.1.1", "horizontal_first"),
        ("12.2.0", "tall_vertical_first"),
        ("13.0.0", "larger_shrink_first"),
        ("13.1.0.dev0", "larger_shrink_first"),
    ],
)
def test_the_order_of_a_pillow_version(version: str, order: str) -> None:
    assert ext_images.resize_order_of_pillow(version) == order


def test_no_version_has_no_order() -> None:
    with pytest.raises(ValueError, match="version: expected a Pillow version"):
        ext_images.resize_order_of_pillow("new")


def document(**fields: Any) -> bytes:
    return json.dumps({"image_processor_type": "ViTImageProcessor", **fields}).encode()


def test_fields_that_are_left_out_have_the_value_of_the_class() -> None:
    assert ImagePreprocessing.from_preprocessor_config(document(size=None)) == ImagePreprocessing(
        size=(224, 224), rescale_factor=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )
    clip = ImagePreprocessing.from_preprocessor_config(
        b'{"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336}',
        resize_order="horizontal_first",
    )
    assert (clip.shortest_edge, clip.crop, clip.resample) == (336, (336, 336), 3)
    assert (clip.mean, clip.std) == (tuple(config.CLIP_MEAN), tuple(config.CLIP_STD))
    assert clip.resize_order == "horizontal_first"


def test_steps_that_are_switched_off_are_not_done() -> None:
    off = {"do_resize": False, "do_center_crop": False, "do_rescale": False, "do_normalize": False}
    data = document(image_processor_type="CLIPImageProcessorFast", data_format="channels_first", do_pad=False, **off)
    assert ImagePreprocessing.from_preprocessor_config(data) == ImagePreprocessing()


def test_the_forms_of_sizes_and_colours() -> None:
    read = ImagePreprocessing.from_preprocessor_config
    assert read(document(size=[8, 9])).size == (8, 9)
    assert read(document(size=8)).size == (8, 8)
    assert read(document(size=8, default_to_square=False)).shortest_edge == 8
    edges = read(document(size={"shortest_edge": 8, "longest_edge": 12}))
    assert (edges.shortest_edge, edges.longest_edge) == (8, 12)
    assert read(document(do_center_crop=True, crop_size={"height": 3, "width": 4})).crop == (3, 4)
    assert read(document(image_mean=0.25)).mean == (0.25, 0.25, 0.25)


def test_an_old_document_takes_the_class_from_the_caller() -> None:
    data = b'{"do_normalize": true, "do_resize": true, "size": 224}'
    with pytest.raises(UnknownPreprocessorError, match="pass processor_type"):
        ImagePreprocessing.from_preprocessor_config(data)
    given = ImagePreprocessing.from_preprocessor_config(data, processor_type="ViTFeatureExtractor")
    assert given.size == (224, 224)


CONVNEXT = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 40}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "image processor class 'DetrImageProcessor'"),
        ({"image_processor_type": ["ViTImageProcessor"]}, "image processor class"),
        ({"resample": 1}, "resample 1"),
        ({"do_pad": True}, "field 'do_pad' with the value True"),
        ({"do_flip_channel_order": False}, "field 'do_flip_channel_order'"),
        ({"data_format": "channels_last"}, "field 'data_format'"),
        ({"size": {"longest_edge": 8}}, "size {'longest_edge': 8}"),
        ({"size": {"max_height": 8, "max_width": 8}}, "size {'max_height'"),
        ({"size": {"shortest_edge": 8, "height": 8}}, "size {'shortest_edge'"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 8}}, "crop_size {'shortest_edge': 8}"),
        ({"crop_pct": 0.9}, "field 'crop_pct'"),
        ({**CONVNEXT, "do_center_crop": True, "crop_size": 8}, "do_center_crop after crop_pct"),
        ({**CONVNEXT, "size": {"height": 8, "width": 8}}, "shortest_edge"),
        ({**CONVNEXT, "crop_pct": 0}, "crop_pct"),
    ],
)
def test_what_is_not_done_exactly_is_not_known(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownPreprocessorError) as caught:
        ImagePreprocessing.from_preprocessor_config(document(**fields))
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found 0 bytes"),
        (b"\xff", "expected UTF-8, found byte 0xff at 0"),
        (b"{", "expected JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "expected a JSON object, found list"),
        (b'{"size": 1, "size": 2}', "found 'size' twice"),
        (document(do_resize=1), "expected true or false at do_resize, found 1"),
        (document(resample="bilinear"), "expected an integer at resample"),
        (document(size={"height": 8, "width": "8"}), "expected an integer at size.width, found '8'"),
        (document(size=[1, 2, 3]), "expected an integer at size.height"),
        (document(size=0), "size: expected height and width"),
        (document(do_center_crop=True), "expected crop_size with do_center_crop"),
        (document(image_mean=[1, 2]), "expected three numbers at image_mean"),
        (document(image_std=[0, 1, 1]), "std: expected numbers other than 0"),
        (document(rescale_factor=10**400), "expected a number at rescale_factor"),
        (document(rescale_factor=True), "expected a number at rescale_factor, found True"),
    ],
)
def test_a_broken_document_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(PreprocessorDataError, match=message):
        ImagePreprocessing.from_preprocessor_config(data)


def test_the_classes_are_those_of_the_installed_transformers() -> None:
    pytest.importorskip("PIL")
    for name, defaults in config.CLASSES.items():
        processor = getattr(pytest.importorskip("transformers"), f"{name}ImageProcessorPil")()
        assert processor.resample == defaults.resample
        assert dict(processor.size) == defaults.size
        assert processor.default_to_square == defaults.square
        assert bool(processor.do_center_crop) == (defaults.crop is not None)
        assert [list(processor.image_mean), list(processor.image_std)] == [defaults.mean, defaults.std]
