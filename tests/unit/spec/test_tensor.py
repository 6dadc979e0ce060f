"""Element types and the shape rule."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec

IDS = TensorSpec(name="input_ids", dtype=DType.INT64, shape=("batch", "sequence"))
OUT = TensorSpec(name="out", dtype=DType.FLOAT, shape=("batch", 4))


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in (DType.STRING, DType.BFLOAT16)])
def test_sizes_and_names_are_those_of_numpy(dtype: DType) -> None:
    assert np.dtype(dtype.label).itemsize == dtype.itemsize


@pytest.mark.parametrize("dtype", DType)
def test_every_type_is_an_onnx_type_of_that_name(dtype: DType) -> None:
    assert dtype.name in onnx.TensorProto.DataType.keys()  # noqa: SIM118 - an enum wrapper, not a dictionary


@pytest.mark.parametrize("dtype", DType)
def test_both_names_lead_back(dtype: DType) -> None:
    assert DType.from_label(dtype.label) is dtype
    assert DType.from_protocol_name(dtype.protocol_name) is dtype


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown element type 'float'; known: bool, uint8"):
        DType.from_label("float")
    with pytest.raises(ValueError, match="unknown datatype 'fp32'; known: BOOL, UINT8"):
        DType.from_protocol_name("fp32")


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((2, 4), None),
        ((2,), r"2 dimensions \[batch, 4\] expected, 1 found \[2\]"),
        ((2, 4, 1), "2 dimensions"),
        ((2, 5), r"dimension 1 \(4\) must be 4, found 5"),
        ((0, 4), "dimension 0 is 0"),
        ((-1, 4), "dimension 0 is -1"),
    ],
)
def test_shapes_are_held_against_the_specification(shape: tuple[int, ...], reason: str | None) -> None:
    found = OUT.mismatch(shape)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)


def test_named_dimensions_agree_over_a_call() -> None:
    sizes: dict[str, int] = {}
    assert IDS.mismatch((3, 7), sizes) is None
    assert sizes == {"batch": 3, "sequence": 7}
    assert OUT.mismatch((3, 4), sizes) is None
    assert OUT.mismatch((2, 4), sizes) == "dimension 0 (batch) must be 3, found 2"


def test_shapes_as_text_and_in_the_protocol() -> None:
    assert OUT.shape_text() == "[batch, 4]"
    assert OUT.protocol_shape() == [-1, 4]


def test_a_signature_finds_by_name() -> None:
    signature = ModelSignature(inputs=(IDS,), outputs=(OUT,))
    assert signature.input("input_ids") is IDS
    assert signature.input("out") is None
    assert signature.output("out") is OUT
    assert signature.output("input_ids") is None
