"""Is a serialized graph valid ONNX, and does it have the inputs and outputs that its task promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from edgeonnx.errors import UnsafePathError, ValidationError, first_line
from edgeonnx.spec.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from edgeonnx.spec.generation import CacheShape
    from edgeonnx.spec.tensor import ModelSignature

RUNTIME_OPERATORS = ("SimplifiedLayerNormalization",)
"""Operators that ONNX Runtime has in the standard domain, though the standard has not; its own tools write them."""
RUNTIME_DOMAIN = "com.microsoft"
CACHE_TYPES = ("float32", "float16")
CACHE_RANK = 4


def check_graph(model: bytes, tensors: Path, signature: ModelSignature, outputs: Sequence[str]) -> None:
    """Check an exported graph.

    Args:
        model: The serialized `ModelProto`.
        tensors: The folder with its external tensors.
        signature: The signature that the exporter reported.
        outputs: The outputs that the task promises.

    Raises:
        ValidationError: The graph breaks the ONNX standard, lacks a tensor, or has other inputs or outputs.
        UnsafePathError: External data points outside the folder.
    """
    proto = _parse(model, where="the exported graph")
    _check_locations(proto, tensors)
    try:
        onnx.checker.check_model(_without_data(proto), full_check=False)
    except onnx.checker.ValidationError as error:
        raise ValidationError("the graph is not valid ONNX", found=first_line(error)) from error
    names = [value.name for value in proto.graph.output]
    if names != list(outputs) or [spec.name for spec in signature.outputs] != list(outputs):
        raise ValidationError(
            "the graph has other outputs than its task", expected=str(list(outputs)), found=str(names)
        )
    inputs = [value.name for value in proto.graph.input]
    if inputs != [spec.name for spec in signature.inputs]:
        raise ValidationError(
            "the exporter dropped or renamed an input",
            expected=str([spec.name for spec in signature.inputs]),
            found=str(inputs),
        )


def check_locations(model: Path, tensors: Path | None) -> None:
    """Check where a graph on disk takes its external tensors from, before any runtime opens it.

    Args:
        model: The graph.
        tensors: The folder that must hold its external tensors; None for the graph's own folder.

    Raises:
        ValidationError: It is not ONNX, or a tensor is missing.
        UnsafePathError: External data points outside the folder.
    """
    _check_locations(load_graph(model), tensors or model.parent)


def check_signature(model: Path, signature: ModelSignature, caches: CacheShape | None = None) -> None:
    """Check that a graph on disk has the inputs and outputs that its component promises: names, types and ranks.

    Args:
        model: The graph.
        signature: What the component states.
        caches: The caches of a decoder, which its signature does not name; all are of one type, float or half.

    Raises:
        ValidationError: It is not ONNX, or has others.
    """
    graph = load_graph(model).graph
    held = {tensor.name for tensor in graph.initializer}
    inputs = [_port_text(value) for value in graph.input if value.name not in held]
    outputs = [_port_text(value) for value in graph.output]
    before, after = ((), ()) if caches is None else (caches.past_names, caches.present_names)
    dtype = CACHE_TYPES[any(CACHE_TYPES[True] in text for text in inputs)]
    for side, found, specs, names in (
        ("inputs", inputs, signature.inputs, before),
        ("outputs", outputs, signature.outputs, after),
    ):
        expected = [f"{spec.name} {spec.dtype.label} of rank {len(spec.shape)}" for spec in specs]
        expected += [f"{name} {dtype} of rank {CACHE_RANK}" for name in names]
        if expected != found:
            raise ValidationError(
                f"the graph has other {side} than its component.json says",
                where=str(model),
                expected=", ".join(expected),
                found=", ".join(found),
            )


def _port_text(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    if tensor.elem_type == onnx.TensorProto.STRING:
        dtype = "string"
    elif tensor.elem_type in onnx.helper.get_all_tensor_dtypes():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    else:
        dtype = f"type {tensor.elem_type}"
    return f"{value.name} {dtype} of rank {len(tensor.shape.dim)}"


def load_graph(model: Path) -> onnx.ModelProto:
    """Read a graph without its external data.

    Raises:
        ValidationError: It is not ONNX.
    """
    try:
        data = model.read_bytes()
    except OSError as error:
        raise ValidationError("cannot be read", where=str(model), found=error.strerror or str(error)) from None
    return _parse(data, where=str(model))


def _parse(data: bytes, *, where: str) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise ValidationError("is not an ONNX model", where=where, found=str(error)[:200]) from None
    if not proto.graph.node and not proto.graph.output:
        raise ValidationError("is not an ONNX model", where=where, found="no graph")
    stray = _first_non_text(proto)
    if stray is not None:
        raise ValidationError("is not an ONNX model", where=where, found=f"a string that is not UTF-8: {stray[:60]!r}")
    return proto


def _first_non_text(message: Message) -> bytes | None:
    """A string field that is not UTF-8: protobuf gives it as bytes, and no name or path may be that."""
    pending = [message]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                values = [value] if isinstance(value, (str, bytes)) else value
                stray = next((item for item in values if isinstance(item, bytes)), None)
                if stray is not None:
                    return stray
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                pending.extend([value] if isinstance(value, Message) else value)
    return None


def _check_locations(proto: onnx.ModelProto, tensors: Path) -> None:
    root = tensors.resolve()
    for name, location in external_locations(proto):
        check_external_path(location, where=f"tensor {name}")
        if (root / location).resolve() != root / location:
            raise UnsafePathError(
                "external data is behind a symbolic link", where=f"tensor {name}", expected="a file", found=location
            )
        if not (root / location).is_file():
            raise ValidationError(
                "an external tensor is missing", where=f"tensor {name}", expected=f"the file {location} in {tensors}"
            )


def external_locations(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Name and file of every external tensor: initializers and attributes, also in subgraphs and functions.

    A tensor that states several locations gives them all: which one a runtime takes is its own affair.
    """
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            stated = [entry.value for entry in tensor.external_data if entry.key == "location"]
            yield from ((tensor.name, location) for location in stated or [""])


def check_external_path(location: str, *, where: str) -> None:
    """Refuse external data outside the model's folder (a hostile model would read any file of the machine).

    Raises:
        UnsafePathError: The location is absolute, has `..`, or has other characters than a plain path.
    """
    try:
        check_relative_path(location, where=where)
    except UnsafePathError as error:
        raise UnsafePathError(
            "external data points outside the model's folder", where=where, found=error.found, expected=error.expected
        ) from None


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    graphs = [model.graph]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    attributes = [attribute for function in model.functions for attribute in function.attribute_proto]
    attributes += [item for function in model.functions for node in function.node for item in node.attribute]
    while graphs or attributes:
        for attribute in attributes:
            yield from _attribute_tensors(attribute)
            graphs += attribute.graphs
            if attribute.HasField("g"):
                graphs.append(attribute.g)
        attributes.clear()
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            yield from _sparse_tensors(graph.sparse_initializer)
            attributes += [attribute for node in graph.node for attribute in node.attribute]


def _attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield from _sparse_tensors([attribute.sparse_tensor])
    yield from _sparse_tensors(attribute.sparse_tensors)


def _sparse_tensors(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for the checker, whose external tensors are typed inputs: these need neither files nor memory."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.domain == "" and node.op_type in RUNTIME_OPERATORS:
            node.domain = RUNTIME_DOMAIN  # of which the checker knows nothing
    kept = [tensor for tensor in copy.graph.initializer if tensor.data_location != onnx.TensorProto.EXTERNAL]
    moved = [tensor for tensor in copy.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    copy.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in moved
    )
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy
