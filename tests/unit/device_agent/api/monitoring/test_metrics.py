from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families

from device_agent.api.monitoring.exposition import TRITON_DURATIONS, escape, parse_memory, triton_family
from device_agent.api.monitoring.metrics import (
    CONTENT_TYPE,
    REASONS,
    TRITON_REASONS,
    CpuMeter,
    Metrics,
    parse_cpu_times,
    reason_of,
    triton_reason_of,
)
from device_agent.api.monitoring.updates import UpdatesView
from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.inference.rows import Answer
from device_agent.models.loaded import LoadedModel
from device_agent.models.loading import load_model
from device_agent.models.registry import Models
from edgeonnx import errors
from edgeonnx.spec.manifest import Task
from tests.support.bundles import CPU_VARIANTS, make_bundle
from tests.support.cpus import profile_of

LoadTiny = Callable[..., LoadedModel]
TINY = {"model": "tiny", "version": "1.0.0"}


@pytest.fixture
def loaded(loaded_models: LoadTiny) -> LoadedModel:
    return loaded_models()


async def serving(*loaded: LoadedModel) -> Models:
    models = Models(AgentConfig())
    for each in loaded:
        models.serve(each)
    return models


def rendered(metrics: Metrics, *loaded: LoadedModel) -> str:
    async def render() -> str:
        return metrics.render(await serving(*loaded)).decode()

    return asyncio.run(render())


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a scrape, as Prometheus' own parser reads it; none may be there twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    found = samples(text)
    # The parser gives every counter the suffix of OpenMetrics, which Triton's do not have.
    key = name if (name, frozenset(labels.items())) in found else f"{name}_total"
    return found[key, frozenset(labels.items())]


def answer(**times: float) -> Answer:
    return Answer(lengths=np.array([3, 4]), runs=2, batch_rows=2, **times)  # type: ignore[arg-type]


def test_a_scrape_is_valid_and_each_family_stands_once(loaded_models: LoadTiny) -> None:
    metrics = Metrics()
    metrics.responded(200)
    metrics.refused(errors.OverloadedError("full", retry_after=1))
    text = rendered(metrics, loaded_models(), loaded_models(Task.TEXT_CLASSIFICATION, "other"))
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert set(re.findall(r"^# HELP (\S+) .", text, re.MULTILINE)) == set(names)
    assert samples(text)
    # All lines of a family stand together: Prometheus takes them for another family otherwise.
    order = [
        re.sub(r"_(bucket|sum|count|total|created)$", "", line.split("{")[0].split(" ")[0])
        for line in text.splitlines()
        if line[0] != "#"
    ]
    seen = [name for index, name in enumerate(order) if index == 0 or order[index - 1] != name]
    assert len(seen) == len(set(seen))


def test_tritons_counters_under_tritons_names(loaded: LoadedModel) -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.succeeded(
            loaded, answer(tokenize_seconds=0.001, infer_seconds=0.01, queue_seconds=0.0001), output=0.0002, total=0.02
        )
    metrics.failed(loaded, errors.InferenceError("x"))
    text = rendered(metrics, loaded)
    expected = {
        "request_success": 2,
        "count": 4,
        "request_duration_us": 40_000,
        "queue_duration_us": 200,
        "compute_input_duration_us": 2_000,
        "compute_infer_duration_us": 20_000,
        "compute_output_duration_us": 400,
    }
    for name, number in expected.items():
        assert f"# TYPE nv_inference_{name} counter\n" in text
        assert f'nv_inference_{name}{{model="tiny",version="1.0.0"}} {number}\n' in text
    assert value(text, "nv_inference_exec_count", **TINY) == loaded.batcher.state().counts.runs
    assert value(text, "nv_inference_pending_request_count", **TINY) == 0
    failures = {reason: value(text, "nv_inference_request_failure", reason=reason, **TINY) for reason in TRITON_REASONS}
    assert failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 1, "OTHER": 0}


