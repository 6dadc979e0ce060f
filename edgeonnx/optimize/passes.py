"""Passes for graphs that run on ONNX Runtime's CPU provider.

ONNX Runtime fuses what it recognizes when a session is opened. Two of its fusions are slower than what they replace
on the CPU (`bench/optimize.py` prints by how much), so these passes write the same arithmetic in a form that is not
recognized. Every pass keeps inputs, outputs and their names, and changes results by no more than the order of two
additions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from edgeonnx.model.graph import restore_graph, store_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeonnx.model.graph import StoredGraph

HEADS_FIRST = (0, 2, 1, 3)
"""The permutation that takes (rows, tokens, heads, width) to (rows, heads, tokens, width), and back."""


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """An optimized graph.

    Attributes:
        graph: The graph.
        applied: How often each pass found its pattern.
    """

    graph: StoredGraph
    applied: dict[str, int]


def optimize_for_cpu(graph: StoredGraph) -> Optimized:
    """Apply every pass of this module, in order."""
    model = restore_graph(graph)
    applied = {name: run(model.graph) for name, run in CPU_PASSES.items()}
    remove_unused(model)
    return Optimized(graph=store_graph(model), applied=applied)


def fold_heads(graph: ir.Graph) -> int:
    """Let `Attention` split and merge the heads itself.

    Requires: an `Attention` (ONNX, opset 23) whose query, key and value are each a (rows, tokens, heads x width)
    tensor that was reshaped and transposed, and whose output is transposed and reshaped back.
    Ensures: the operator reads and writes the three-dimensional tensors; six data movements per layer are gone.

    Returns:
        The number of attentions changed.
    """
    return sum(_fold_one(graph, node) for node in list(graph) if node.op_type == "Attention" and node.domain == "")


def _fold_one(graph: ir.Graph, attention: ir.Node) -> bool:
    given = [value for value in attention.inputs[4:] if value is not None]
    if given or len(attention.outputs) != 1 or "q_num_heads" in attention.attributes:
        return False  # a cache, or folded already
    split = [_split_heads(value) for value in attention.inputs[:3]]
    merged = _merged_heads(attention.outputs[0])
    if merged is None or any(item is None for item in split):
        return False
    sources = [item[0] for item in split if item is not None]
    heads = [item[1] for item in split if item is not None]
    if heads[1] != heads[2] or sources[0].dtype != merged.dtype:
        return False
    folded = ir.node(
        "Attention",
        [*sources, *attention.inputs[3:]],
        attributes={
            **dict(attention.attributes.items()),
            "q_num_heads": heads[0],
            "kv_num_heads": heads[1],
        },
        name=attention.name,
    )
    _replace(graph, merged, folded)
    return True


def _split_heads(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """The tensor before it was cut into heads, and their number; None if it was not."""
    transpose = None if value is None else value.producer()
    if transpose is None or not _permutes(transpose, HEADS_FIRST):
        return None
    cut = transpose.inputs[0]
    reshape = None if cut is None else cut.producer()
    if cut is None or reshape is None or reshape.op_type != "Reshape" or cut.shape is None or len(cut.shape) != 4:
        return None
    source, heads, width = reshape.inputs[0], cut.shape[2], cut.shape[3]
    if source is None or source.shape is None or len(source.shape) != 3 or not isinstance(heads, int):
        return None
    if not isinstance(width, int) or source.shape[2] != heads * width:
        return None
    return source, heads


def _merged_heads(value: ir.Value) -> ir.Value | None:
    """The three-dimensional tensor that the heads are merged into, if that is all that happens to them."""
    transpose = _only_consumer(value)
    if transpose is None or not _permutes(transpose, HEADS_FIRST):
        return None
    reshape = _only_consumer(transpose.outputs[0])
    if reshape is None or reshape.op_type != "Reshape":
        return None
    merged = reshape.outputs[0]
    return merged if merged.shape is not None and len(merged.shape) == 3 else None


def sum_residuals(graph: ir.Graph) -> int:
    """Add residual, bias and output in one `Sum` before a `LayerNormalization`.

    Requires: `LayerNormalization` of an `Add`.
    Ensures: the addition is a `Sum`, with the bias of the linear layer as a third summand. ONNX Runtime would fuse
    `Add` and `LayerNormalization` into `SkipLayerNormalization`, which takes several times as long on the CPU.

    Returns:
        The number of additions changed.
    """
    changed = 0
    for norm in [node for node in graph if node.op_type == "LayerNormalization"]:
        add = norm.inputs[0].producer() if norm.inputs[0] is not None else None
        if add is not None and add.op_type == "Add":
            summands = [summand for value in add.inputs for summand in _summands(value)]
            _replace(graph, add.outputs[0], ir.node("Sum", summands, name=add.name))
            changed += 1
    return changed


def _summands(value: ir.Value | None) -> list[ir.Value | None]:
    """A value, or the two that it is the sum of if it is a bias that was added to something and read once."""
    add = None if value is None else value.producer()
    if add is None or add.op_type != "Add" or _only_consumer(add.outputs[0]) is None:
        return [value]
    if not any(item is not None and item.const_value is not None for item in add.inputs):
        return [value]
    return list(add.inputs)


def sum_before_gelu(graph: ir.Graph) -> int:
    """Add the bias before a `Gelu` in a `Sum`.

    Requires: `Gelu` of an `Add` with a constant.
    Ensures: the addition is a `Sum`; ONNX Runtime would fuse the two into `BiasGelu`, which takes longer on the CPU.

    Returns:
        The number of additions changed.
    """
    changed = 0
    for gelu in [node for node in graph if node.op_type == "Gelu"]:
        add = gelu.inputs[0].producer() if gelu.inputs[0] is not None else None
        if add is not None and add.op_type == "Add" and _summands(gelu.inputs[0]) != [gelu.inputs[0]]:
            _replace(graph, add.outputs[0], ir.node("Sum", list(add.inputs), name=add.name))
            changed += 1
    return changed


def _permutes(node: ir.Node, order: tuple[int, ...]) -> bool:
    return node.op_type == "Transpose" and tuple(node.attributes["perm"].as_ints()) == order


def _only_consumer(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value; None if there are several, none, or it is an output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Node) -> None:
    """Put a node in the place of the one that made `old`; the new value keeps name, type and shape."""
    producer = old.producer()
    assert producer is not None  # noqa: S101 - callers found it through its producer
    value = new.outputs[0]
    value.name, value.type, value.shape = old.name, old.type, old.shape
    graph.insert_before(producer, new)
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(producer, safe=True)


def remove_unused(model: ir.Model) -> None:
    """Remove nodes and constants that nothing reads."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(model)


CPU_PASSES: dict[str, Callable[[ir.Graph], int]] = {
    "heads folded into Attention": fold_heads,
    "residual additions as Sum": sum_residuals,
    "bias before Gelu as Sum": sum_before_gelu,
}
"""The passes in their order, by the name under which the evidence counts them."""
