"""Every recipe of ONNX Runtime's tools on the real model: size and closeness to fp32 on real texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeonnx.model.graph import StoredGraph
from edgeonnx.quantize.half import emulate_bf16, to_half
from edgeonnx.quantize.ort_dynamic import quantize_ort_dynamic
from edgeonnx.quantize.static_qdq import quantize_static_qdq
from edgeonnx.quantize.weight_only import quantize_weight_only
from tests.support.graphs import OUTPUT, min_cosine, packaged_batches, packaged_graph, run_graph
from tests.support.packaged import open_packaged
from tests.support.texts import vader_texts

pytestmark = pytest.mark.slow
MILLION = 1_000_000


@pytest.fixture(scope="module")
def minilm(minilm_bundle: Path) -> tuple[StoredGraph, list, list, list]:
    """The fp32 graph, calibration batches, other batches, and the graph's answers to these."""
    packaged = open_packaged(minilm_bundle, "cpu-fp32")
    texts = vader_texts()[:: len(vader_texts()) // 128]
    graph = packaged_graph(packaged)
    batches = packaged_batches(packaged, texts[1:128:2], 16)
    return graph, packaged_batches(packaged, texts[:128:2], 8), batches, run_graph(graph, batches)


@pytest.mark.parametrize(
    ("recipe", "megabytes", "closeness"),
    [
        (lambda graph, _: to_half(graph, "fp16"), 45.1, 0.9999),
        (lambda graph, _: emulate_bf16(graph), 90.3, 0.999),
        (lambda graph, _: quantize_weight_only(graph, bits=8), 59.8, 0.995),
        (lambda graph, _: quantize_weight_only(graph, bits=4), 54.5, 0.8),
        (lambda graph, _: quantize_weight_only(graph, bits=4, embeddings=True), 14.3, 0.8),
        (lambda graph, _: quantize_ort_dynamic(graph), 22.8, 0.92),
        (quantize_static_qdq, 58.6, 0.85),
    ],
    ids=["fp16", "bf16-emulated", "weights-8", "weights-4", "weights-4-all", "dynamic", "static"],
)
def test_size_and_closeness(
    minilm: tuple[StoredGraph, list, list, list],
    recipe: Callable[[StoredGraph, list], StoredGraph],
    megabytes: float,
    closeness: float,
) -> None:
    graph, calibration, batches, want = minilm
    made = recipe(graph, calibration)
    have = run_graph(made, batches)
    assert megabytes - 0.3 < made.tensor_bytes / MILLION <= megabytes
    assert all(np.isfinite(answer[OUTPUT]).all() for answer in have)
    assert closeness <= min_cosine(want, have) < 1


def test_bf16_is_half_the_bytes(minilm: tuple[StoredGraph, list, list, list]) -> None:
    assert to_half(minilm[0], "bf16").tensor_bytes < minilm[0].tensor_bytes * 0.501
