"""What there is to quantize in an encoder: the linear layers that run once a token, and the embedding tables.

Linear layers that read the same tensor are one group: they share one quantization of that tensor, and one decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

MIN_TABLE_BYTES = 1 << 16
"""Smaller embedding tables (token types) are not worth two more nodes."""

LOWER_BOUNDS = {
    "Relu": 0.0,
    "Sigmoid": 0.0,
    "Softmax": 0.0,
    # Minimum of x * Phi(x), at x = -0.7518; the tanh approximation's is -0.17004.
    "Gelu": -0.1701,
}
"""The smallest value that an activation function can give, rounded down."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearGroup:
    """Linear layers that read the same tensor.

    Attributes:
        name: The layers' common name, `encoder.layer.0.attention.self.query+key+value`.
        source: The tensor that they read, float32 (rows, tokens, inputs).
        nodes: Their `MatMul` nodes; the second input of each is a constant, float32 (inputs, outputs).
        lower_bound: No element of `source` is smaller, whatever the model is fed; None if nothing is known.
    """

    name: str
    source: ir.Value
    nodes: tuple[ir.Node, ...]
    lower_bound: float | None

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of the constants; groups with equal names share their weights."""
        return tuple(str(weight.name) for node in self.nodes if (weight := node.inputs[1]) is not None)

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the `MatMul` nodes."""
        return tuple(str(node.name) for node in self.nodes)

    def weights(self) -> list[NDArray[np.float32]]:
        """The weight of each layer, float32 (inputs, outputs)."""
        return [constant(node.inputs[1]) for node in self.nodes]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """An embedding table: float32 (entries, width), read by `Gather` along its first axis and by nothing else.

    Attributes:
        name: Its name.
        value: The constant.
        nodes: The `Gather` nodes.
    """

    name: str
    value: ir.Value
    nodes: tuple[ir.Node, ...]


def constant(value: ir.Value | None) -> NDArray[np.float32]:
    """The numbers of a constant."""
    assert value is not None and value.const_value is not None  # noqa: S101, PT018 - callers have looked
    return np.asarray(value.const_value.numpy())


def find_groups(graph: ir.Graph) -> tuple[LinearGroup, ...]:
    """The groups of a graph, in its order.

    A `MatMul` counts if its second input is a constant float matrix and its first one has three axes: it runs once a
    token. What runs once a text (a classifier's head) takes no time worth saving and decides the answer.
    """
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        if node.op_type == "MatMul" and node.domain == "" and _runs_per_token(node):
            source = node.inputs[0]
            assert source is not None  # noqa: S101 - _runs_per_token looked
            readers.setdefault(source, []).append(node)
    names: dict[str, int] = {}
    groups = []
    for source, nodes in readers.items():
        name = join_names([linear_name(node) for node in nodes])
        seen = names[name] = names.get(name, 0) + 1
        producer = source.producer()
        bound = LOWER_BOUNDS.get(producer.op_type) if producer is not None and producer.domain == "" else None
        unique = name if seen == 1 else f"{name}#{seen}"
        groups.append(LinearGroup(name=unique, source=source, nodes=tuple(nodes), lower_bound=bound))
    return tuple(groups)


def _runs_per_token(node: ir.Node) -> bool:
    source, weight = node.inputs[0], node.inputs[1]
    if source is None or weight is None or not _is_float_matrix(weight) or source.const_value is not None:
        return False
    return source.shape is not None and len(source.shape) == 3 and not weight.is_graph_input()


def _is_float_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and str(tensor.dtype) == "FLOAT" and len(tensor.shape) == 2


def find_tables(graph: ir.Graph) -> tuple[Table, ...]:
    """The embedding tables of a graph that are large enough to matter, in its order."""
    tables = []
    for value in graph.initializers.values():
        tensor = value.const_value
        if not _is_float_matrix(value) or tensor is None or tensor.nbytes < MIN_TABLE_BYTES:
            continue
        uses = list(value.uses())
        gathers = [use.node for use in uses if use.node.op_type == "Gather" and use.idx == 0 and _axis(use.node) == 0]
        if uses and len(gathers) == len(uses):
            name = str(value.name).removesuffix(".weight").removeprefix("model.")
            tables.append(Table(name=name, value=value, nodes=tuple(dict.fromkeys(gathers))))
    return tuple(tables)


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return 0 if attribute is None else int(attribute.as_int())


def linear_name(node: ir.Node) -> str:
    """The layer's name in the source model: that of its bias or weight, as far as the exporter kept one."""
    bias = linear_bias(node)
    for value, suffix in ((None if bias is None else bias[1], ".bias"), (node.inputs[1], ".weight")):
        if value is not None and str(value.name).endswith(suffix):
            return str(value.name).removesuffix(suffix).removeprefix("model.")
    return str(node.name)


def linear_bias(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The node that adds a constant vector to a layer's output, and that vector; None if there is no such node."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type not in ("Add", "Sum") or node.outputs[0].is_graph_output():
        return None
    add = uses[0].node
    for value in add.inputs:
        if value is not None and value.const_value is not None and len(value.const_value.shape) == 1:
            return add, value
    return None


def value_layer(group: LinearGroup) -> tuple[ir.Node, tuple[ir.Node, ir.Value]] | None:
    """The value projection in front of an attention whose output a group reads, with its bias, if s can go into it.

    The output of attention is linear in the values, channel by channel, so a factor per channel may be put there: if
    each channel has one value channel (no grouped queries), and nothing else reads the attention or the values.
    """
    attention = group.source.producer()
    if attention is None or attention.op_type != "Attention" or attention.domain != "":
        return None
    counts = [attention.attributes.get(name) for name in ("q_num_heads", "kv_num_heads")]
    if any(item is None for item in counts) or len({item.as_int() for item in counts if item is not None}) != 1:
        return None
    if any(use.node not in group.nodes for use in group.source.uses()):
        return None
    value = attention.inputs[2]
    add = None if value is None else value.producer()
    if value is None or add is None or len(list(value.uses())) != 1:
        return None
    for item in add.inputs:
        layer = None if item is None else item.producer()
        if layer is not None and layer.op_type == "MatMul":
            bias = linear_bias(layer)
            return (layer, bias) if bias is not None and bias[0] is add else None
    return None


def join_names(names: list[str]) -> str:
    """`a.query`, `a.key` -> `a.query+key`; names without a common beginning are joined whole."""
    folders = [name.split(".")[:-1] for name in names]
    shared = 0
    while all(len(folder) > shared for folder in folders) and len({folder[shared] for folder in folders}) == 1:
        shared += 1
    return ".".join([*folders[0][:shared], "+".join(".".join(name.split(".")[shared:]) for name in names)])
