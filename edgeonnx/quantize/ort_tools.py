"""What the recipes that call ONNX Runtime's tools share: the way into a tool, quiet, and the way out.

The tools read and write files, log through the root logger, print, and leave their traces in what they write. Nothing
of that leaves this module.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from edgeonnx.errors import EdgeOnnxError, QuantizationError, ValidationError, first_line
from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph
from edgeonnx.model.runtime import open_graph
from edgeonnx.quantize.guards import check_quantizable, has_constant_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

PRODUCTS = ("MatMul", "Gemm")
_MATRIX = 2


def prepare(graph: StoredGraph) -> ir.Model:
    """The checked model, its weights as initializers and its nodes with names of their own, which tools go by.

    Raises:
        QuantizationError: See `check_quantizable`.
    """
    model = restore_graph(graph)
    check_quantizable(model)
    common.LiftConstantsToInitializersPass()(model)
    seen: set[str] = set()
    for index, node in enumerate(model.graph.all_nodes()):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{index}_unnamed"
        seen.add(node.name)
    return model


def find_targets(model: ir.Model, operators: Collection[str], keep: Collection[str]) -> list[str]:
    """Names of the main graph's nodes that a recipe converts.

    Args:
        model: The model, prepared.
        operators: Of `MatMul`, `Gemm` those that have a constant weight, of `Gather` those with a constant float table.
        keep: Names of nodes, or of weights, that stay as they are. A kept node's weight is kept for all its users, so
            that a tied weight is stored once.

    Raises:
        QuantizationError: A name in `keep` is unknown, or nothing is left to convert.
    """
    kept = expand_keep(model, keep)
    found = [node for node in model.graph if node.op_type in operators and _has_float_constant(node)]
    names = [str(node.name) for node in found if not is_kept(node, kept)]
    if not names:
        raise QuantizationError(
            "the recipe finds nothing to quantize",
            expected=f"{' or '.join(sorted(operators))} of the main graph with a constant weight",
            found=f"{len(found)} of them, all to be kept",
        )
    return names


def expand_keep(model: ir.Model, keep: Collection[str]) -> set[str]:
    """Names of nodes and weights to keep, with the weights of kept nodes.

    Raises:
        QuantizationError: A name is neither a node's nor an initializer's of the main graph: it would change nothing.
    """
    known = {str(node.name) for node in model.graph} | set(model.graph.initializers)
    unknown = set(keep) - known
    if unknown:
        raise QuantizationError(
            "the graph has no node or weight of a name that is to be kept",
            where="keep",
            found=", ".join(sorted(unknown)),
        )
    values = [value for node in model.graph if node.name in keep for value in node.inputs if value is not None]
    weights = {str(value.name) for value in values if value.is_initializer() and len(value.shape or ()) >= _MATRIX}
    return {*keep, *weights}


def is_kept(node: ir.Node, keep: Collection[str]) -> bool:
    """Whether a node, or one of its inputs, is named in `keep`."""
    return node.name in keep or any(value is not None and value.name in keep for value in node.inputs)


def _has_float_constant(node: ir.Node) -> bool:
    if node.op_type != "Gather":
        return has_constant_weight(node)
    table = None if node.inputs[0] is None else ir.convenience.get_const_tensor(node.inputs[0])
    return table is not None and table.dtype is ir.DataType.FLOAT and len(table.shape) == 2


def run_tool(
    model: ir.Model, original: StoredGraph, tool: Callable[[Path, Path], ir.Model], *, name: str
) -> StoredGraph:
    """Run a tool on a model's file and take back what it made.

    Args:
        model: The model to convert.
        original: The graph that it came from, for the signature.
        tool: Called with the model's path and an empty folder of its own; returns the new model.
        name: The tool's name, for the message.

    Raises:
        QuantizationError: The tool failed, or changed the inputs or outputs.
    """
    with tempfile.TemporaryDirectory(prefix="edgeonnx-") as folder, _quiet():
        scratch = Path(folder) / "tool"
        scratch.mkdir()
        try:
            made = tool(store_graph(model).write(Path(folder) / "model"), scratch)
        except EdgeOnnxError:
            raise
        except Exception as error:
            raise QuantizationError(f"{name} failed on the graph", found=first_line(error)) from error
    return _finish(made, original, name=name)


def read_model(path: Path) -> ir.Model:
    """The model that a tool wrote, its tensors in memory."""
    model: ir.Model = ir.from_proto(onnx.load(str(path)))
    return model


def check_loads(graph: StoredGraph, *, name: str) -> StoredGraph:
    """The graph, if ONNX Runtime's CPU provider loads it: tools have written models that do not.

    Raises:
        QuantizationError: It does not.
    """
    with tempfile.TemporaryDirectory(prefix="edgeonnx-") as folder:
        try:
            open_graph(graph.write(Path(folder)), None, threads=1)
        except ValidationError as error:
            raise QuantizationError(
                f"{name} made a graph that ONNX Runtime does not load", found=error.found
            ) from error
    return graph


def _finish(made: ir.Model, original: StoredGraph, *, name: str) -> StoredGraph:
    """Clean what a tool made, and store it.

    Raises:
        QuantizationError: The tool changed the inputs or outputs.
    """
    source = restore_graph(original)
    made.producer_name, made.producer_version = source.producer_name, source.producer_version
    made.model_version, made.domain = source.model_version, source.domain
    made.graph.name = source.graph.name
    common.ClearMetadataAndDocStringPass()(made)
    parts: list[ir.Model | ir.Graph | ir.Value] = [made, made.graph, *_values(made)]
    for part in parts:  # what that pass leaves
        part.metadata_props.clear()
        part.doc_string = None
    common.RemoveUnusedNodesPass()(made)
    common.RemoveUnusedOpsetsPass()(made)
    common.TopologicalSortPass()(made)
    stored = store_graph(made)
    if stored.signature != original.signature:
        raise QuantizationError(
            f"{name} changed the inputs or outputs of the graph",
            expected=str(original.signature),
            found=str(stored.signature),
        )
    return stored


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph.all_nodes():
        yield from node.outputs


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tools' prints and log lines away from the user, and their changes away from the logging of the process.

    They log through the root logger, which sets up handlers as a side effect where there are none.
    """
    root, library = logging.getLogger(), logging.getLogger("onnxruntime")
    handlers, levels, silent = list(root.handlers), (root.level, library.level), logging.NullHandler()
    root.addHandler(silent)
    root.addFilter(_not_from_tools)
    library.setLevel(logging.CRITICAL + 1)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(_not_from_tools)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)
        root.setLevel(levels[0])
        library.setLevel(levels[1])


def _not_from_tools(record: logging.LogRecord) -> bool:
    return "onnxruntime" not in Path(record.pathname).parts
