"""A graph between two stages: serialized, with its large tensors apart, each named by its content.

The same form is what a bundle holds, so what was checked and measured is what ships. Two graphs that share a weight
share its bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from edgeonnx.errors import ValidationError
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec

if TYPE_CHECKING:
    from pathlib import Path

# Smaller tensors stay in the graph: they are shapes and scalars that ONNX Runtime wants to fold, and a file for each
# would cost more than it saves.
MIN_EXTERNAL_BYTES = 1024

_DTYPES = {
    ir.DataType.BOOL: DType.BOOL,
    ir.DataType.INT32: DType.INT32,
    ir.DataType.INT64: DType.INT64,
    ir.DataType.FLOAT16: DType.FLOAT16,
    ir.DataType.BFLOAT16: DType.BFLOAT16,
    ir.DataType.FLOAT: DType.FLOAT,
    ir.DataType.DOUBLE: DType.DOUBLE,
}


@dataclass(frozen=True, kw_only=True)
class StoredGraph:
    """A graph ready to be written.

    Attributes:
        model: The serialized `ModelProto`; large tensors are external, each named by the SHA-256 of its bytes.
        tensors: The external tensors' bytes by that name. A tensor that is used twice is here once.
        signature: Inputs and outputs.
        opset: Version of the standard operator set.
        node_count: Nodes of the main graph.
        domains: Operator sets besides the standard one.
    """

    model: bytes
    tensors: dict[str, bytes]
    signature: ModelSignature
    opset: int
    node_count: int
    domains: tuple[str, ...]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all external tensors."""
        return sum(len(data) for data in self.tensors.values())

    def write(self, folder: Path, name: str = "model.onnx") -> Path:
        """Write the graph beside its tensors, so that every tool of the field can open it.

        Args:
            folder: Is made if it is not there; tensors that it holds already are not written again.
            name: The graph's file name. Graphs that share a folder share their tensors' files.

        Returns:
            The path of the graph.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for digest, data in self.tensors.items():
            if not (folder / digest).exists():
                (folder / digest).write_bytes(data)
        path = folder / name
        path.write_bytes(self.model)
        return path


def store_graph(model: ir.Model) -> StoredGraph:
    """Serialize a model with its large tensors moved out.

    Args:
        model: The model; its tensors may be in memory or external. Its initializers are replaced.

    Raises:
        ValidationError: An input or output has no type or shape that a bundle can state.
    """
    signature = ModelSignature(
        inputs=tuple(_spec(value) for value in model.graph.inputs),
        outputs=tuple(_spec(value) for value in model.graph.outputs),
    )
    node_count = len(model.graph)
    tensors = _externalize(model.graph)
    return StoredGraph(
        model=ir.to_proto(model).SerializeToString(deterministic=True),
        tensors=tensors,
        signature=signature,
        opset=model.opset_imports[""],
        node_count=node_count,
        domains=tuple(sorted(domain for domain in model.opset_imports if domain)),
    )


def restore_graph(graph: StoredGraph) -> ir.Model:
    """The model with all tensors in memory, free to be changed: the inverse of `store_graph`."""
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(graph.model))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        proto = onnx.TensorProto(
            name=str(value.name),
            dims=[int(size) for size in tensor.shape.numpy()],
            data_type=int(tensor.dtype),
            raw_data=graph.tensors[str(tensor.location)],
        )
        value.const_value = ir.from_proto(proto)
    return model


def _spec(value: ir.Value) -> TensorSpec:
    dtype = None if value.dtype is None else _DTYPES.get(value.dtype)
    if dtype is None or value.shape is None:
        raise ValidationError("has no type or shape that is supported", where=str(value.name), found=str(value.dtype))
    shape = tuple(dimension if isinstance(dimension, int) else str(dimension.value) for dimension in value.shape.dims)
    return TensorSpec(name=str(value.name), dtype=dtype, shape=shape)


def _externalize(graph: ir.Graph) -> dict[str, bytes]:
    """Replace large initializers by references to files that are named by their content."""
    tensors: dict[str, bytes] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < MIN_EXTERNAL_BYTES:
            continue
        data = tensor.tobytes()
        digest = hashlib.sha256(data).hexdigest()
        tensors[digest] = data
        value.const_value = ir.ExternalTensor(
            location=digest,
            offset=0,
            length=len(data),
            dtype=tensor.dtype,
            shape=ir.Shape(list(tensor.shape.numpy())),
            name=str(value.name),
        )
    return tensors
