"""Row-wise dynamic int8: every activation row gets a scale of its own, so no answer depends on its batch.

Of each group of linear layers, the graph computes, with x the row that they read and W, b a layer's weight and bias:

    scale = max|x| / 127                     Abs, ReduceMax, Mul
    x8    = round(x / scale) + 128           QuantizeLinear, one block a row
    y     = scale * ((x8 - 128) W8 w) + b    MatMulIntegerToFloat, Mul, Add

with W8 the int8 weight and w its scale per output channel. Where x is never below a known bound (after Gelu), a
constant zero point near it replaces 128 and `Abs` falls away. Where migration pays (`migrate.py`), x is multiplied by
1/s first; in front of the projection after attention, s goes into the value projection instead and costs nothing.

A row of zeros has scale 0: x / scale is NaN, x8 is any integer, and scale * (...) is exactly 0, as it must be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeonnx.model.graph import restore_graph, store_graph
from edgeonnx.quantize.calibrate import calibrate
from edgeonnx.quantize.guards import check_quantizable
from edgeonnx.quantize.linears import LinearGroup, constant, find_groups, find_tables, value_layer
from edgeonnx.quantize.migrate import GroupPlan, plan_group
from edgeonnx.quantize.rounding import ACTIVATION_MAX, CENTRE, WEIGHT_LIMITS, floor_of, quantize_table, quantize_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.model.ports import IntTensors
    from edgeonnx.quantize.earlier import EarlierPlan

    Float = NDArray[np.float32]

CONTRIB = "com.microsoft"
SWITCH = "quantized_groups"
"""Input of a switchable graph: float32 (groups,), 1 for a group that computes in int8 and 0 for one that does not."""


@dataclass(frozen=True, kw_only=True)
class RowwisePlan:
    """How a graph is quantized, decided before any of its variants is built.

    Attributes:
        weight_bits: 8, or 7 for CPUs that add pairs of products in 16 bits.
        groups: How each group's activations are quantized, by its name.
        tables: Names of the embedding tables.
        scales: Weight scales of an earlier build, by the name of their constant, which are kept where they still fit.
    """

    weight_bits: int
    groups: dict[str, GroupPlan]
    tables: tuple[str, ...]
    scales: Mapping[str, Float] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that can be left in float, by name: groups and tables."""
        return (*self.groups, *self.tables)

    def to_dict(self) -> dict[str, object]:
        """For the variant's recipe."""
        return {
            "weight_bits": self.weight_bits,
            "groups": [plan.to_dict() for plan in self.groups.values()],
            "tables": list(self.tables),
        }


def plan_rowwise(
    graph: StoredGraph,
    batches: Sequence[IntTensors],
    *,
    weight_bits: int = 8,
    migrate: bool = True,
    static: bool = False,
    earlier: EarlierPlan | None = None,
    on_group: Callable[[int, int], None] | None = None,
) -> RowwisePlan:
    """Calibrate on real text and decide about each group.

    Args:
        graph: The float graph.
        batches: Calibration inputs, int64 (rows, tokens) by name.
        weight_bits: 8 or 7; see `RowwisePlan`.
        migrate: Whether outliers may move into the weights.
        static: Plan for fixed scales, one for each tensor (`migrate_outliers` and then `static_qdq`).
        earlier: How an earlier version of the model was quantized: kept for each group that it fits.
        on_group: Called with (groups done, all groups), for progress.

    Raises:
        QuantizationError: The graph is quantized already, has no constant weights, or weights that are not finite.
    """
    model = restore_graph(graph)
    check_quantizable(model)
    seen = calibrate(graph, batches)
    groups = find_groups(model.graph)
    shared = _shared_weights(groups)
    plans: dict[str, GroupPlan] = {}
    for index, group in enumerate(groups):
        twins = [item for item in groups if item.weight_names == group.weight_names]
        tied = any(shared[name] > len(twins) for name in group.weight_names)
        plans[group.name] = plan_group(
            group.name,
            [seen[item.name] for item in twins],
            np.concatenate(group.weights(), axis=1),
            limit=WEIGHT_LIMITS[weight_bits],
            lower_bound=group.lower_bound,
            may_migrate=migrate and not tied,
            free=len(twins) == 1 and value_layer(group) is not None,
            static=static,
            earlier=None if earlier is None else earlier.groups.get(group.name),
        )
        if on_group is not None:
            on_group(index + 1, len(groups))
    return RowwisePlan(
        weight_bits=weight_bits,
        groups=plans,
        tables=tuple(table.name for table in find_tables(model.graph)),
        scales={} if earlier is None else earlier.scales,
    )


