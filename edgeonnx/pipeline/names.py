"""Names of an earlier graph for the tensors of a new one, so that a difference finds its earlier tensor.

An exporter numbers the tensors that have no name in the source model, and another release of it may count differently.
Where two graphs have the same operators in the same order, what stands in the same place is the same tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.model.graph import StoredGraph, restore_graph, store_graph

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir


def keep_names(graph: StoredGraph, earlier: StoredGraph) -> StoredGraph:
    """The graph with an earlier graph's names for its constants and for what its nodes compute.

    Args:
        graph: A float graph without subgraphs.
        earlier: The float graph of an earlier version of the model.

    Returns:
        `graph` itself, if it has these names already, or if the graphs differ in an operator or in how they are wired.
    """
    model = restore_graph(graph)
    values, names = _pairs(list(model.graph), list(restore_graph(earlier).graph))
    fixed = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    wanted = {value: name for value, name in zip(values, names, strict=True) if value.name not in fixed}
    unchanged = all(value.name == name for value, name in wanted.items())
    if unchanged or len(set(wanted.values())) != len(wanted) or not fixed.isdisjoint(wanted.values()):
        return graph
    others = {str(value.name) for value in _values(model.graph) if value not in wanted}
    if not others.isdisjoint(wanted.values()):
        return graph
    for stage in ("renamed/", ""):  # in two steps, as a name may be another value's until that has its own
        for value, name in wanted.items():
            value.name = stage + name
    return store_graph(model)


def _pairs(nodes: list[ir.Node], earlier: list[ir.Node]) -> tuple[list[ir.Value], list[str]]:
    """Each value of a graph and the name of what stands in its place in the earlier graph; nothing if they differ."""
    if [node.op_identifier() for node in nodes] != [node.op_identifier() for node in earlier]:
        return [], []
    found: dict[ir.Value, str] = {}
    for node, old in zip(nodes, earlier, strict=True):
        sides = ((node.inputs, old.inputs), (node.outputs, old.outputs))
        if any(len(new) != len(before) for new, before in sides):
            return [], []
        for new, before in sides:
            for value, other in zip(new, before, strict=True):
                if (value is None) != (other is None):
                    return [], []
                if value is not None and other is not None and found.setdefault(value, str(other.name)) != other.name:
                    return [], []
    return list(found), list(found.values())


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    """Every value that has a name in a graph."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
