"""The tensors of a request before anything is known of the model: each with its name, its shape and its data.

What a client sent (JSON values, binary data, gRPC's typed contents) is behind `TensorData`, so that everything after it
is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from device_agent.api.open_inference.datatypes import (
    array_from_binary,
    array_from_json,
    element_count,
    strings_from_binary,
)
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.api.open_inference.datatypes import Array
    from edgeonnx.spec.tensor import DType


class TensorData(Protocol):
    """The data of one tensor, in whatever form it came.

    Attributes:
        where: The field that holds it, for errors.
    """

    @property
    def where(self) -> str:
        """See above."""
        ...

    def array(self, datatype: DType, shape: Sequence[int]) -> Array:
        """The elements as an array of that shape; see `datatypes` for its type.

        Args:
            datatype: Any but BYTES.
            shape: Sizes that are not negative.

        Raises:
            InvalidRequestError: The elements are not of that type, or not that many.
        """
        ...

    def texts(self, shape: Sequence[int]) -> Sequence[object]:
        """The elements of a BYTES tensor of that shape, flat: texts if the client sent what it should.

        Raises:
            InvalidRequestError: They are not that many, or not UTF-8.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RawTensor:
    """One input whose form is right; its data is not looked into yet.

    Attributes:
        name: Its name.
        datatype: What the client calls its datatype.
        shape: What the client says; any integers.
        data: Its data.
        where: The element of `inputs`, for errors.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    data: TensorData
    where: str


@dataclass(frozen=True, kw_only=True)
class JsonData:
    """Values in JSON, flat or nested as the shape is."""

    values: list[object]
    where: str

    def array(self, datatype: DType, shape: Sequence[int]) -> Array:
        """See `TensorData.array`."""
        return array_from_json(self._flat(shape), datatype, self.where).reshape(shape)

    def texts(self, shape: Sequence[int]) -> list[object]:
        """See `TensorData.texts`."""
        return self._flat(shape)

    def _flat(self, shape: Sequence[int]) -> list[object]:
        data, depth = self.values, 1
        while data and all(type(item) is list for item in data):
            depth += 1
            if depth > len(shape):
                raise InvalidRequestError(
                    "is nested deeper than the shape", where=self.where, expected=f"at most {len(shape)} levels"
                )
            data = [value for row in data if isinstance(row, list) for value in row]
        check_count(len(data), shape, self.where)
        return data


@dataclass(frozen=True, kw_only=True)
class BinaryData:
    """Elements in the protocol's binary form."""

    data: memoryview
    where: str

    def array(self, datatype: DType, shape: Sequence[int]) -> Array:
        """See `TensorData.array`."""
        count = element_count(shape, self.where)
        return array_from_binary(self.data, datatype, count, self.where).reshape(shape)

    def texts(self, shape: Sequence[int]) -> list[str]:
        """See `TensorData.texts`."""
        return decoded(strings_from_binary(self.data, element_count(shape, self.where), self.where), self.where)


def decoded(values: Sequence[bytes], where: str) -> list[str]:
    """BYTES as texts.

    Raises:
        InvalidRequestError: One is not UTF-8.
    """
    texts = []
    for index, value in enumerate(values):
        try:
            texts.append(str(value, "utf-8"))
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                "is no text",
                where=f"{where}, element {index}",
                expected="UTF-8",
                found=f"another byte at {error.start}",
            ) from None
    return texts


def check_count(count: int, shape: Sequence[int], where: str) -> None:
    """Refuse another number of elements than the shape says.

    Raises:
        InvalidRequestError: They are not that many.
    """
    expected = element_count(shape, where)
    if count != expected:
        raise InvalidRequestError(
            "has another number of elements than the shape says",
            where=where,
            expected=f"{expected} for {list(shape)}",
            found=str(count),
        )