def _shared_weights(groups: Sequence[LinearGroup]) -> dict[str, int]:
    """In how many groups each weight is read. One that several groups read must stay one tensor."""
    counts: dict[str, int] = {}
    for group in groups:
        for name in dict.fromkeys(group.weight_names):
            counts[name] = counts.get(name, 0) + 1
    return counts


def quantize_rowwise(
    graph: StoredGraph, plan: RowwisePlan, *, keep: Collection[str] = (), fused: bool = True
) -> StoredGraph:
    """Quantize a graph.

    Args:
        graph: The float graph that the plan was made for.
        plan: How.
        keep: Names of groups and tables that stay in float.
        fused: Use ONNX Runtime's `MatMulIntegerToFloat`; otherwise standard ONNX operators alone.

    Returns:
        A graph with the same inputs and outputs.
    """
    model = restore_graph(graph)
    builder = _Builder(model.graph, limit=WEIGHT_LIMITS[plan.weight_bits], fused=fused, scales=plan.scales)
    groups = [group for group in find_groups(model.graph) if group.name not in keep]
    folded = _fold_into_values(groups, plan)
    for group in groups:
        built = builder.group(group, plan.groups[group.name], migrate=group.name not in folded)
        for node, output in zip(group.nodes, built, strict=True):
            node.outputs[0].replace_all_uses_with(output)
    for table in find_tables(model.graph):
        if table.name not in keep:
            for gather in table.nodes:
                gather.outputs[0].replace_all_uses_with(builder.lookup(table.value, gather))
    return _finish(model, fused=fused)


def migrate_outliers(graph: StoredGraph, plan: RowwisePlan) -> StoredGraph:
    """The float graph with the plan's migrations and nothing quantized: what static quantization starts from."""
    model = restore_graph(graph)
    builder = _Builder(model.graph, limit=WEIGHT_LIMITS[plan.weight_bits], fused=False)
    for group in find_groups(model.graph):
        smoothing = plan.groups[group.name].smoothing
        if smoothing is None:
            continue
        inverse = builder.constant(f"{'+'.join(group.weight_names)}/smoothing", (1 / smoothing).astype(np.float32))
        source = builder.add(group.nodes[0], "Mul", [group.source, inverse])
        for node, weight, name in zip(group.nodes, group.weights(), group.weight_names, strict=True):
            migrated = np.asarray(weight * smoothing[:, None], dtype=np.float32)
            node.replace_input_with(0, source)
            node.replace_input_with(1, builder.constant(f"{name}/migrated", migrated))
    return _finish(model, fused=False)


def switchable(graph: StoredGraph, plan: RowwisePlan) -> StoredGraph:
    """The float graph in which every group can be switched to int8 by itself, to see what each one costs.

    Returns:
        A graph with one more input, `SWITCH`: float32 (len(plan.names),), in the order of `plan.names`.
    """
    model = restore_graph(graph)
    builder = _Builder(model.graph, limit=WEIGHT_LIMITS[plan.weight_bits], fused=True)
    switch = ir.Value(name=SWITCH, shape=ir.Shape([len(plan.names)]), type=ir.TensorType(ir.DataType.FLOAT))
    model.graph.inputs.append(switch)
    for index, group in enumerate(find_groups(model.graph)):
        built = builder.group(group, plan.groups[group.name], migrate=True)
        for node, output in zip(group.nodes, built, strict=True):
            builder.choose(switch, index, node.outputs[0], output)
    for index, table in enumerate(find_tables(model.graph), start=len(plan.groups)):
        for gather in table.nodes:
            builder.choose(switch, index, gather.outputs[0], builder.lookup(table.value, gather))
    return _finish(model, fused=True)


