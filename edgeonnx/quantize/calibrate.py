"""What the tensors in front of linear layers look like on real text."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgeonnx.bundle.golden import MASK_INPUT
from edgeonnx.model.graph import restore_graph, store_graph
from edgeonnx.model.runtime import open_graph
from edgeonnx.quantize.linears import find_groups
from edgeonnx.quantize.migrate import Activations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgeonnx.model.graph import StoredGraph
    from edgeonnx.model.ports import IntTensors

SAMPLE_ROWS = 1024


def calibrate(graph: StoredGraph, batches: Sequence[IntTensors]) -> dict[str, Activations]:
    """Run the graph on real text and look at what each group of linear layers reads.

    Args:
        graph: The float graph.
        batches: Its inputs, int64 (rows, tokens) by name. Padding is not looked at.

    Returns:
        Activations by the group's name. One thread computes them, so that a machine with more cores sums alike.
    """
    model = restore_graph(graph)
    sources = {group.name: group.source for group in find_groups(model.graph)}
    for value in dict.fromkeys(sources.values()):
        if not value.is_graph_output():
            model.graph.outputs.append(value)
    found: dict[str, list[NDArray[np.float32]]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory(prefix="edgeonnx-") as folder:
        run = open_graph(store_graph(model).write(Path(folder)), None, threads=1)
        for batch in batches:
            outputs, real = run(batch), batch[MASK_INPUT] != 0
            for name, value in sources.items():
                found[name].append(np.asarray(outputs[str(value.name)])[real])
    return {name: _summary(np.concatenate(rows)) for name, rows in found.items()}


def _summary(rows: NDArray[np.float32]) -> Activations:
    """Channel maxima over all rows, and rows evenly spread over them."""
    spread = np.linspace(0, len(rows) - 1, min(SAMPLE_ROWS, len(rows))).round().astype(np.int64)
    return Activations(largest=np.abs(rows).max(axis=0), rows=np.ascontiguousarray(rows[spread]))
