"""Putting quantized nodes into a decoder's graph in place of float ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from edgeonnx.quantize.decoder.grids import GRID_SIZE
from edgeonnx.quantize.decoder.sites import NORMS, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.quantize.decoder.blocks import Blocks
    from edgeonnx.quantize.decoder.choose import Choice
    from edgeonnx.quantize.decoder.sites import Embedding, Site

    Float = NDArray[np.float32]

CONTRIB = "com.microsoft"


@dataclass
class Builder:
    """Puts quantized nodes into a graph in place of float ones."""

    graph: ir.Graph
    accuracy_level: int
    _count: int = 0

    def site(self, site: Site, chosen: Choice) -> None:
        """Replace the matrices of a site.

        Args:
            site: The site.
            chosen: How.
        """
        if chosen.smoothing is not None:
            self.divide_norm(site, chosen.smoothing)
        first = site.nodes[0]
        source = self._with_means(site.source, first) if chosen.means else site.source
        for node, blocks in zip(site.nodes, chosen.matrices, strict=True):
            output = self._multiply(node, source, blocks)
            _take_over(node, output)

    def table(self, embedding: Embedding, blocks: Blocks, smoothing: Float | None) -> None:
        """Replace the lookup of tokens.

        Args:
            embedding: The lookup.
            blocks: The table, (tokens, width).
            smoothing: What the head's weights were multiplied by, if the table is the head's.
        """
        node = embedding.node
        values, scales, zero_points = self._stored(embedding.table, blocks)
        axis = self.constant("last_axis", np.array([2], dtype=np.int64))
        columns = [
            None if value is None else self.add(node, "Unsqueeze", [value, axis]) for value in (scales, zero_points)
        ]
        found = self.add(
            node,
            "GatherBlockQuantized",
            [values, node.inputs[1], *(value for value in columns if value is not None)],
            domain=CONTRIB,
            bits=blocks.bits,
            block_size=blocks.size,
            gather_axis=0,
            quantize_axis=2,
        )
        joined = self.add(node, "Reshape", [found, self.constant("join_blocks", np.array([0, 0, -1], dtype=np.int64))])
        if blocks.inputs != blocks.values.shape[1] * blocks.size:
            ends = [
                self.constant(f"{name}", np.array([size], dtype=np.int64))
                for name, size in (("zero", 0), ("table_width", blocks.inputs))
            ]
            joined = self.add(node, "Slice", [joined, *ends, axis])
        if smoothing is not None:
            inverse = self.constant(f"{embedding.table.name}.smoothing", (1 / smoothing).astype(np.float32))
            joined = self.add(node, "Mul", [joined, inverse])
        _take_over(node, joined)

    def divide_norm(self, site: Site, smoothing: Float) -> None:
        """Let the norm in front of a site divide each channel by s.

        Args:
            site: A site with a norm.
            smoothing: s, float32 (inputs,).
        """
        norm = site.norm
        assert norm is not None  # noqa: S101 - nothing else is smoothed
        for place in NORMS[norm.op_type]:
            value = norm.inputs[place] if place < len(norm.inputs) else None
            if value is not None:
                divided = np.asarray(numbers(value) / smoothing, dtype=np.float32)
                norm.replace_input_with(place, self.constant(f"{value.name}.smoothed", divided))

    def _with_means(self, source: ir.Value, before: ir.Node) -> ir.Value:
        """A tensor (batch, sequence, inputs) with the mean of each 32 inputs behind them."""
        means = self.add(before, "AveragePool", [source], kernel_shape=[GRID_SIZE], strides=[GRID_SIZE])
        return self.add(before, "Concat", [source, means], axis=-1)

    def _multiply(self, node: ir.Node, source: ir.Value, blocks: Blocks) -> ir.Value:
        weight = node.inputs[1]
        assert weight is not None  # noqa: S101 - it is a matrix
        stored = [value for value in self._stored(weight, blocks) if value is not None]
        return self.add(
            node,
            "MatMulNBits",
            [source, *stored],
            domain=CONTRIB,
            name=node.name,
            K=blocks.inputs,
            N=len(blocks.values),
            bits=blocks.bits,
            block_size=blocks.size,
            accuracy_level=self.accuracy_level,
        )

    def _stored(self, weight: ir.Value, blocks: Blocks) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """Values, scales and zero points of a matrix as constants; a matrix that is read twice is stored once."""
        name = f"{weight.name}.int{blocks.bits}"
        zero_points = blocks.packed_zero_points()
        return (
            self.constant(name, blocks.packed_values()),
            self.constant(f"{name}.scales", blocks.scales),
            None if zero_points is None else self.constant(f"{name}.zero_points", zero_points),
        )

    def add(
        self,
        before: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        *,
        domain: str = "",
        name: str | None = None,
        **attributes: object,
    ) -> ir.Value:
        """One node, put before another one."""
        self._count += 1
        made = f"q{self._count}_{op}"
        node = ir.node(op, inputs, attributes=attributes, domain=domain, name=name or made)
        node.outputs[0].name = made
        self.graph.insert_before(before, node)
        return node.outputs[0]

    def constant(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        """A constant by its name; the same name with the same numbers is the same constant."""
        known = self.graph.initializers.get(name)
        if known is not None and known.const_value is not None and np.array_equal(known.const_value.numpy(), array):
            return known
        while name in self.graph.initializers:
            name += "_"
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(list(tensor.shape.numpy())),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.graph.register_initializer(value)
        return value


def _take_over(node: ir.Node, output: ir.Value) -> None:
    """Let everything that reads a node's output, and the graph itself, have another value."""
    old = node.outputs[0]
    output.type, output.shape = old.type, old.shape
    if old.is_graph_output():
        output.name, old.name = old.name, f"{old.name}.float"
    old.replace_all_uses_with(output, replace_graph_outputs=True)
