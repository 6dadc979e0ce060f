from __future__ import annotations

import numpy as np
import pytest

from device_agent.api.open_inference.datatypes import (
    MAX_RANK,
    NUMPY_TYPES,
    WITHOUT_JSON,
    array_from_binary,
    array_from_json,
    array_to_binary,
    array_to_json,
    element_count,
    strings_from_binary,
    strings_to_binary,
)
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.tensor import DType

NUMBERS = [dtype for dtype in DType if dtype is not DType.STRING]


def test_every_datatype_is_there() -> None:
    assert set(NUMPY_TYPES) == set(NUMBERS)
    for dtype, kind in NUMPY_TYPES.items():
        assert kind.itemsize == (4 if dtype is DType.BFLOAT16 else dtype.itemsize)


def test_element_count() -> None:
    assert element_count([], "shape") == 1
    assert element_count([2, 0, 5], "shape") == 0
    assert element_count([2**62, 2**62], "shape") == 2**124
    with pytest.raises(InvalidRequestError, match=r"shape\[1\]: is no dimension; expected at least 0; found -1"):
        element_count([1, -1], "shape")
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_RANK}; found 33"):
        element_count([1] * (MAX_RANK + 1), "shape")


@pytest.mark.parametrize(
    ("dtype", "data", "want"),
    [
        (DType.BOOL, "0100", [True, False]),
        (DType.UINT16, "0100ff00", [1, 255]),
        (DType.INT16, "feff", [-2]),
        (DType.INT64, "0100000000000080", [-(2**63) + 1]),
        (DType.FLOAT16, "003c", [1.0]),
        (DType.BFLOAT16, "803f00c0", [1.0, -2.0]),
        (DType.FLOAT, "0000803f", [1.0]),
        (DType.DOUBLE, "000000000000f03f", [1.0]),
    ],
)
def test_known_bytes(dtype: DType, data: str, want: list[object]) -> None:
    """The bytes are written down by hand, so that codec and test do not share a mistake."""
    raw = bytes.fromhex(data)
    found = array_from_binary(memoryview(raw), dtype, len(want), "x")
    assert found.tolist() == want
    assert bytes(array_to_binary(found, dtype)) == raw


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_wrong_size(dtype: DType, difference: int) -> None:
    data = memoryview(bytes(3 * dtype.itemsize + difference))
    with pytest.raises(InvalidRequestError, match="another size than its shape and datatype say"):
        array_from_binary(data, dtype, 3, "x")


def test_no_copy_where_the_data_is_aligned() -> None:
    data = bytearray(np.arange(4, dtype="<i8").tobytes() + b"?")
    aligned = array_from_binary(memoryview(data)[:32], DType.INT64, 4, "x")
    assert np.shares_memory(aligned, np.frombuffer(data, dtype=np.uint8))
    shifted = array_from_binary(memoryview(data)[1:], DType.INT64, 4, "x")
    assert shifted.flags.aligned
    assert not np.shares_memory(shifted, np.frombuffer(data, dtype=np.uint8))


def test_a_byte_that_is_no_boolean() -> None:
    with pytest.raises(InvalidRequestError, match="0 or 1 in each byte"):
        array_from_binary(memoryview(b"\x00\x02"), DType.BOOL, 2, "x")


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, np.inf, -np.inf, np.nan], dtype=np.float32)
    found = array_from_binary(memoryview(bytes(array_to_binary(values, DType.BFLOAT16))), DType.BFLOAT16, 6, "x")
    assert found[:2].tolist() == [1.0, 1 + 2**-6]
    assert found[2:5].tolist() == [np.inf, np.inf, -np.inf]
    assert np.isnan(found[5])


def test_a_nan_whose_payload_is_in_the_low_half_stays_one() -> None:
    value = np.array([0x7F800001], dtype="<u4").view("<f4")
    raw = bytes(array_to_binary(value, DType.BFLOAT16))
    assert np.isnan(array_from_binary(memoryview(raw), DType.BFLOAT16, 1, "x")[0])


def test_strings() -> None:
    values = [b"", b"a", "ß".encode(), b"\x00\xff"]
    data = strings_to_binary(values)
    assert data == bytes.fromhex("00000000 01000000 61 02000000 c39f 02000000 00ff")
    assert strings_from_binary(memoryview(data), 4, "x") == values


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 1, "is too short for its shape"),
        (b"\x00" * 8, 1, "goes on after its last element; expected 4 bytes for 1 elements; found 8"),
        (b"\x02\x00\x00\x00a", 1, "element 0: ends within an element; expected 2 bytes; found 1 bytes left"),
        (b"\xff\xff\xff\xffa", 1, "expected 4,294,967,295 bytes"),
        (b"\x03\x00\x00\x00abc\x00", 2, "element 1: ends within an element"),
        (b"\x00" * 8, 2**70, "is too short for its shape"),
        (b"a", 0, "goes on after its last element"),
    ],
)
def test_strings_that_do_not_add_up(data: bytes, count: int, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        strings_from_binary(memoryview(data), count, "x")


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (DType.BOOL, [True, False]),
        (DType.UINT8, [0, 255]),
        (DType.INT8, [-128, 127]),
        (DType.UINT64, [2**64 - 1]),
        (DType.INT64, [-(2**63)]),
        (DType.FLOAT, [1, 0.5]),
        (DType.DOUBLE, [1e308, -1]),
        (DType.INT32, []),
    ],
)
def test_json(dtype: DType, values: list[object]) -> None:
    found = array_from_json(values, dtype, "x")
    assert found.dtype == NUMPY_TYPES[dtype]
    assert found.tolist() == values
    assert array_to_json(found, dtype, "x").tolist() == values


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        (DType.BOOL, [1], r"x\[0\]: is of the wrong type; expected true or false; found an integer"),
        (DType.UINT8, [256], "does not fit; expected numbers of the datatype UINT8"),
        (DType.UINT8, [-1], "does not fit"),
        (DType.INT64, [2**63], "does not fit"),
        (DType.INT64, [0, 1.0], r"x\[1\]: is of the wrong type; expected an integer; found a number"),
        (DType.INT64, [True], "expected an integer; found true or false"),
        (DType.FLOAT, [1e39], "does not fit; expected numbers of the datatype FP32"),
        (DType.DOUBLE, [10**400], "does not fit"),
        (DType.FLOAT, [True], "expected a number; found true or false"),
        (DType.FLOAT, [0.5, None], r"x\[1\]: is of the wrong type; expected a number; found null"),
    ],
)
def test_json_that_does_not_fit(dtype: DType, values: list[object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        array_from_json(values, dtype, "x")


@pytest.mark.parametrize("dtype", WITHOUT_JSON)
def test_half_precision_has_no_form_in_json(dtype: DType) -> None:
    with pytest.raises(InvalidRequestError, match=f"{dtype.protocol_name} has no form in JSON"):
        array_from_json([1.0], dtype, "x")
    with pytest.raises(InvalidRequestError, match="ask for the output in binary form"):
        array_to_json(np.ones(1, np.float32), dtype, "x")
