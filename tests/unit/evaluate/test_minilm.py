"""The measurements on the real MiniLM: its exported graph is the source's equal, and plain dynamic int8 is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from edgeonnx.bundle import open_bundle
from edgeonnx.evaluate.answers import answer_rows
from edgeonnx.evaluate.fidelity import measure_fidelity
from edgeonnx.evaluate.gate import default_thresholds
from edgeonnx.evaluate.invariance import measure_invariance
from edgeonnx.evaluate.speed import measure_together
from edgeonnx.model.reference import Reference
from edgeonnx.model.runtime import open_graph
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import Verdict, judge

if TYPE_CHECKING:
    from edgeonnx.evaluate.answers import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts(minilm_bundle: Path) -> Reference:
    """The bundle's golden set, taken apart: the source model's own answers to 16 texts."""
    golden = open_bundle(minilm_bundle).golden()
    lengths = golden.mask.sum(axis=1).tolist()
    return Reference(
        texts=golden.texts,
        pairs=None,
        inputs=tuple({n: v[[row], :length] for n, v in golden.inputs.items()} for row, length in enumerate(lengths)),
        outputs=tuple({n: v[[row]] for n, v in golden.outputs.items()} for row in range(len(lengths))),
        pad_ids={"input_ids": 0, "token_type_ids": 0},
    )


@pytest.fixture(scope="module")
def exported(minilm_bundle: Path) -> Run:
    bundle = open_bundle(minilm_bundle)
    variant = next(item for item in bundle.manifest.components["encoder"].variants if item.precision == "fp32")
    return open_graph(bundle.model_path("encoder", variant), bundle.tensors_path(variant), threads=1)


@pytest.fixture(scope="module")
def dynamic(minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What every tool ships; only MatMul, because on opset 23 it takes `Attention` for an operator of its own."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = tmp_path_factory.mktemp("dynamic")
    bundle = open_bundle(minilm_bundle)
    variant = next(item for item in bundle.manifest.components["encoder"].variants if item.precision == "fp32")
    model = onnx.load(bundle.model_path("encoder", variant), load_external_data=False)
    onnx.load_external_data_for_model(model, str(bundle.tensors_path(variant)))
    onnx.save(model, folder / "fp32.onnx")
    wanted = {"op_types_to_quantize": ["MatMul"], "per_channel": True, "weight_type": QuantType.QInt8}
    quantize_dynamic(folder / "fp32.onnx", folder / "int8.onnx", **wanted)
    return open_graph(folder / "int8.onnx", None, threads=1)


def verdict(run: Run, texts: Reference, precision: str) -> Verdict:
    fidelity = measure_fidelity(Task.EMBEDDING, texts, answer_rows(run, texts))
    invariance = measure_invariance(run, texts, max_length=256)
    bounds = default_thresholds(Task.EMBEDDING, precision, labelled=False)
    return judge({**fidelity.metrics, **invariance.metrics}, bounds)


def test_the_exported_graph_keeps_the_bounds_of_fp32(exported: Run, texts: Reference) -> None:
    assert verdict(exported, texts, "fp32").failures == ()


def test_plain_dynamic_int8_is_stopped_by_the_gate(dynamic: Run, texts: Reference) -> None:
    found = verdict(dynamic, texts, "int8")
    measured = {bound.metric: value for bound, value in found.judged if not bound.passes(value)}
    assert measured["invariance_min"] < 0.999
    assert 0.9 < measured["cosine_mean"] < 0.998


def test_its_speed_is_measured_beside_fp32(exported: Run, dynamic: Run, texts: Reference) -> None:
    runs = {"fp32": exported, "int8": dynamic}
    found = measure_together(runs, texts, threads=1, seconds=0.5)
    assert found["int8"].texts_per_second > found["fp32"].texts_per_second
    for timing in found.values():
        assert timing.tokens == sum(texts.lengths)
        assert 0.1 < timing.latency_ms <= timing.latency_p95_ms < 5000
