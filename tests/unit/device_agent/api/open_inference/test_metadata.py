from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from device_agent.api.open_inference.metadata import EXTENSIONS, model_config, model_metadata
from device_agent.config import AgentConfig, Limits, RuntimeConfig
from device_agent.models.loading import load_model
from edgeonnx import __version__
from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.cpus import profile_of

ONE_THREAD = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))


def test_metadata(connect) -> None:
    metadata = connect().get("/v2/models/tiny").json()
    assert metadata == connect().get("/v2/models/tiny/versions/1.0.0").json()
    assert metadata["versions"] == ["1.0.0"]
    assert metadata["platform"] == "onnxruntime_onnx"
    assert [item["name"] for item in metadata["inputs"]] == ["text", *bundles.INPUTS]
    assert metadata["inputs"][0]["datatype"] == "BYTES"
    assert metadata["outputs"] == [{"name": "sentence_embedding", "datatype": "FP32", "shape": [-1, bundles.DIM]}]
    parameters = metadata["parameters"]
    assert parameters["providers"] == ["CPUExecutionProvider"]
    assert parameters["variant"] == "cpu-fp32"
    assert parameters["precision"] == "fp32"
    assert parameters["not_used"] == {}
    assert parameters["max_length"] == bundles.MAX_LENGTH
    assert parameters["dimension"] == bundles.DIM
    assert connect(Task.TEXT_CLASSIFICATION).get("/v2/models/tiny").json()["parameters"]["labels"] == [*bundles.LABELS]


def test_metadata_tells_why_other_variants_are_not_used(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path, variants=bundles.CPU_VARIANTS)
    loaded = load_model(bundle, ONE_THREAD, profile=profile_of("Core i5-4300U"))
    parameters: Any = model_metadata(loaded)["parameters"]
    assert parameters["variant"] == "cpu-int8-7bit"
    assert parameters["precision"] == "int8-7bit"
    assert "would saturate on this CPU" in parameters["not_used"]["cpu-int8"]
    assert parameters["not_used"]["cpu-fp32"] == "cpu-int8-7bit is preferred"
    assert loaded.close(timeout=5)


def test_the_server(connect) -> None:
    body = connect().get("/v2").json()
    assert body == {"name": "edgeonnx-agent", "version": __version__, "extensions": list(EXTENSIONS)}


def test_health(connect) -> None:
    assert connect().get("/v2/health/live").json() == {"live": True}
    assert connect().get("/v2/health/ready").json() == {"ready": True}
    assert connect(ready=False).get("/v2/health/live").status_code == 200
    assert connect(ready=False).get("/v2/health/ready").status_code == 503


@pytest.mark.parametrize("suffix", ["", "/ready", "/config", "/stats"])
def test_versions_and_names_in_paths(connect, suffix: str) -> None:
    client = connect()
    assert client.get(f"/v2/models/tiny{suffix}").json() == client.get(f"/v2/models/tiny/versions/1.0.0{suffix}").json()
    assert client.get(f"/v2/models/tiny/versions/2{suffix}").status_code == 404
    assert client.get(f"/v2/models/other{suffix}").status_code == 404


def test_the_configuration_leaves_the_batch_dimension_out(loaded_models) -> None:
    config: Any = model_config(loaded_models(Task.TEXT_RANKING), Limits(max_texts=7))
    assert config["max_batch_size"] == 7
    inputs = {item["name"]: item for item in config["input"]}
    assert list(inputs) == ["text", "text_pair", *bundles.INPUTS]
    assert (inputs["text"]["data_type"], inputs["text"]["dims"]) == ("TYPE_STRING", [1])
    assert (inputs["input_ids"]["data_type"], inputs["input_ids"]["dims"]) == ("TYPE_INT64", [-1])
    assert all(item["optional"] for item in inputs.values())
    assert config["output"][0] == {"name": "logits", "data_type": "TYPE_FP32", "dims": [1]}
    assert config["instance_group"] == [{"name": "tiny", "kind": "KIND_CPU", "count": 1}]
    assert config["parameters"]["variant"] == {"string_value": "cpu-fp32"}
    assert config["default_model_filename"] == "model.onnx"


def test_metadata_and_configuration_name_the_same_tensors(loaded_models) -> None:
    loaded = loaded_models(Task.TEXT_CLASSIFICATION)
    metadata: Any = model_metadata(loaded)
    config: Any = model_config(loaded, Limits())
    for ours, theirs in (("inputs", "input"), ("outputs", "output")):
        assert [item["name"] for item in metadata[ours]] == [item["name"] for item in config[theirs]]
        assert [item["shape"] for item in metadata[ours]] == [[-1, *item["dims"]] for item in config[theirs]]