def _finish(model: ir.Model, *, fused: bool) -> StoredGraph:
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    if fused:
        model.opset_imports[CONTRIB] = 1
    RemoveUnusedNodesPass()(model)
    return store_graph(model)


def _fold_into_values(groups: Sequence[LinearGroup], plan: RowwisePlan) -> set[str]:
    """Divide value projections by the factors of the layers behind them. Returns the groups that need no `Mul` now.

    Only projections that are quantized themselves are changed: one in float would no longer share its tensor with the
    float variant.
    """
    quantized = {node: group for group in groups for node in group.nodes}
    shared = _shared_weights(groups)
    folded = set()
    for group in groups:
        smoothing, found = plan.groups[group.name].smoothing, value_layer(group)
        if smoothing is None or found is None or found[0] not in quantized:
            continue
        layer, (_, bias) = found
        weight = layer.inputs[1]
        if weight is None or len(list(bias.uses())) != 1 or len(list(weight.uses())) != 1:
            continue
        if any(shared[name] > 1 for name in (*group.weight_names, str(weight.name))):
            continue
        weight.const_value = ir.tensor(constant(weight) / smoothing, name=weight.name)
        bias.const_value = ir.tensor(constant(bias) / smoothing, name=bias.name)
        folded.add(group.name)
    return folded


