"""Damaged graphs: facts are told, or our error is raised, and nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.spec.manifest import Task
from edgeonnx.validate.checker import check_graph, check_locations, check_signature
from edgeonnx.validate.inspection import inspect_graph
from tests.support.bundles import OUTPUTS, graph, signature
from tests.support.outcome import refusal

TASK = Task.TEXT_CLASSIFICATION
MODEL, TENSORS = graph(TASK)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_a_damaged_graph_is_told_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(MODEL)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    model = bytes(damaged[: data.draw(st.integers(0, len(damaged)))]) if data.draw(st.booleans()) else bytes(damaged)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "model.onnx"
        file.write_bytes(model)
        for tensor, content in TENSORS.items():
            (folder / tensor).write_bytes(content)
        refusal(lambda: json.dumps(inspect_graph(file).to_dict()))
        refusal(lambda: check_locations(file, None))
        refusal(lambda: check_signature(file, signature(TASK)))
        refusal(lambda: check_graph(model, folder, signature(TASK), OUTPUTS[TASK]))
