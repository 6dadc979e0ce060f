"""The protocol's datatypes: how their values stand in JSON and in binary form, both ways.

Binary form (Open Inference Protocol v2, "Binary Tensor Data Extension"; gRPC's raw contents are the same): elements in
row-major order without padding, little-endian; BOOL one byte that is 0 or 1; BYTES each element's length as an unsigned
integer of 4 bytes, then its bytes.

FP16 and BF16 have no JSON form in the protocol, so they are refused there. NumPy has no bfloat16: BF16 is read into
float32, which holds every value of it, and written by rounding to nearest, ties to even.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from device_agent.api.edge.body import JSON_NAMES, check_integers, of_type
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.tensor import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.generic]

MAX_RANK = 32
"""Most dimensions of a shape: more than any model has, and few enough that their product is quickly computed."""

NUMPY_TYPES: dict[DType, np.dtype[np.generic]] = {
    DType.BOOL: np.dtype("?"),
    DType.UINT8: np.dtype("u1"),
    DType.UINT16: np.dtype("<u2"),
    DType.UINT32: np.dtype("<u4"),
    DType.UINT64: np.dtype("<u8"),
    DType.INT8: np.dtype("i1"),
    DType.INT16: np.dtype("<i2"),
    DType.INT32: np.dtype("<i4"),
    DType.INT64: np.dtype("<i8"),
    DType.FLOAT16: np.dtype("<f2"),
    DType.BFLOAT16: np.dtype("<f4"),
    DType.FLOAT: np.dtype("<f4"),
    DType.DOUBLE: np.dtype("<f8"),
}
"""Element type of the arrays that hold a datatype. BYTES are lists, not arrays."""

WITHOUT_JSON = (DType.FLOAT16, DType.BFLOAT16)
SEND_BINARY = "use the binary tensor data extension (tritonclient: binary_data=True)"

_LENGTH = struct.Struct("<I")


def element_count(shape: Sequence[int], where: str) -> int:
    """Number of elements of a shape; 0 where a dimension is 0, 1 for no dimension.

    Raises:
        InvalidRequestError: A dimension is negative, or there are too many.
    """
    if len(shape) > MAX_RANK:
        raise InvalidRequestError(
            "has too many dimensions", where=where, expected=f"at most {MAX_RANK}", found=f"{len(shape):,}"
        )
    count = 1
    for axis, size in enumerate(shape):
        if size < 0:
            raise InvalidRequestError(
                "is no dimension", where=f"{where}[{axis}]", expected="at least 0", found=str(size)[:40]
            )
        count *= size
    return count


def array_from_binary(data: memoryview, datatype: DType, count: int, where: str) -> Array:
    """Numbers (or booleans) in binary form.

    Args:
        data: The tensor's bytes.
        datatype: Any but BYTES.
        count: Elements that the shape says.
        where: The field, for errors.

    Returns:
        Shape (count,), of the type in `NUMPY_TYPES`; it shares the memory of `data` where that is aligned for the
        type, and is then read-only.

    Raises:
        InvalidRequestError: The sizes do not add up, or a boolean is neither 0 nor 1.
    """
    expected = count * datatype.itemsize
    if len(data) != expected:
        raise InvalidRequestError(
            "has another size than its shape and datatype say",
            where=where,
            expected=f"{expected:,} bytes for {count:,} elements of {datatype.protocol_name}",
            found=f"{len(data):,}",
        )
    if datatype is DType.BFLOAT16:
        wide: Array = (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")
        return wide
    if datatype is DType.BOOL and (np.frombuffer(data, dtype=np.uint8) > 1).any():
        raise InvalidRequestError("holds a byte that is no boolean", where=where, expected="0 or 1 in each byte")
    array: Array = np.frombuffer(data, dtype=NUMPY_TYPES[datatype])
    return array if array.flags.aligned else array.copy()


def strings_from_binary(data: memoryview, count: int, where: str) -> list[bytes]:
    """The elements of a BYTES tensor in binary form.

    Args:
        data: The tensor's bytes.
        count: Elements that the shape says.
        where: The field, for errors.

    Raises:
        InvalidRequestError: The lengths do not add up to `data`.
    """
    end = len(data)
    if count * _LENGTH.size > end:
        raise InvalidRequestError(
            "is too short for its shape",
            where=where,
            expected=f"at least {_LENGTH.size} bytes for each of {count:,} elements",
            found=f"{end:,} bytes",
        )
    values: list[bytes] = []
    at = 0
    for index in range(count):
        start = at + _LENGTH.size
        size = _LENGTH.unpack_from(data, at)[0] if start <= end else 0
        at = start + size
        if at > end:
            found = f"{max(0, end - start):,} bytes left"
            raise InvalidRequestError(
                "ends within an element", where=f"{where}, element {index}", expected=f"{size:,} bytes", found=found
            )
        values.append(bytes(data[start:at]))
    if at != end:
        raise InvalidRequestError(
            "goes on after its last element",
            where=where,
            expected=f"{at:,} bytes for {count:,} elements",
            found=f"{end:,}",
        )
    return values


def array_from_json(values: Sequence[object], datatype: DType, where: str) -> Array:
    """Numbers (or booleans) that JSON gave.

    Args:
        values: The elements, flat.
        datatype: Any but BYTES.
        where: The field, for errors.

    Returns:
        Shape (len(values),), of the type in `NUMPY_TYPES`.

    Raises:
        InvalidRequestError: An element is of another type or does not fit, or the datatype has no JSON form.
    """
    if datatype in WITHOUT_JSON:
        raise InvalidRequestError(
            f"{datatype.protocol_name} has no form in JSON", where=where, expected="binary data", hint=SEND_BINARY
        )
    kind = NUMPY_TYPES[datatype]
    if kind.kind == "f":
        _check_numbers(values, where)
    elif kind.kind == "b":
        for index, value in enumerate(values):
            of_type(value, bool, f"{where}[{index}]")
    else:
        check_integers(values, where)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype=kind)
    except OverflowError:
        raise _does_not_fit(datatype, where) from None
    if kind.kind == "f" and not np.isfinite(array).all():
        raise _does_not_fit(datatype, where)
    return array


def _check_numbers(values: Sequence[object], where: str) -> None:
    for index, value in enumerate(values):
        if type(value) not in (int, float):
            found = JSON_NAMES.get(type(value), "another value")
            raise InvalidRequestError(
                "is of the wrong type", where=f"{where}[{index}]", expected="a number", found=found
            )


def _does_not_fit(datatype: DType, where: str) -> InvalidRequestError:
    return InvalidRequestError(
        "holds a number that does not fit", where=where, expected=f"numbers of the datatype {datatype.protocol_name}"
    )


def array_to_binary(array: Array, datatype: DType) -> memoryview:
    """The binary form of numbers or booleans, row-major; a view of the array where it has that form already."""
    if datatype is DType.BFLOAT16:
        array = _to_bfloat16(array)
    else:
        array = np.ascontiguousarray(array, dtype=NUMPY_TYPES[datatype])
    return array.reshape(-1).view(np.uint8).data


def _to_bfloat16(array: Array) -> Array:
    """The upper halves of float32, rounded to nearest, ties to even; a NaN stays one."""
    wide = np.ascontiguousarray(array, dtype="<f4")
    bits = wide.view("<u4")
    # The overflow of the sum is only that of a NaN, which is written apart.
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return np.where(np.isnan(wide), ((bits >> 16) | 0x40).astype("<u2"), rounded)


def strings_to_binary(values: Sequence[bytes]) -> bytes:
    """The binary form of the elements of a BYTES tensor."""
    return b"".join(part for value in values for part in (_LENGTH.pack(len(value)), value))


def array_to_json(array: Array, datatype: DType, where: str) -> Array:
    """What `orjson` (with `OPT_SERIALIZE_NUMPY`) writes as the JSON form: flat, contiguous, in native byte order.

    Raises:
        InvalidRequestError: The datatype has no JSON form.
    """
    if datatype in WITHOUT_JSON:
        raise InvalidRequestError(
            f"{datatype.protocol_name} has no form in JSON",
            where=where,
            hint=f"ask for the output in binary form: {SEND_BINARY}",
        )
    return np.ascontiguousarray(array, dtype=NUMPY_TYPES[datatype].newbyteorder("=")).reshape(-1)
