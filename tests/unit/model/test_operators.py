"""Operators are counted by domain, as written and as ONNX Runtime runs them."""

from __future__ import annotations

from pathlib import Path

from edgeonnx.model.operators import loaded_operators, written_operators
from tests.support.graphs import op_counts, tiny_graph


def test_written_operators_are_counted_and_sorted() -> None:
    graph = tiny_graph()
    found = written_operators(graph)
    assert found == op_counts(graph)
    assert found["MatMul"] == 6
    assert list(found) == sorted(found)


def test_loaded_operators_are_those_that_run(tmp_path: Path) -> None:
    graph = tiny_graph()
    found = loaded_operators(graph.write(tmp_path))
    # The runtime fuses Gelu with its bias, and normalizations with the sums before them.
    assert found["com.microsoft.BiasGelu"] == 1
    assert "Gelu" not in found
    assert found["MatMul"] == 6
    assert list(found) == sorted(found)
