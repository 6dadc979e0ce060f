"""Making an exported graph fit to ship: names that mean something, no traces of the build host, tensors as files.

The result depends on nothing but the model and the versions of the tools, so two builds give the same bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeonnx import __version__
from edgeonnx.errors import ExportError
from edgeonnx.export.repairs import repair_graph
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

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
class ExportedGraph:
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


def finish_graph(model: ir.Model, *, axes: Sequence[str]) -> ExportedGraph:
    """Clean an exported model and move its tensors out.

    Args:
        model: What the exporter made; it is changed.
        axes: Names for the leading dynamic axes of every input, in order (`batch`, `sequence`).

    Raises:
        ExportError: An input's axis that must be dynamic is fixed, or a type is not supported.
    """
    repair_graph(model.graph)
    _name_axes(model.graph, axes)
    _strip(model)
    signature = ModelSignature(
        inputs=tuple(_spec(value) for value in model.graph.inputs),
        outputs=tuple(_spec(value) for value in model.graph.outputs),
    )
    node_count = len(model.graph)
    tensors = _externalize(model.graph)
    return ExportedGraph(
        model=ir.to_proto(model).SerializeToString(deterministic=True),
        tensors=tensors,
        signature=signature,
        opset=model.opset_imports[""],
        node_count=node_count,
        domains=tuple(sorted(domain for domain in model.opset_imports if domain)),
    )


def _name_axes(graph: ir.Graph, axes: Sequence[str]) -> None:
    """Replace the tracer's symbols (`s18`) by names that people know, everywhere in the graph."""
    names: dict[str, str] = {}
    for value in graph.inputs:
        for axis, name in enumerate(axes):
            dimension = value.shape[axis] if value.shape is not None else None
            if not isinstance(dimension, ir.SymbolicDim) or dimension.value is None:
                raise ExportError(
                    f"the exporter fixed the {name} axis of an input",
                    where=str(value.name),
                    expected="a dynamic axis",
                    found=str(dimension),
                    hint="the model's code branches on that size; such a graph would be wrong for any other size",
                )
            names.setdefault(dimension.value, name)
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        if value.shape is None:
            continue
        dimensions = [
            names.get(dimension.value or "", dimension) if isinstance(dimension, ir.SymbolicDim) else dimension
            for dimension in value.shape
        ]
        value.shape = ir.Shape(dimensions)


def _strip(model: ir.Model) -> None:
    """Remove what the exporter wrote about the build host (stack traces with paths, module names, versions)."""
    model.metadata_props.clear()
    model.doc_string = None
    model.producer_name = "edgeonnx"
    model.producer_version = __version__
    model.graph.metadata_props.clear()
    model.graph.doc_string = None
    model.graph.name = "main"
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            value.doc_string = None


def _spec(value: ir.Value) -> TensorSpec:
    dtype = None if value.dtype is None else _DTYPES.get(value.dtype)
    if dtype is None or value.shape is None:
        raise ExportError("has no type or shape that is supported", where=str(value.name), found=str(value.dtype))
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
