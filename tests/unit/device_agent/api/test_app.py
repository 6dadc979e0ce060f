from __future__ import annotations

import gzip
import logging
import re

import orjson
import pytest
from starlette.testclient import TestClient

from edgeonnx.spec.manifest import Task

GOOD = {"model": "tiny", "input": "the cat"}


def test_a_loading_agent_is_live_and_not_ready(connect) -> None:
    client: TestClient = connect(ready=False)
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2").json()["name"] == "edgeonnx-agent"
    for path in ("/v2/health/ready", "/v2/models/tiny", "/v2/models/tiny/ready"):
        response = client.get(path)
        assert response.status_code == 503
        assert "loading" in response.json()["error"]
    response = client.post("/v1/embeddings", json=GOOD)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"
    assert client.get("/metrics").status_code == 200


def test_a_draining_agent_is_live_and_not_ready(connect) -> None:
    client = connect()
    client.app.state.models.drain()
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").status_code == 503
    assert client.post("/v1/embeddings", json=GOOD).status_code == 503


def test_a_ready_agent(connect) -> None:
    client = connect()
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/tiny/ready",
        "/v2/models/tiny/versions/1.0.0/ready",
    ):
        assert client.get(path).status_code == 200
    assert client.get("/v2/models/other/ready").status_code == 404
    assert client.get("/v2/models/tiny/versions/2/ready").status_code == 404


def test_models_as_openai_lists_them(connect) -> None:
    client = connect()
    (model,) = client.get("/v1/models").json()["data"]
    assert model == client.get("/v1/models/tiny").json()
    assert model["id"] == "tiny"
    assert model["object"] == "model"
    assert isinstance(model["created"], int)
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/nope", "/v2/", "/v2/models", "/v2/models/tiny/infer/", "/docs"])
def test_an_unknown_route(connect, path: str) -> None:
    response = connect().get(path)
    assert response.status_code in (404, 405)
    assert list(response.json()) == ["error"]
    assert path in response.json()["error"]


def test_an_unknown_route_of_openai(connect) -> None:
    response = connect().post("/v1/images/generations", json={})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


def test_a_wrong_method(connect) -> None:
    response = connect().delete("/v2/models/tiny")
    assert response.status_code == 405
    assert "DELETE" in response.json()["error"]
    assert connect().get("/v1/embeddings").json()["error"]["code"] == "method_not_allowed"


def test_a_fault_of_ours_is_logged_and_never_shown(connect, monkeypatch, caplog) -> None:
    monkeypatch.setattr("device_agent.api.openai.render_embeddings", lambda *args: 1 / 0)
    client = connect()
    with caplog.at_level(logging.ERROR, logger="edgeonnx.agent"):
        response = client.post("/v1/embeddings", json=GOOD)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error; the agent's log has the details"
    assert "ZeroDivisionError" in caplog.text
    assert client.app.state.models.in_flight == 0


def test_server_timing(connect) -> None:
    timing = connect().post("/v1/embeddings", json=GOOD).headers["server-timing"]
    parts = dict(re.findall(r"(\w+);dur=([\d.]+)", timing))
    assert list(parts) == ["tokenize", "infer", "queue", "total"]
    assert float(parts["tokenize"]) + float(parts["infer"]) <= float(parts["total"])


def test_metrics_count_requests_rows_and_runs(connect) -> None:
    client = connect()
    client.post("/v1/embeddings", json={"model": "tiny", "input": ["the cat", "hello"]})
    text = client.get("/metrics").text
    labels = '{model="tiny",version="1.0.0"}'
    assert f"nv_inference_request_success{labels} 1\n" in text
    assert f"nv_inference_count{labels} 2\n" in text
    assert int(re.search(r"nv_inference_request_duration_us\S+ (\d+)", text).group(1)) > 0  # type: ignore[union-attr]
    assert 'edgeonnx_http_responses_total{status="200"} 1.0' in text


def test_a_body_that_is_too_large(connect) -> None:
    client = connect(max_body_bytes=100)
    assert client.post("/v1/embeddings", json=GOOD).status_code == 200
    response = client.post("/v1/embeddings", content=b" " * 101)
    assert response.status_code == 413
    assert "at most 100 bytes" in response.json()["error"]["message"]


def test_a_compressed_body(connect) -> None:
    client, body = connect(), orjson.dumps(GOOD)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    found = client.post("/v1/embeddings", content=gzip.compress(body), headers=headers)
    assert found.json() == client.post("/v1/embeddings", json=GOOD).json()
    assert client.post("/v1/embeddings", content=body, headers=headers).status_code == 400
    assert client.post("/v1/embeddings", content=body, headers={**headers, "content-encoding": "br"}).status_code == 415


def test_embeddings_only_from_an_embedding_model(connect) -> None:
    response = connect(Task.TEXT_CLASSIFICATION).post("/v1/embeddings", json=GOOD)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "model"
    assert "expected a model for the task embedding; found text-classification" in error["message"]


def test_a_wrong_method_is_told_all_right_ones(connect) -> None:
    """A path that takes GET and POST names both, not the first alone."""
    response = connect().put("/v2/logging")
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_what_goes_straight_to_its_handler_is_answered_as_by_the_router(connect, monkeypatch) -> None:
    """The short way has the same answers and errors as the router's."""
    bodies = [{"model": "tiny", "input": "the cat"}, {"model": "tiny"}, {"model": "other", "input": "x"}]
    straight = [connect().post("/v1/embeddings", json=body) for body in bodies]
    monkeypatch.setattr("device_agent.api.app.DIRECT", frozenset())
    routed = [connect().post("/v1/embeddings", json=body) for body in bodies]
    assert [(each.status_code, each.json()) for each in straight] == [
        (each.status_code, each.json()) for each in routed
    ]
    assert [each.status_code for each in straight] == [200, 400, 404]


def test_a_wrong_method_on_a_straight_path_is_refused(connect) -> None:
    response = connect().get("/v1/embeddings")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