@dataclass
class _Builder:
    """Adds the nodes of quantized layers to a graph."""

    graph: ir.Graph
    limit: int
    fused: bool
    scales: Mapping[str, Float] = field(default_factory=dict)
    _constants: dict[str, ir.Value] = field(default_factory=dict)
    _zero_points: dict[tuple[int, str], ir.Value] = field(default_factory=dict)
    _count: int = 0

    def group(self, group: LinearGroup, plan: GroupPlan, *, migrate: bool) -> list[ir.Value]:
        """The quantized outputs of a group's layers, without their biases: float32 (rows, tokens, outputs) each."""
        first = group.nodes[0]
        source, weights = group.source, group.weights()
        key = "+".join(group.weight_names)
        if plan.smoothing is not None:
            weights = [np.asarray(weight * plan.smoothing[:, None], dtype=np.float32) for weight in weights]
            if migrate:
                inverse = self.constant(f"{key}/smoothing", (1 / plan.smoothing).astype(np.float32))
                source = self.add(first, "Mul", [source, inverse])
        quantized, scale, zero_point = self._quantize(source, first, plan, width=len(weights[0]))
        outputs = []
        for node, weight, name in zip(group.nodes, weights, group.weight_names, strict=True):
            product = self._multiply(node, quantized, zero_point, weight, name)
            outputs.append(self.add(node, "Mul", [product, scale]))
        return outputs

    def _quantize(
        self, source: ir.Value, before: ir.Node, plan: GroupPlan, *, width: int
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The rows as uint8, their scales (rows, tokens, 1), and the zero point as a scalar."""
        axes = self.constant("last_axis", np.array([-1], dtype=np.int64))
        if plan.lower_bound is None:
            zero_point, steps, ranged = CENTRE, CENTRE - 1, self.add(before, "Abs", [source])
        else:
            zero_point, steps, ranged = plan.zero_point, ACTIVATION_MAX - plan.zero_point, source
        largest = self.add(before, "ReduceMax", [ranged, axes], keepdims=1)
        scale = self.add(before, "Mul", [largest, self.constant(f"1/{steps}", np.float32(1 / steps))])
        if plan.lower_bound is not None:
            floor = floor_of(plan.lower_bound, plan.zero_point)
            scale = self.add(before, "Max", [scale, self.constant(f"floor/{plan.lower_bound}/{zero_point}", floor)])
        scalar = self.constant(f"zero_point/{zero_point}", np.uint8(zero_point))
        expanded = self._zero_points_like(scale, scalar, zero_point, before)
        rows = self.add(before, "QuantizeLinear", [source, scale, expanded], axis=2, block_size=width)
        return rows, scale, scalar

    def _zero_points_like(self, scale: ir.Value, scalar: ir.Value, zero_point: int, before: ir.Node) -> ir.Value:
        """The zero point once a row: computed once a graph, as all rows of a graph are its tokens."""
        key = (zero_point, "tokens")
        if key not in self._zero_points:
            shape = self.add(before, "Shape", [scale])
            self._zero_points[key] = self.add(before, "Expand", [scalar, shape])
        return self._zero_points[key]

    def _multiply(self, node: ir.Node, rows: ir.Value, zero_point: ir.Value, weight: Float, name: str) -> ir.Value:
        rounded, scales = quantize_weight(weight, self.limit, self._earlier(f"{name}/scale", weight.shape[1:]))
        integer = self.constant(f"{name}/int8", rounded)
        factor = self.constant(f"{name}/scale", scales)
        if self.fused:
            one = self.constant("one", np.float32(1))
            inputs = [rows, integer, one, factor, zero_point]
            return self.add(node, "MatMulIntegerToFloat", inputs, domain=CONTRIB)
        product = self.add(node, "MatMulInteger", [rows, integer, zero_point])
        floats = self.add(node, "Cast", [product], to=ir.DataType.FLOAT)
        return self.add(node, "Mul", [floats, factor])

    def lookup(self, table: ir.Value, gather: ir.Node) -> ir.Value:
        """The entries of an int8 table, as float32."""
        entries = constant(table)
        rounded, scales = quantize_table(entries, self._earlier(f"{table.name}/scale", (len(entries), 1)))
        found = self.add(gather, "Gather", [self.constant(f"{table.name}/int8", rounded), gather.inputs[1]], axis=0)
        scale = self.add(gather, "Gather", [self.constant(f"{table.name}/scale", scales), gather.inputs[1]], axis=0)
        return self.add(gather, "Mul", [self.add(gather, "Cast", [found], to=ir.DataType.FLOAT), scale])

    def _earlier(self, name: str, shape: tuple[int, ...]) -> Float | None:
        """The scales that an earlier build had under this name, if they are as many."""
        scales = self.scales.get(name)
        return scales if scales is not None and scales.shape == shape else None

    def choose(self, switch: ir.Value, index: int, exact: ir.Value, quantized: ir.Value) -> None:
        """Let readers of `exact` read exact + switch[index] * (quantized - exact)."""
        readers = list(exact.uses())
        before = readers[0].node
        flag = self.add(before, "Gather", [switch, self.constant(f"index/{index}", np.array(index, np.int64))], axis=0)
        difference = self.add(before, "Sub", [quantized, exact])
        chosen = self.add(before, "Add", [exact, self.add(before, "Mul", [difference, flag])])
        for use in readers:
            use.node.replace_input_with(use.idx, chosen)

    def add(
        self, before: ir.Node, op: str, inputs: Sequence[ir.Value | None], *, domain: str = "", **attributes: object
    ) -> ir.Value:
        """One node, put before another one."""
        self._count += 1
        node = ir.node(op, inputs, attributes=attributes, domain=domain, name=f"q{self._count}_{op}")
        node.outputs[0].name = node.name
        self.graph.insert_before(before, node)
        return node.outputs[0]

    def constant(self, name: str, array: NDArray[np.generic] | np.generic) -> ir.Value:
        """A constant by its name; the same name is the same constant."""
        if name not in self._constants:
            free = name
            while free in self.graph.initializers:  # the graph may have a constant of that name already
                free += "_"
            tensor = ir.tensor(np.asarray(array), name=free)
            value = ir.Value(
                name=free,
                shape=ir.Shape(list(tensor.shape.numpy())),
                type=ir.TensorType(tensor.dtype),
                const_value=tensor,
            )
            self.graph.register_initializer(value)
            self._constants[name] = value
        return self._constants[name]
