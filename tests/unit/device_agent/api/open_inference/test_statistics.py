from __future__ import annotations

from typing import Any

import numpy as np

from device_agent.api.open_inference.statistics import ModelStatistics, Statistics
from device_agent.inference.rows import Answer


def answer(rows: int, *, runs: int = 1, batch_rows: int | None = None) -> Answer:
    return Answer(
        lengths=np.full(rows, 3),
        tokenize_seconds=0.001,
        queue_seconds=0.002,
        infer_seconds=0.004 * runs,
        runs=runs,
        batch_rows=batch_rows or rows,
    )


def form(statistics: ModelStatistics) -> Any:
    return statistics.as_dict("tiny", "1.0.0", runs=7)


def test_nothing_was_asked_yet() -> None:
    found = form(ModelStatistics())
    nothing = {"count": 0, "ns": 0}
    assert found["inference_stats"] == dict.fromkeys(
        ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"),
        nothing,
    )
    assert found["last_inference"] == found["inference_count"] == 0
    assert found["execution_count"] == 7
    assert found["batch_stats"] == found["memory_usage"] == []
    assert (found["name"], found["version"], found["response_stats"]) == ("tiny", "1.0.0", {})


def test_requests_add_up() -> None:
    statistics = ModelStatistics(now=lambda: 1700000000.5)
    statistics.succeeded(answer(2), 0.0005, 0.01)
    statistics.succeeded(answer(2), 0.0005, 0.02)
    statistics.failed(0.25)
    found = form(statistics)
    stats = found["inference_stats"]
    assert stats["success"] == {"count": 2, "ns": 30_000_000}
    assert stats["fail"] == {"count": 1, "ns": 250_000_000}
    assert stats["queue"] == {"count": 2, "ns": 4_000_000}
    assert stats["compute_input"] == {"count": 2, "ns": 2_000_000}
    assert stats["compute_infer"] == {"count": 2, "ns": 8_000_000}
    assert stats["compute_output"] == {"count": 2, "ns": 1_000_000}
    assert found["inference_count"] == 4
    assert found["last_inference"] == 1700000000500
    assert [batch["batch_size"] for batch in found["batch_stats"]] == [2]
    assert found["batch_stats"][0]["compute_infer"] == {"count": 2, "ns": 8_000_000}


def test_requests_of_one_run_count_it_once() -> None:
    statistics = ModelStatistics()
    for rows in (1, 2, 5):
        statistics.succeeded(answer(rows, batch_rows=8), 0.0, 0.01)
    found = form(statistics)
    assert found["inference_count"] == 8
    assert found["batch_stats"][0]["batch_size"] == 8
    assert found["batch_stats"][0]["compute_infer"] == {"count": 1, "ns": 4_000_000}


def test_a_request_of_several_runs() -> None:
    statistics = ModelStatistics()
    statistics.succeeded(answer(30, runs=3), 0.0, 0.05)
    found = form(statistics)
    assert found["batch_stats"][0]["batch_size"] == 10
    assert found["batch_stats"][0]["compute_infer"] == {"count": 3, "ns": 12_000_000}


def test_memory_is_told_where_it_was_measured() -> None:
    found: Any = ModelStatistics().as_dict("tiny", "1", runs=0, memory_bytes=4096)
    assert found["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 4096}]


def test_counters_of_models_that_left_are_dropped(loaded_models) -> None:
    statistics, loaded = Statistics(), loaded_models()
    statistics.of(loaded).failed(1.0)
    assert statistics.of(loaded).fail.count == 1
    statistics.forget_all_but([loaded])
    assert statistics.of(loaded).fail.count == 1
    statistics.forget_all_but([])
    assert statistics.of(loaded).fail.count == 0


def test_over_http(connect) -> None:
    client = connect()
    body = {"inputs": [{"name": "text", "shape": [3], "datatype": "BYTES", "data": ["a", "b", "c"]}]}
    assert client.post("/v2/models/tiny/infer", json=body).is_success
    assert client.post("/v2/models/tiny/infer", json={"inputs": []}).status_code == 400
    (found,) = client.get("/v2/models/tiny/versions/1.0.0/stats").json()["model_stats"]
    assert found["inference_count"] == 3
    assert found["inference_stats"]["success"]["count"] == 1
    assert found["execution_count"] >= 1
    assert client.get("/v2/models/stats").json()["model_stats"] == [found]
