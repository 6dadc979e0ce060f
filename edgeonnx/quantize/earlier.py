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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.model.graph import restore_graph
from edgeonnx.quantize.linears import constant, find_groups, value_layer
from edgeonnx.quantize.migrate import GroupPlan, round_to_steps
from edgeonnx.quantize.rounding import ACTIVATION_MAX

if TYPE_CHECKING:
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
    recipes = {node.text("group"): node for node in recipe.required("groups").items()}
    reader = _Reader(constants=constants)
    for group in find_groups(restore_graph(exact).graph):
        if group.name in recipes:
            reader.read(group, recipes[group.name])
    kept = recipe.child("kept")
    return EarlierPlan(
        groups=reader.plans,
        kept=frozenset() if kept is None else frozenset(item.typed(str) for item in kept.items()),
        scales={name: np.asarray(array, np.float32) for name, array in constants.items() if name.endswith(SCALE)},
    )


def read_constants(graph: StoredGraph) -> dict[str, NDArray[np.generic]]:
    """The constants of a graph by name."""
    values = restore_graph(graph).graph.initializers.items()
    return {name: value.const_value.numpy() for name, value in values if value.const_value is not None}


@dataclass(kw_only=True)
class _Reader:
    """Reads the plans of groups in the graph's order: the factors of one may stand in the weights of one before it."""

    constants: dict[str, NDArray[np.generic]]
    plans: dict[str, GroupPlan] = field(default_factory=dict)
    _weights: dict[str, GroupPlan] = field(default_factory=dict)

    def read(self, group: LinearGroup, recipe: Node) -> None:
        """Add a group's plan, if its factors can be told."""
        strength, zero_point = recipe.child("strength"), recipe.child("zero_point")
        smoothing = None if strength is None else self._smoothing(group)
        if strength is not None and smoothing is None:
            return
        plan = GroupPlan(
            name=group.name,
            strength=None if strength is None else strength.typed(float),
            smoothing=smoothing,
            lower_bound=None if zero_point is None else group.lower_bound,
            zero_point=0 if zero_point is None else recipe.integer("zero_point", maximum=ACTIVATION_MAX - 1),
            error=recipe.required("error").typed(float),
        )
        self.plans[group.name] = plan
        self._weights.update(dict.fromkeys(group.weight_names, plan))

    def _smoothing(self, group: LinearGroup) -> Float | None:
        """The factors of a group's migration, float32 (inputs,), or None."""
        stated = self.constants.get("+".join(group.weight_names) + SMOOTHING)
        factors = self._folded(group) if stated is None else 1 / np.asarray(stated, np.float64)
        if factors is None or not (np.isfinite(factors) & (factors > 0)).all():
            return None
        return round_to_steps(np.log2(factors))

    def _folded(self, group: LinearGroup) -> NDArray[np.float64] | None:
        """The factors that went into the value projection in front: by how much each of its columns became smaller.

        The ratio is that of least squares; a column of zeros has 1.
        """
        layer = value_layer(group)
        weight = None if layer is None else layer[0].inputs[1]
        if weight is None or str(weight.name) not in self._weights:
            return None
        rounded, scale = (self.constants.get(f"{weight.name}{suffix}") for suffix in (INT8, SCALE))
        exact, plan = np.asarray(constant(weight), np.float64), self._weights[str(weight.name)]
        if rounded is None or scale is None or rounded.shape != exact.shape or scale.shape != exact.shape[1:]:
            return None
        if plan.smoothing is not None:
            exact = exact * plan.smoothing[:, None]
        found = np.asarray(rounded, np.float64) * np.asarray(scale, np.float64)
        common = (exact * found).sum(axis=0)
        return np.where(common > 0, common, 1) / np.where(common > 0, np.square(found).sum(axis=0), 1)
