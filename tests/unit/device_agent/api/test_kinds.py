"""Models that encode and models that generate text, asked by the other's routes, and by any client."""

from __future__ import annotations

from typing import Any

import pytest

from edgeonnx.spec.manifest import Task
from tests.support import decoders

ENCODERS_ROUTES: dict[str, dict[str, Any]] = {
    "/v2/models/tiny/infer": {
        "inputs": [{"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}],
    },
    "/v1/embeddings": {"model": "tiny", "input": "the cat"},
    "/embed": {"model": "tiny", "inputs": "the cat"},
    "/rerank": {"model": "tiny", "query": "the", "texts": ["cat"]},
    "/predict": {"model": "tiny", "inputs": "the cat"},
    "/similarity": {"model": "tiny", "inputs": {"source_sentence": "the", "sentences": ["cat"]}},
}


@pytest.mark.parametrize("route", ENCODERS_ROUTES)
def test_a_route_of_encoders_says_where_text_is_generated(connect, route: str) -> None:
    response = connect(Task.TEXT_GENERATION).post(route, json=ENCODERS_ROUTES[route])
    assert response.status_code == 400
    assert "this model generates text" in response.text
    assert "/v1/chat/completions" in response.text


def test_a_model_that_does_not_exist_is_told_as_such_where_only_a_decoder_serves(connect) -> None:
    response = connect(Task.TEXT_GENERATION).post("/v1/embeddings", json={"model": "other", "input": "x"})
    assert response.status_code == 404


def test_a_route_without_a_model_takes_the_one_for_its_task(connect) -> None:
    client = connect(Task.TEXT_GENERATION, Task.EMBEDDING)
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200
    assert client.get("/info").status_code == 400
    assert client.get("/info", params={"model": "embedding"}).status_code == 200


def test_the_metadata_of_a_decoder(connect) -> None:
    client = connect(Task.TEXT_GENERATION)
    metadata = client.get("/v2/models/tiny").json()
    assert [item["name"] for item in metadata["inputs"]] == ["input_ids", "attention_mask"]
    assert metadata["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 1, len(decoders.VOCABULARY)]}]
    parameters = metadata["parameters"]
    assert (parameters["task"], parameters["provider"]) == ("text-generation", "CPUExecutionProvider")
    assert (parameters["context_length"], parameters["chat"]) == (256, True)
    config = client.get("/v2/models/tiny/config").json()
    assert [item["name"] for item in config["input"]] == ["input_ids", "attention_mask"]
    assert config["instance_group"] == [{"name": "tiny", "kind": "KIND_CPU", "count": 1}]
    assert "dynamic_batching" not in config


def test_a_decoder_is_ready_listed_and_counted(connect) -> None:
    client = connect(Task.TEXT_GENERATION)
    assert client.get("/v2/models/tiny/ready").json() == {"name": "tiny", "ready": True}
    index = client.post("/v2/repository/index", json={}).json()
    assert [(entry["name"], entry["state"]) for entry in index] == [("tiny", "READY")]
    (stats,) = client.get("/v2/models/tiny/stats").json()["model_stats"]
    assert stats["execution_count"] == client.app.state.models.find("tiny").loaded.runs
    assert stats["memory_usage"][0]["byte_size"] > 0
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
