"""What the exporter is known to get wrong, put right in the graph. Parity judges the result like any other."""

from __future__ import annotations

import onnx_ir as ir

CACHE_INPUTS = (1, 2)
"""Places of the cosine and sine caches among the inputs of RotaryEmbedding."""


def repair_graph(graph: ir.Graph) -> None:
    """Apply every repair; a graph that needs none stays as it is."""
    _widen_rotary_caches(graph)


def _widen_rotary_caches(graph: ir.Graph) -> None:
    """Give RotaryEmbedding caches of its own batch size.

    The operator (opset 23, without position ids) wants caches of shape (batch, sequence, half), and does not broadcast.
    The exporter's fusion hands it the (1, sequence, half) that the model computed, which runs for one row only.
    """
    widened: dict[ir.Value, ir.Value] = {}
    for node in tuple(graph):
        if node.op_type != "RotaryEmbedding" or node.domain != "" or len(node.inputs) > len(CACHE_INPUTS) + 1:
            continue
        rotated = node.inputs[0]
        for place in CACHE_INPUTS:
            cache = node.inputs[place]
            if rotated is None or cache is None or not _may_have_one_row(cache):
                continue
            if cache not in widened:
                widened[cache] = _expand_rows(graph, node, rotated, cache)
            node.replace_input_with(place, widened[cache])


def _may_have_one_row(cache: ir.Value) -> bool:
    """Whether a cache's first axis is 1, or not known: the fusion leaves the shapes of its own nodes open."""
    producer = cache.producer()
    known = cache.shape
    if known is None and producer is not None and producer.op_type in ("Cos", "Sin") and producer.inputs[0] is not None:
        known = producer.inputs[0].shape
    return known is None or known[0] == 1


def _expand_rows(graph: ir.Graph, before: ir.Node, like: ir.Value, value: ir.Value) -> ir.Value:
    """Insert nodes that repeat a (1, a, b) value for every row of another one."""
    rows = ir.node("Shape", [like], attributes={"start": 0, "end": 1})
    rest = ir.node("Constant", [], attributes={"value": ir.tensor([1, 1], dtype=ir.DataType.INT64)})
    shape = ir.node("Concat", [rows.outputs[0], rest.outputs[0]], attributes={"axis": 0})
    expanded = ir.node("Expand", [value, shape.outputs[0]])
    for node, suffix in ((rows, "rows"), (rest, "rest"), (shape, "shape"), (expanded, "expanded")):
        node.name = node.outputs[0].name = f"{value.name}_{suffix}"
    rows.outputs[0].dtype = shape.outputs[0].dtype = ir.DataType.INT64
    if like.dtype is not None:
        expanded.outputs[0].dtype = like.dtype
    graph.insert_before(before, [rows, rest, shape, expanded])
    return expanded.outputs[0]
