from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from device_agent.api.metrics import Metrics, TritonCounters
from device_agent.config import AgentConfig
from device_agent.inference.processing import Answer
from device_agent.models import LiveModel, LoadedModel, ModelState, load_model
from tests.support.bundles import CPU_VARIANTS, make_bundle
from tests.support.cpus import profile_of

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\})? -?[0-9.e+-]+|[a-z_]+\{.*le="\+Inf"\} [0-9.]+')


@pytest.fixture
def served(loaded_models) -> tuple[Metrics, LiveModel]:
    live = LiveModel()
    loaded: LoadedModel = loaded_models()
    live.serve(loaded)
    return Metrics(), live


def test_triton_has_help_and_type_for_each_counter() -> None:
    text = TritonCounters(nv_inference_count=3).render("tiny", "1.0.0")
    assert set(TritonCounters.HELP) == {field.name for field in fields(TritonCounters)}
    for field in fields(TritonCounters):
        assert f"# TYPE {field.name} counter\n" in text
    assert 'nv_inference_count{model="tiny",version="1.0.0"} 3\n' in text


def test_times_are_summed_in_microseconds(served: tuple[Metrics, LiveModel]) -> None:
    metrics, live = served
    answer = Answer(lengths=np.array([3, 4]), tokenize_seconds=0.001, infer_seconds=0.01, runs=2)
    for _ in range(2):
        metrics.succeeded(answer, queue=0.0001, output=0.0002, total=0.02)
    text = metrics.render(live).decode()
    expected = {
        "request_success": 2,
        "count": 4,
        "exec_count": 4,
        "request_duration_us": 40_000,
        "queue_duration_us": 200,
        "compute_input_duration_us": 2_000,
        "compute_infer_duration_us": 20_000,
        "compute_output_duration_us": 400,
    }
    for name, value in expected.items():
        assert f'nv_inference_{name}{{model="tiny",version="1.0.0"}} {value}\n' in text
    assert "edgeonnx_tokens_total 14.0\n" in text


def test_every_line_is_a_comment_or_a_sample(served: tuple[Metrics, LiveModel]) -> None:
    metrics, live = served
    metrics.responded(200)
    for line in metrics.render(live).decode().splitlines():
        assert line.startswith("# ") or LINE.fullmatch(line), line


def test_exactly_one_state_is_1(served: tuple[Metrics, LiveModel]) -> None:
    metrics, live = served
    states = re.findall(r'edgeonnx_model_state\{state="(\w+)"\} 1\.0', metrics.render(live).decode())
    assert states == [ModelState.READY.value]


def test_each_variant_is_used_or_has_its_reason(tmp_path: Path) -> None:
    live = LiveModel()
    bundle = make_bundle(tmp_path, variants=CPU_VARIANTS)
    live.serve(load_model(bundle, AgentConfig(threads=1), profile=profile_of("Core i5-4300U")))
    text = Metrics().render(live).decode()
    found = re.findall(r'edgeonnx_variant_used\{precision="([^"]*)",reason="([^"]*)",variant="([^"]*)"\} (\S+)', text)
    saturation = (
        "int8 weights up to 127 would saturate on this CPU: x86-64 without VNNI adds pairs of products in 16 bits"
    )
    assert sorted(found) == [
        ("fp32", "cpu-int8-7bit is preferred", "cpu-fp32", "0.0"),
        ("int8", saturation, "cpu-int8", "0.0"),
        ("int8-7bit", "", "cpu-int8-7bit", "1.0"),
    ]
    assert 'precision="int8-7bit",provider="CPUExecutionProvider"' in text


def test_without_a_model_there_are_no_labels_to_give() -> None:
    assert b"nv_inference" not in Metrics().render(LiveModel())
