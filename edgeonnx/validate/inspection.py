"""What is in an ONNX graph: facts that a person or a script asks for, without loading any weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from edgeonnx.validate.checker import check_external_path, external_locations, load_graph

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 10


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """One weight: name, type, shape, bytes, and the file that holds it (None if it is inside the graph)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    file: str | None


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """What `inspect` shows of a graph.

    Attributes:
        ir_version: Version of the ONNX file format.
        producer: Program that wrote it.
        opsets: Version by operator domain (the standard domain is "ai.onnx").
        inputs: Name, type and shape of each input, as text.
        outputs: The same of each output.
        operators: Count by (domain, operator), all subgraphs and functions included.
        weights: (count, elements, bytes) by element type.
        largest: The largest weights.
        external_files: Number of files that hold weights.
    """

    ir_version: int
    producer: str
    opsets: dict[str, int]
    inputs: tuple[tuple[str, str, str], ...]
    outputs: tuple[tuple[str, str, str], ...]
    operators: dict[tuple[str, str], int]
    weights: dict[str, tuple[int, int, int]]
    largest: tuple[TensorFacts, ...]
    external_files: int

    @property
    def parameters(self) -> int:
        """Number of weight elements."""
        return sum(elements for _, elements, _ in self.weights.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(size for _, _, size in self.weights.values())

    def to_dict(self) -> dict[str, object]:
        """As plain data for `--json`."""
        return {
            "ir_version": self.ir_version,
            "producer": self.producer,
            "opsets": self.opsets,
            "inputs": [_port_dict(port) for port in self.inputs],
            "outputs": [_port_dict(port) for port in self.outputs],
            "operators": [
                {"domain": domain, "operator": name, "count": count} for (domain, name), count in self.operators.items()
            ],
            "weights": [
                {"dtype": dtype, "tensors": count, "elements": elements, "bytes": size}
                for dtype, (count, elements, size) in self.weights.items()
            ],
            "largest": [
                {
                    "name": item.name,
                    "dtype": item.dtype,
                    "shape": list(item.shape),
                    "bytes": item.size,
                    "file": item.file,
                }
                for item in self.largest
            ],
            "external_files": self.external_files,
        }


def _port_dict(port: tuple[str, str, str]) -> dict[str, str]:
    return {"name": port[0], "dtype": port[1], "shape": port[2]}


def inspect_graph(path: Path) -> GraphFacts:
    """Read the facts of an .onnx file; external data is not opened.

    Raises:
        ValidationError: It is not an ONNX model.
        UnsafePathError: It refers to external data outside its folder.
    """
    model = load_graph(path)
    for name, location in external_locations(model):
        check_external_path(location, where=f"tensor {name}")
    weights = [_tensor_facts(tensor) for graph in _graphs(model) for tensor in graph.initializer]
    by_type: dict[str, tuple[int, int, int]] = {}
    for item in weights:
        count, elements, size = by_type.get(item.dtype, (0, 0, 0))
        by_type[item.dtype] = (count + 1, elements + _elements(item.shape), size + item.size)
    operators = Counter((node.domain or "ai.onnx", node.op_type) for node in _nodes(model))
    initialized = {tensor.name for tensor in model.graph.initializer}
    return GraphFacts(
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        inputs=tuple(_port(value) for value in model.graph.input if value.name not in initialized),
        outputs=tuple(_port(value) for value in model.graph.output),
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        weights=dict(sorted(by_type.items(), key=lambda item: -item[1][2])),
        largest=tuple(sorted(weights, key=lambda item: (-item.size, item.name))[:LARGEST]),
        external_files=len({item.file for item in weights if item.file is not None}),
    )


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every graph inside its nodes' attributes."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                pending.extend(attribute.graphs)
                if attribute.HasField("g"):
                    pending.append(attribute.g)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in _graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def _tensor_facts(tensor: onnx.TensorProto) -> TensorFacts:
    shape = tuple(int(dimension) for dimension in tensor.dims)
    external = {entry.key: entry.value for entry in tensor.external_data}
    dtype = _type_name(tensor.data_type)
    return TensorFacts(
        name=tensor.name,
        dtype=dtype,
        shape=shape,
        size=(_elements(shape) * _bits(tensor.data_type) + 7) // 8,
        file=external.get("location", "") if tensor.data_location == onnx.TensorProto.EXTERNAL else None,
    )


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for dimension in shape:
        total *= dimension
    return total


def _bits(data_type: int) -> int:
    """Bits of one element; ONNX packs 4-bit and 2-bit types."""
    name = _type_name(data_type)
    if name in ("uint4", "int4", "float4e2m1"):
        return 4
    if name in ("uint2", "int2"):
        return 2
    if data_type not in onnx.helper.get_all_tensor_dtypes() or name == "string":
        return 0  # without a fixed size, or a type of a newer ONNX
    return int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8


def _type_name(data_type: int) -> str:
    """ONNX's name of an element type in lower case; a number that this release of onnx does not know stays one."""
    if data_type in onnx.TensorProto.DataType.values():
        return str(onnx.TensorProto.DataType.Name(data_type)).lower()
    return f"type {data_type}"


def _port(value: onnx.ValueInfoProto) -> tuple[str, str, str]:
    if not value.type.HasField("tensor_type"):
        return value.name, value.type.WhichOneof("value") or "unknown", ""
    tensor = value.type.tensor_type
    dimensions = [
        dimension.dim_param or "?" if not dimension.HasField("dim_value") else str(dimension.dim_value)
        for dimension in tensor.shape.dim
    ]
    return value.name, _type_name(tensor.elem_type), f"[{', '.join(dimensions)}]"
