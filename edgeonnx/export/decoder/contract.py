"""Giving an exported decoder the form of the contract, whichever exporter made it, and checking that it has it.

What an exporter names and orders in its own way is put right: axes, the order of the caches, the type of the logits.
What it computes in another way is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeonnx.errors import ExportError
from edgeonnx.export.graph import strip
from edgeonnx.model.graph import StoredGraph, store_graph
from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgeonnx.spec.generation import CacheShape

ATTENTION = "GroupQueryAttention"
WEIGHTS_DOMAIN = "com.microsoft"
MIN_OPSET = 21
"""Weight-only quantization and ONNX Runtime's own tools know the standard operators from this version on."""

TOKENS = ("batch", "sequence")
PLACES_BEFORE, PLACES_AFTER = "places", "places_after"
"""Two names: only where past and present are the same memory are they equal."""


def conform(model: ir.Model, cache: CacheShape, dtype: ir.DataType, vocabulary: int) -> StoredGraph:
    """Bring an exported decoder into the contract's form.

    Args:
        model: What the exporter made; it is changed.
        cache: The caches that the source's configuration states.
        dtype: Element type of the caches: FLOAT or FLOAT16.
        vocabulary: Number of logits.

    Returns:
        The graph with logits at every position: float (batch, sequence, vocabulary).

    Raises:
        ExportError: It is not, and cannot be brought, into that form.
    """
    graph = model.graph
    _set_order(graph, cache)
    _check_types(graph, cache, dtype)
    _check_attentions(graph, cache)
    _name_axes(graph, cache, vocabulary)
    _widen_logits(graph)
    _check_opset(model)
    strip(model)
    return store_graph(model)


def _set_order(graph: ir.Graph, cache: CacheShape) -> None:
    """Inputs and outputs as the contract lists them; none is missing and none is left over."""
    expected = ((graph.inputs, (INPUT_IDS, MASK, *cache.past_names)), (graph.outputs, (LOGITS, *cache.present_names)))
    for values, names in expected:
        found = {str(value.name): value for value in values}
        if set(found) != set(names):
            raise _unlike("has other inputs or outputs than the contract", names, found)
        values[:] = [found[name] for name in names]


def _unlike(message: str, expected: Iterable[str], found: Iterable[str]) -> ExportError:
    wanted, given = set(expected), set(found)
    return ExportError(
        message,
        where="the exported decoder",
        details=(
            *(f"missing: {name}" for name in sorted(wanted - given)[:8]),
            *(f"not expected: {name}" for name in sorted(given - wanted)[:8]),
        ),
        hint="this version of the exporter is not the one that edgeonnx is tested with; see constraints.txt",
    )


def _check_types(graph: ir.Graph, cache: CacheShape, dtype: ir.DataType) -> None:
    """Element types, and the fixed axes of the caches (an axis that the exporter left open is not checked)."""
    for value in (*graph.inputs, *graph.outputs):
        name = str(value.name)
        if name in (INPUT_IDS, MASK):
            types: Sequence[ir.DataType] = (ir.DataType.INT64,)
        else:
            types = (dtype, ir.DataType.FLOAT) if name == LOGITS else (dtype,)
        if value.dtype not in types:
            raise ExportError("has another type", where=name, expected=types[0].name, found=str(value.dtype))
        if name in (INPUT_IDS, MASK, LOGITS) or value.shape is None:
            continue
        heads, size = value.shape[1], value.shape[3]
        if heads not in _open_or(cache.heads) or size not in _open_or(cache.head_size):
            raise ExportError(
                "has another shape",
                where=name,
                expected=f"(batch, {cache.heads}, places, {cache.head_size})",
                found=str(value.shape),
            )


class _OpenOr:
    """Contains one size, and every size that is a symbol."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __contains__(self, found: object) -> bool:
        return isinstance(found, ir.SymbolicDim) or found == self.size


def _open_or(size: int) -> _OpenOr:
    return _OpenOr(size)


def _check_attentions(graph: ir.Graph, cache: CacheShape) -> None:
    """Each layer's attention reads and writes its own caches, over all places: no window that drops old tokens."""
    present = {str(value.name) for value in graph.outputs}
    found = [node for node in graph if node.op_type == ATTENTION]
    if len(found) != cache.layers:
        raise ExportError(
            f"has another number of {ATTENTION} nodes than layers",
            where="the exported decoder",
            expected=str(cache.layers),
            found=str(len(found)),
        )
    for node in found:
        window = node.attributes.get_int("local_window_size", -1)
        heads = node.attributes.get_int("kv_num_heads", 0)
        if window != -1 or heads != cache.heads or not {str(value.name) for value in node.outputs[1:3]} <= present:
            raise ExportError(
                "computes another attention than the contract",
                where=str(node.name),
                expected=f"{cache.heads} heads of keys and values, no window, and outputs present.N.key and .value",
                found=f"{heads} heads, a window of {window}",
            )


def _name_axes(graph: ir.Graph, cache: CacheShape, vocabulary: int) -> None:
    """State every input's and output's shape; the symbols of values in between are the exporter's, and mean nothing."""
    shapes: dict[str, list[int | str]] = {
        INPUT_IDS: [*TOKENS],
        MASK: ["batch", "total"],
        LOGITS: [*TOKENS, vocabulary],
    }
    for names, places in ((cache.past_names, PLACES_BEFORE), (cache.present_names, PLACES_AFTER)):
        shapes |= {name: ["batch", cache.heads, places, cache.head_size] for name in names}
    for value in (*graph.inputs, *graph.outputs):
        value.shape = ir.Shape(shapes[str(value.name)])
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None


def _widen_logits(graph: ir.Graph) -> None:
    """Logits are float also where the graph computes in float16: sampling wants the range, and one type to read."""
    logits = graph.outputs[0]
    if logits.dtype is ir.DataType.FLOAT:
        return
    narrow = "logits_float16"
    cast = ir.node("Cast", [logits], attributes={"to": ir.DataType.FLOAT.value}, name="logits_cast")
    wide = cast.outputs[0]
    wide.shape, wide.dtype = logits.shape, ir.DataType.FLOAT
    graph.append(cast)
    graph.outputs[0] = wide
    logits.name, wide.name = narrow, LOGITS


def _check_opset(model: ir.Model) -> None:
    opset = model.opset_imports.get("", 0)
    if opset < MIN_OPSET:
        raise ExportError(
            "is written for an older operator set",
            where="the exported decoder",
            expected=f"at least {MIN_OPSET}",
            found=str(opset),
        )
