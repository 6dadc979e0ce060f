"""Which operators a graph has, as it was written and as ONNX Runtime runs it."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from edgeonnx.model.runtime import open_graph

if TYPE_CHECKING:
    from edgeonnx.model.graph import StoredGraph


def written_operators(graph: StoredGraph) -> dict[str, int]:
    """Count by operator, sorted by name; operators of other domains carry theirs (`com.microsoft.MatMulNBits`)."""
    return _count(onnx.ModelProto.FromString(graph.model))


def loaded_operators(path: Path) -> dict[str, int]:
    """The same after ONNX Runtime's own optimizations for the CPU.

    Args:
        path: The graph, beside its tensors.
    """
    with tempfile.TemporaryDirectory(prefix="edgeonnx-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        open_graph(path, None, threads=1, optimized=optimized)
        return _count(onnx.load(str(optimized), load_external_data=False))


def _count(model: onnx.ModelProto) -> dict[str, int]:
    names = (
        node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}" for node in model.graph.node
    )
    return dict(sorted(Counter(names).items()))