def test_our_counters(loaded: LoadedModel) -> None:
    metrics = Metrics()
    metrics.succeeded(loaded, answer(queue_seconds=0.003), output=0.0, total=0.02)
    metrics.responded(200)
    metrics.responded(200)
    metrics.responded(404)
    text = rendered(metrics, loaded)
    assert value(text, "edgeonnx_tokens_total", **TINY) == 7
    assert value(text, "edgeonnx_request_duration_seconds_sum", **TINY) == 0.02
    assert value(text, "edgeonnx_request_duration_seconds_bucket", le="0.01", **TINY) == 0
    assert value(text, "edgeonnx_request_duration_seconds_bucket", le="0.02", **TINY) == 1
    assert value(text, "edgeonnx_queue_wait_seconds_bucket", le="0.005", **TINY) == 1
    assert value(text, "edgeonnx_queue_wait_seconds_bucket", le="+Inf", **TINY) == 1
    assert value(text, "edgeonnx_http_responses_total", status="200") == 2
    assert value(text, "edgeonnx_http_responses_total", status="404") == 1
    assert value(text, "edgeonnx_queue_rows", **TINY) == 0
    assert value(text, "edgeonnx_runners", **TINY) == loaded.batcher.state().runners
    assert value(text, "edgeonnx_batch_rows_count", **TINY) == loaded.batcher.state().counts.runs
    assert value(text, "edgeonnx_assignment_share", provider="CPUExecutionProvider", **TINY) == 1
    assert value(text, "edgeonnx_provider_fallbacks_total", **TINY) == 0
    assert value(text, "edgeonnx_model_memory_bytes", **TINY) == loaded.memory_bytes
    assert value(text, "edgeonnx_model_load_seconds", step="golden", **TINY) > 0
    assert value(text, "edgeonnx_model_events_total", event="loaded") == 1
    assert value(text, "edgeonnx_agent_state", state="ready") == 1
    assert value(text, "edgeonnx_agent_state", state="loading") == 0


def test_why_a_queue_did_not_answer(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = loaded.batcher.state().counts
    monkeypatch.setattr(loaded.batcher, "_counts", counts)
    counts.refused_full, counts.refused_late, counts.expired, counts.cancelled = 1, 2, 3, 4
    text = rendered(Metrics(), loaded)
    found = {
        reason: value(text, "edgeonnx_queue_refusals_total", reason=reason, **TINY)
        for reason in ("full", "late", "expired", "cancelled")
    }
    assert found == {"full": 1, "late": 2, "expired": 3, "cancelled": 4}


def test_the_machine_and_the_process(loaded: LoadedModel) -> None:
    text = rendered(Metrics(), loaded)
    assert value(text, "process_resident_memory_bytes") > 1 << 20
    assert 0 <= value(text, "nv_cpu_utilization") <= 1
    assert 0 < value(text, "nv_cpu_memory_used_bytes") < value(text, "nv_cpu_memory_total_bytes")


def test_each_variant_is_used_or_has_its_reason(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, variants=CPU_VARIANTS)
    config = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))
    loaded = load_model(bundle, config, profile=profile_of("Core i5-4300U"))
    try:
        text = rendered(Metrics(), loaded)
    finally:
        loaded.close()
    found = {
        (labels["variant"], labels["precision"], labels["reason"]): number
        for (name, pairs), number in samples(text).items()
        if name == "edgeonnx_variant_used" and (labels := dict(pairs))
    }
    saturation = (
        "int8 weights up to 127 would saturate on this CPU: x86-64 without VNNI adds pairs of products in 16 bits"
    )
    assert found == {
        ("cpu-fp32", "fp32", "cpu-int8-7bit is preferred"): 0,
        ("cpu-int8", "int8", saturation): 0,
        ("cpu-int8-7bit", "int8-7bit", ""): 1,
    }
    labels = {"variant": "cpu-int8-7bit", "precision": "int8-7bit", "provider": "CPUExecutionProvider"}
    assert value(text, "edgeonnx_model_info", tokenizer=loaded.text.backend, **labels, **TINY) == 1


def test_without_a_model_no_model_has_samples() -> None:
    text = rendered(Metrics())
    assert "nv_inference" not in text
    assert "version=" not in text
    assert value(text, "edgeonnx_agent_state", state="loading") == 1


def test_a_model_that_is_gone_is_forgotten(loaded_models: LoadTiny) -> None:
    metrics = Metrics()
    one, other = loaded_models(), loaded_models(Task.TEXT_CLASSIFICATION, "other")
    metrics.succeeded(one, answer(), output=0.0, total=0.1)
    metrics.succeeded(other, answer(), output=0.0, total=0.1)
    assert 'model="other"' in rendered(metrics, one, other)
    assert 'model="other"' not in rendered(metrics, one)
    text = rendered(metrics, one, other)
    assert value(text, "nv_inference_request_success", model="tiny", version="1.0.0") == 1
    assert value(text, "nv_inference_request_success", model="other", version="1.0.0") == 0


