"""Element types, tensor specifications and the signature of a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeonnx.spec.parse import Node

Dimension = int | str
"""A fixed size, or the name of a size that may differ from call to call (`batch`, `sequence`)."""


class DType(Enum):
    """An element type: its name in ONNX and NumPy, in the Open Inference Protocol v2, and its size in bytes.

    Sizes: ONNX `TensorProto.DataType`. Protocol names: Open Inference Protocol v2, "Tensor Data Types".
    """

    BOOL = ("bool", "BOOL", 1)
    UINT8 = ("uint8", "UINT8", 1)
    UINT16 = ("uint16", "UINT16", 2)
    UINT32 = ("uint32", "UINT32", 4)
    UINT64 = ("uint64", "UINT64", 8)
    INT8 = ("int8", "INT8", 1)
    INT16 = ("int16", "INT16", 2)
    INT32 = ("int32", "INT32", 4)
    INT64 = ("int64", "INT64", 8)
    FLOAT16 = ("float16", "FP16", 2)
    BFLOAT16 = ("bfloat16", "BF16", 2)
    FLOAT = ("float32", "FP32", 4)
    DOUBLE = ("float64", "FP64", 8)
    STRING = ("string", "BYTES", 0)

    def __init__(self, label: str, protocol_name: str, itemsize: int) -> None:
        self.label = label
        self.protocol_name = protocol_name
        self.itemsize = itemsize

    @classmethod
    def from_label(cls, label: str) -> DType:
        """The type called `label` (`float32`, `int64`, ...); raises `ValueError` for any other text."""
        for member in cls:
            if member.label == label:
                return member
        raise ValueError(f"unknown element type {label!r}; known: {', '.join(m.label for m in cls)}")

    @classmethod
    def from_protocol_name(cls, name: str) -> DType:
        """The type that the Open Inference Protocol calls `name` (`FP32`, `BYTES`, ...); `ValueError` otherwise."""
        for member in cls:
            if member.protocol_name == name:
                return member
        raise ValueError(f"unknown datatype {name!r}; known: {', '.join(m.protocol_name for m in cls)}")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Name, element type and shape of one input or output. A dimension that is a string is dynamic."""

    name: str
    dtype: DType
    shape: tuple[Dimension, ...]

    def mismatch(self, shape: Sequence[int], sizes: dict[str, int] | None = None) -> str | None:
        """Why `shape` does not fit this specification, or None if it does.

        Args:
            shape: The shape of an actual tensor.
            sizes: Sizes that dynamic dimensions have taken so far. Names seen for the first time are added, so that
                one dictionary over all inputs of a call checks that they agree.
        """
        if len(shape) != len(self.shape):
            return f"{len(self.shape)} dimensions {self.shape_text()} expected, {len(shape)} found {list(shape[:8])}"
        for axis, (want, have) in enumerate(zip(self.shape, shape, strict=True)):
            if have < 1:
                return f"dimension {axis} is {have}; every dimension must be at least 1"
            bound = want if isinstance(want, int) else (sizes or {}).get(want, have)
            if have != bound:
                return f"dimension {axis} ({want}) must be {bound}, found {have}"
            if sizes is not None and isinstance(want, str):
                sizes[want] = have
        return None

    def shape_text(self) -> str:
        """The shape as people write it: `[batch, sequence, 384]`."""
        return "[" + ", ".join(str(dimension) for dimension in self.shape) + "]"

    def protocol_shape(self) -> list[int]:
        """The shape as the Open Inference Protocol writes it: -1 for a dynamic dimension."""
        return [dimension if isinstance(dimension, int) else -1 for dimension in self.shape]


@dataclass(frozen=True, kw_only=True)
class ModelSignature:
    """The inputs and outputs of a graph, in the graph's order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def input(self, name: str) -> TensorSpec | None:
        """The input of that name, or None."""
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """The output of that name, or None."""
        return next((spec for spec in self.outputs if spec.name == name), None)

    @classmethod
    def from_dict(cls, node: Node) -> ModelSignature:
        """Read a signature that `to_dict` wrote."""
        node.only(("inputs", "outputs"))
        return cls(inputs=_read_specs(node.required("inputs")), outputs=_read_specs(node.required("outputs")))

    def to_dict(self) -> dict[str, object]:
        """The signature as JSON: lists of name, dtype and shape."""
        return {
            kind: [{"name": spec.name, "dtype": spec.dtype.label, "shape": list(spec.shape)} for spec in specs]
            for kind, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }


def _read_specs(node: Node) -> tuple[TensorSpec, ...]:
    specs = tuple(_read_spec(item) for item in node.items())
    if not specs or len({spec.name for spec in specs}) != len(specs):
        node.fail("must name at least one tensor, each once")
    return specs


def _read_spec(node: Node) -> TensorSpec:
    node.only(("name", "dtype", "shape"))
    try:
        dtype = DType.from_label(node.text("dtype"))
    except ValueError as error:
        node.required("dtype").fail(str(error))
    shape: list[int | str] = []
    for item in node.required("shape").items():
        if isinstance(item.value, str) and item.value:
            shape.append(item.value)
        elif item.typed(int) < 1:
            item.fail("is no dimension", expected="a positive integer or a name")
        else:
            shape.append(item.typed(int))
    return TensorSpec(name=node.text("name"), dtype=dtype, shape=tuple(shape))
