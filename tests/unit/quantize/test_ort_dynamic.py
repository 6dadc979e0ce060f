"""ONNX Runtime's dynamic quantization, and the trap that it sets for graphs of opset 23."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import quantize_dynamic

from edgeonnx.errors import ValidationError
from edgeonnx.model.runtime import open_graph
from edgeonnx.quantize.ort_dynamic import quantize_ort_dynamic
from tests.support.graphs import OUTPUT, op_counts, run_graph, tensor, tiny_batches, tiny_graph


def test_the_trap_is_still_there(tmp_path: Path) -> None:
    """By default the tool takes the standard Attention for its contrib operator. If this fails, it was mended."""
    made = tmp_path / "made.onnx"
    quantize_dynamic(tiny_graph().write(tmp_path), made)
    with pytest.raises(ValidationError, match="does not load"):
        open_graph(made, None)


def test_the_standard_attention_is_left_alone() -> None:
    made = quantize_ort_dynamic(tiny_graph())
    counts = op_counts(made)
    assert counts["Attention"] == 1
    assert counts["MatMulInteger"] == 6
    assert made.domains == ()


def test_weights_and_embeddings_are_a_quarter() -> None:
    graph = tiny_graph()
    made = quantize_ort_dynamic(graph)
    assert made.tensor_bytes * 4 == graph.tensor_bytes
    assert tensor(made, "up_quantized").dtype == np.int8
    assert tensor(made, "up_scale").shape == (128,)


def test_one_scale_a_tensor_and_seven_bits_on_request() -> None:
    made = quantize_ort_dynamic(tiny_graph(), per_channel=False, reduce_range=True)
    assert tensor(made, "up_scale").size == 1
    assert np.abs(tensor(made, "up_quantized").astype(int)).max() <= 64
    assert np.abs(tensor(quantize_ort_dynamic(tiny_graph()), "up_quantized").astype(int)).max() == 127


def test_an_answer_depends_on_its_neighbours() -> None:
    """Why this recipe is only here to be compared with."""
    made = quantize_ort_dynamic(tiny_graph())
    (batch,) = tiny_batches([(8, 12)])
    (together,), (alone,) = run_graph(made, [batch]), run_graph(made, [{k: v[:1] for k, v in batch.items()}])
    assert np.abs(together[OUTPUT][:1] - alone[OUTPUT]).max() > 1e-4