def test_the_content_type_is_the_libraries_own() -> None:
    assert CONTENT_TYPE == CONTENT_TYPE_PLAIN_0_0_4


def test_labels_are_escaped() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    text = triton_family("nv_x", "Help", [({"model": 'a"\n'}, 0.5)], kind="gauge")
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"model": 'a"\n'}
    assert family.samples[0].value == 0.5
    assert triton_family("nv_x", "Help", []) == ""


def test_large_counts_keep_every_digit() -> None:
    assert triton_family("nv_x", "Help", [({}, 123_456_789_012)]).endswith("\nnv_x 123456789012\n")


@pytest.mark.parametrize(
    ("error", "reason", "triton"),
    [
        (errors.InvalidRequestError("x"), "invalid", "OTHER"),
        (errors.OverloadedError("x", retry_after=1), "overloaded", "REJECTED"),
        (errors.DeadlineExceededError("x"), "deadline", "REJECTED"),
        (errors.ClientGoneError("x"), "client_gone", "CANCELED"),
        (errors.ProviderLostError("x"), "runtime", "BACKEND"),
        (errors.NotReadyError("x"), "not_ready", "OTHER"),
        (ZeroDivisionError(), "internal", "OTHER"),
    ],
)
def test_reasons(error: Exception, reason: str, triton: str) -> None:
    assert reason_of(error) == reason
    assert triton_reason_of(error) == triton


def test_every_serving_error_has_a_reason() -> None:
    assert set(errors.ServingError.__subclasses__()) <= set(REASONS)


def test_a_failure_counts_once_for_the_model_and_once_for_the_agent(connect) -> None:
    client = connect()
    assert client.post("/v1/embeddings", json={"model": "tiny", "input": ["the cat", "hello"]}).status_code == 200
    assert client.post("/v1/embeddings", content=b"nonsense").status_code == 400
    assert client.post("/v1/embeddings", json={"model": "other", "input": "x"}).status_code == 404
    text = client.get("/metrics").text
    assert value(text, "nv_inference_request_success", **TINY) == 1
    assert value(text, "nv_inference_count", **TINY) == 2
    assert value(text, "edgeonnx_refusals_total", reason="invalid") == 1
    assert value(text, "edgeonnx_refusals_total", reason="model_not_found") == 1
    assert value(text, "edgeonnx_http_responses_total", status="404") == 1


def test_tritons_durations_are_fields_of_the_statistics(loaded: LoadedModel) -> None:
    statistics = Metrics().statistics.of(loaded)
    assert all(hasattr(statistics, field) for field, _ in TRITON_DURATIONS.values())


def test_cpu_times() -> None:
    assert parse_cpu_times("cpu  10 1 5 100 20 2 2 0 7 0") == (20, 140)
    for line in ("", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu a b c d e f g h"):
        with pytest.raises(ValueError, match=r"line of all CPUs|invalid literal"):
            parse_cpu_times(line)


def test_utilization_is_between_two_looks() -> None:
    meter = CpuMeter()
    meter.utilization()
    assert meter.utilization() is not None
    assert 0 <= (meter.utilization() or 0.0) <= 1


def test_memory_of_the_machine() -> None:
    assert parse_memory("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable: 512 kB\n") == (2 << 20, 512 << 10)
    assert parse_memory("MemTotal:  2048 kB\n") is None
    assert parse_memory("") is None


def test_the_documentation_lists_exactly_these_metrics(loaded: LoadedModel, loaded_models: LoadTiny) -> None:
    generating = loaded_models(Task.TEXT_GENERATION, "chatty")
    page = Path(__file__).parents[5] / "docs" / "operations.md"
    listed = re.findall(r"^\| `((?:nv|edgeonnx)_\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    metrics = Metrics()
    metrics.updates = lambda: UpdatesView(enrolled=True, running=False, checked_at=1.0)
    found = re.findall(r"^# TYPE ((?:nv|edgeonnx)_\w+) ", rendered(metrics, loaded, generating), re.MULTILINE)
    assert sorted(listed) == sorted(found)
