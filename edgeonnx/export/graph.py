"""Making an exported graph fit to ship: names that mean something, no traces of the build host.

The result depends on nothing but the model and the versions of the tools, so two builds give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeonnx import __version__
from edgeonnx.errors import ExportError
from edgeonnx.export.repairs import repair_graph
from edgeonnx.model.graph import StoredGraph, store_graph

if TYPE_CHECKING:
    from collections.abc import Sequence


def finish_graph(model: ir.Model, *, axes: Sequence[str]) -> StoredGraph:
    """Clean an exported model and move its tensors out.

    Args:
        model: What the exporter made; it is changed.
        axes: Names for the leading dynamic axes of every input, in order (`batch`, `sequence`).

    Raises:
        ExportError: An input's axis that must be dynamic is fixed.
        ValidationError: A type is not supported.
    """
    repair_graph(model.graph)
    _name_axes(model.graph, axes)
    strip(model)
    return store_graph(model)


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


def strip(model: ir.Model) -> None:
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
