"""`genai_config.json`: what ORT GenAI reads beside a graph."""

from __future__ import annotations

from typing import Any

import pytest

from edgeonnx.pipeline.decoder.genai import genai_config
from edgeonnx.spec.generation import CacheShape, Generation, SamplingDefaults

TENSORS = "sha256:" + "ab" * 32


def config(provider: str = "CPUExecutionProvider", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "cache": CacheShape(layers=30, heads=3, head_size=64),
        "context_length": 8192,
        "stop_ids": (2, 0),
        "sampling": SamplingDefaults(temperature=0.2, top_k=50, top_p=0.9, repetition_penalty=1.1),
    }
    return genai_config(
        Generation(**{**fields, **changes}),
        vocabulary=49152,
        pad_id=2,
        model_file="model.onnx",
        tensors=TENSORS,
        provider=provider,
    )


def test_tensors_are_found_from_the_file() -> None:
    options = config()["model"]["decoder"]["session_options"]
    folder = options["session.model_external_initializers_file_folder_path"]
    assert folder == f"../../shared_assets/sha256-{'ab' * 32}"
    assert options["provider_options"] == []


def test_caches_and_ends_are_told() -> None:
    model = config()["model"]
    assert (model["eos_token_id"], model["pad_token_id"], model["vocab_size"]) == ([2, 0], 2, 49152)
    decoder = model["decoder"]
    assert (decoder["num_hidden_layers"], decoder["num_key_value_heads"], decoder["head_size"]) == (30, 3, 64)
    assert decoder["inputs"]["past_key_names"] % 3 in CacheShape(layers=4, heads=1, head_size=1).past_names
    assert decoder["outputs"]["present_value_names"] % 3 in CacheShape(layers=4, heads=1, head_size=1).present_names


def test_a_gpu_is_asked_for() -> None:
    options = config("CUDAExecutionProvider")["model"]["decoder"]["session_options"]
    assert options["provider_options"] == [{"cuda": {}}]


@pytest.mark.parametrize(("temperature", "samples"), [(0.0, False), (0.7, True)])
def test_the_makers_sampling_is_told(temperature: float, samples: bool) -> None:
    search = config(sampling=SamplingDefaults(temperature=temperature))["search"]
    assert search["do_sample"] is samples
    assert search["temperature"] == (temperature or 1.0)


def test_no_stop_token_is_the_padding_token() -> None:
    assert config(stop_ids=())["model"]["eos_token_id"] == [2]
