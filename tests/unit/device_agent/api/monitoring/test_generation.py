"""What is counted and shown of a model that generates text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from device_agent.api.context import Context
from device_agent.api.monitoring.generation import Generated, GenerationCounters
from device_agent.api.monitoring.metrics import Metrics
from device_agent.api.monitoring.status import read_status
from device_agent.api.monitoring.status_page import render_page
from device_agent.config import AgentConfig
from device_agent.inference.generation.request import Finished, GenerationRequest
from device_agent.models.loaded import LoadedDecoder, LoadedModel
from device_agent.models.registry import Models
from edgeonnx.errors import InferenceError
from edgeonnx.spec.manifest import Task
from tests.support import decoders
from tests.unit.device_agent.api.monitoring.test_metrics import rendered, samples, value

LABELS = {"model": "chatty", "version": "1.0.0"}


@pytest.fixture
def loaded(loaded_models: Callable[..., LoadedModel]) -> LoadedDecoder:
    found = loaded_models(Task.TEXT_GENERATION, "chatty")
    assert isinstance(found, LoadedDecoder)
    return found


def sequence(**changes: Any) -> Generated:
    values: dict[str, Any] = {"prompt_tokens": 7, "completion_tokens": 11, "queue": 0.5, "first": 0.7, "total": 1.7}
    return Generated(**{**values, **changes})


def test_times_of_a_sequence() -> None:
    found = sequence()
    assert found.prompt_seconds == pytest.approx(0.2)
    assert found.token_seconds == pytest.approx(0.1)
    assert sequence(completion_tokens=1).token_seconds is None
    nothing = sequence(first=None, completion_tokens=0)
    assert (nothing.prompt_seconds, nothing.token_seconds) == (None, None)


def test_a_sequence_as_its_generator_tells_it() -> None:
    end = Finished(
        reason="stop",
        prompt_tokens=7,
        completion_tokens=11,
        cached_tokens=0,
        queue_seconds=0.5,
        prompt_seconds=0.2,
        decode_seconds=1.0,
    )
    found = Generated.of(end, before=0.1)
    assert (found.queue, found.first, found.total) == (0.5, pytest.approx(0.8), pytest.approx(1.8))
    assert found.token_seconds == pytest.approx(0.1)


def test_histograms_hold_what_there_was() -> None:
    counters = GenerationCounters()
    counters.add(sequence())
    counters.add(sequence(completion_tokens=1))
    counters.add(sequence(first=None, completion_tokens=0))
    assert sum(counters.first.counts) == 2
    assert sum(counters.token.counts) == 1


class Told:
    """Remembers what a watcher of new versions is told."""

    def __init__(self) -> None:
        self.sequences: list[Generated] = []
        self.faults = 0

    def answered(self, loaded: LoadedModel, seconds: float) -> None:
        pytest.fail("no text was encoded")

    def generated(self, loaded: LoadedModel, sequence: Generated) -> None:
        self.sequences.append(sequence)

    def faulted(self, loaded: LoadedModel) -> None:
        self.faults += 1


def test_a_request_is_counted_once_and_its_sequences_each(loaded: LoadedDecoder) -> None:
    metrics, told = Metrics(), Told()
    metrics.watcher = told
    metrics.generated(loaded, [sequence(), sequence(total=2.0, queue=0.6)])
    metrics.failed(loaded, InferenceError("broken"))
    assert (len(told.sequences), told.faults) == (2, 1)
    text = rendered(metrics, loaded)
    assert value(text, "nv_inference_request_success", **LABELS) == 1
    assert value(text, "nv_inference_count", **LABELS) == 2
    assert value(text, "nv_inference_request_duration_us", **LABELS) == 2_000_000
    assert value(text, "nv_inference_queue_duration_us", **LABELS) == 600_000
    assert value(text, "nv_inference_compute_infer_duration_us", **LABELS) == 1_400_000
    assert value(text, "nv_inference_request_failure", reason="BACKEND", **LABELS) == 1
    assert value(text, "edgeonnx_tokens_total", **LABELS) == 36
    assert value(text, "edgeonnx_time_to_first_token_seconds_count", **LABELS) == 2
    assert value(text, "edgeonnx_time_to_first_token_seconds_bucket", le="0.5", **LABELS) == 0
    assert value(text, "edgeonnx_time_to_first_token_seconds_bucket", le="1.0", **LABELS) == 2
    assert value(text, "edgeonnx_request_time_per_output_token_seconds_count", **LABELS) == 2
    assert value(text, "edgeonnx_request_time_per_output_token_seconds_bucket", le="0.1", **LABELS) == 1
    assert value(text, "edgeonnx_request_time_per_output_token_seconds_bucket", le="0.2", **LABELS) == 2


def generate(loaded: LoadedDecoder, count: int) -> None:
    async def scenario() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def sink(events: Any) -> None:
            if isinstance(events[-1], Finished):
                loop.call_soon_threadsafe(done.set)

        prompt = tuple(decoders.encode("the cat"))
        loaded.generator.submit(GenerationRequest(prompt=prompt, max_tokens=count, ignore_stop_ids=True), sink)
        async with asyncio.timeout(10):
            await done.wait()
            while loaded.work().busy:  # the end is told before the place is free
                await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_what_the_generator_did_and_what_its_caches_take(loaded: LoadedDecoder) -> None:
    before = loaded.generator.state()
    generate(loaded, 5)
    state = loaded.generator.state()
    text = rendered(Metrics(), loaded)
    assert state.generated_tokens == before.generated_tokens + 5
    for name, number in {
        "edgeonnx_generation_tokens_total": state.generated_tokens,
        "edgeonnx_prompt_tokens_total": state.prompt_tokens,
        "edgeonnx_prompt_tokens_cached_total": state.cached_tokens,
        "edgeonnx_generation_steps_total": state.steps,
        "edgeonnx_num_requests_running": 0,
        "edgeonnx_num_requests_waiting": 0,
        "edgeonnx_kv_cache_bytes": state.cache_bytes,
        "edgeonnx_kv_cache_limit_bytes": loaded.caches.limit,
        "edgeonnx_context_length": 256,
        "nv_inference_exec_count": state.steps + state.prompts,
        "nv_inference_pending_request_count": 0,
    }.items():
        assert value(text, name, **LABELS) == number, name
    assert value(text, "edgeonnx_generation_finished_total", finished_reason="length", **LABELS) >= 1


def test_encoders_and_decoders_beside_each_other(
    loaded: LoadedDecoder, loaded_models: Callable[..., LoadedModel]
) -> None:
    encoder = loaded_models()
    text = rendered(Metrics(), encoder, loaded)
    found = samples(text)
    names = {name for name, _ in found}
    assert {"edgeonnx_queue_rows", "edgeonnx_num_requests_running"} <= names
    tiny = {"model": "tiny", "version": "1.0.0"}
    assert ("edgeonnx_queue_rows", frozenset(LABELS.items())) not in found
    assert ("edgeonnx_num_requests_running", frozenset(tiny.items())) not in found
    assert value(text, "edgeonnx_model_memory_bytes", **tiny) == encoder.memory_bytes
    assert "edgeonnx_num_requests_running" not in rendered(Metrics(), encoder)


def status_of(loaded: LoadedModel, metrics: Metrics) -> Any:
    async def read() -> Any:
        models = Models(AgentConfig())
        models.serve(loaded)
        return read_status(Context(models=models, config=AgentConfig(), metrics=metrics), [])

    return asyncio.run(read())


def test_the_status_and_the_page_show_a_model_that_generates(loaded: LoadedDecoder) -> None:
    metrics = Metrics()
    metrics.generated(loaded, [sequence(), sequence(first=0.9)])
    generate(loaded, 3)
    status = status_of(loaded, metrics)
    view = orjson.loads(orjson.dumps(status))["models"][0]
    assert view["queue"] is None
    shown = view["generation"]
    state = loaded.generator.state()
    assert (shown["active"], shown["waiting"], shown["most"]) == (0, 0, 8)
    assert (shown["context_length"], shown["cache_limit_bytes"]) == (256, loaded.caches.limit)
    assert shown["generated_tokens"] == state.generated_tokens >= 3
    assert shown["finished"] == dict(state.finished)
    assert 0.5 <= shown["first_p50"] <= 1.0
    assert 0.05 <= shown["token_p50"] <= 0.1
    page = render_page(status)
    for text in ("answers/s", "first token, median", "0 of 8", "ended: length", "256 tokens"):
        assert text in page, text
    assert "texts" not in page
    assert "runner threads" not in page
