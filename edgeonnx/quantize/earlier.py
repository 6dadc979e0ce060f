"""How an earlier version of a model was quantized, read back from its graphs, so that the next one can repeat it.

A light fine-tune moves most int8 weights by less than a step. They stay the same bytes only if nothing else moves: the
factors of the migration (a step of theirs changes a whole row of a weight), the zero points, the scales, and the choice
of what stays in float. All of that stands in the earlier bundle:

- strengths, zero points and what was kept: in the variant's recipe;
- scales: constants `<weight>/scale` of the quantized graph;
- migration factors: the constant `<weights>/smoothing` of the quantized graph, which holds 1/s. Where s went into the
  value projection in front of a group instead, there is no such constant; s is then how much smaller each of that
  projection's columns is in the quantized graph than in the float graph of the same bundle. Factors are rounded to
  eighths of an octave, 9 %, so the rounding of the weights cannot hide which one it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.model.graph import restore_graph
from edgeonnx.quantize.linears import find_groups, value_layer
from edgeonnx.quantize.migrate import GroupPlan, round_to_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.quantize.linears import LinearGroup
    from edgeonnx.spec.parse import Node

    Float = NDArray[np.float32]

SCALE, SMOOTHING, INT8 = "/scale", "/smoothing", "/int8"


@dataclass(frozen=True, kw_only=True, eq=False)
class EarlierPlan:
    """What an earlier build decided.

    Attributes:
        groups: How each group's activations were quantized, by its name; a group of which that cannot be told is not
            here and is planned anew.
        kept: Names of the groups and tables that stayed in float.
        scales: Weight scales by the name of their constant, float32.
    """

    groups: dict[str, GroupPlan]
    kept: frozenset[str]
    scales: dict[str, Float]


def read_plan(recipe: Node, quantized: StoredGraph, exact: StoredGraph) -> EarlierPlan:
    """Read back how a variant was quantized.

    Args:
        recipe: The variant's recipe (`RowwisePlan.to_dict`, and `kept`).
        quantized: The variant's graph.
        exact: The graph of the same bundle in float.

    Raises:
        ManifestError: The recipe is not one of a variant with groups.
    """
    constants = read_constants(quantized)
    groups = {group.name: group for group in find_groups(restore_graph(exact).graph)}
    plans: dict[str, GroupPlan] = {}
    for node in recipe.required("groups").items():
        group = groups.get(node.text("group"))
        plan = None if group is None else _read_group(node, group, constants)
        if plan is not None:
            plans[plan.name] = plan
    kept = recipe.child("kept")
    return EarlierPlan(
        groups=plans,
        kept=frozenset() if kept is None else frozenset(item.typed(str) for item in kept.items()),
        scales={name: array for name, array in constants.items() if name.endswith(SCALE)},
    )


def read_constants(graph: StoredGraph) -> dict[str, NDArray[np.generic]]:
    """The constants of a graph by name."""
    values = restore_graph(graph).graph.initializers.items()
    return {name: value.const_value.numpy() for name, value in values if value.const_value is not None}


def _read_group(node: Node, group: LinearGroup, constants: Mapping[str, NDArray[np.generic]]) -> GroupPlan | None:
    """A group's plan, or None if its factors cannot be told."""
    error = node.required("error").typed(float)
    strength, zero_point = node.child("strength"), node.child("zero_point")
    smoothing = None
    if strength is not None:
        smoothing = _smoothing(group, constants)
        if smoothing is None:
            return None
    return GroupPlan(
        name=group.name,
        strength=None if strength is None else strength.typed(float),
        smoothing=smoothing,
        lower_bound=None if zero_point is None else group.lower_bound,
        zero_point=0 if zero_point is None else node.integer("zero_point"),
        error=error,
    )


def _smoothing(group: LinearGroup, constants: Mapping[str, NDArray[np.generic]]) -> Float | None:
    """The factors of a group's migration, float32 (inputs,), or None."""
    stated = constants.get("+".join(group.weight_names) + SMOOTHING)
    if stated is not None:
        factors = 1 / stated.astype(np.float64)
    else:
        found = value_layer(group)
        if found is None or (folded := _folded(found[0].inputs[1], constants)) is None:
            return None
        factors = folded
    if not (np.isfinite(factors) & (factors > 0)).all():
        return None
    return round_to_steps(np.log2(factors))


def _folded(weight: ir.Value | None, constants: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64] | None:
    """By how much each column of a weight is smaller in the quantized graph: the least-squares ratio, or 1 of zeros."""
    assert weight is not None and weight.const_value is not None  # noqa: S101, PT018 - a group's layers have constants
    rounded, scale = constants.get(f"{weight.name}{INT8}"), constants.get(f"{weight.name}{SCALE}")
    exact = weight.const_value.numpy().astype(np.float64)
    if rounded is None or scale is None or rounded.shape != exact.shape or scale.shape != exact.shape[1:]:
        return None
    found = rounded.astype(np.float64) * scale
    common, size = (exact * found).sum(axis=0), np.square(found).sum(axis=0)
    return np.where(common > 0, common, 1) / np.where(common > 0, size, 1)
