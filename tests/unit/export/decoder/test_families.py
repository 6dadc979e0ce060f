"""Which decoders are taken, decided from their configuration alone."""

from __future__ import annotations

from typing import Any

import pytest

from edgeonnx.errors import CorruptSourceError, EdgeOnnxError, UnsupportedModelError, UsageError
from edgeonnx.export.decoder.families import (
    ROPE_KINDS,
    cache_shape,
    check_decoder,
    check_window,
    context_length,
)
from edgeonnx.spec.generation import MAX_LAYERS, CacheShape

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256}


@pytest.mark.parametrize("kind", ROPE_KINDS)
@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_scalings_that_depend_on_the_place_alone_are_taken(name: str, key: str, kind: str) -> None:
    check_decoder({**LLAMA, name: {key: kind, "factor": 2.0}}, where="m")


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({**LLAMA, "rope_scaling": {"type": "longrope"}}, "m: rope_scaling"),
        ({**LLAMA, "rope_parameters": {"rope_type": "proportional"}}, "m: rope_parameters"),
        ({**LLAMA, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({**LLAMA, "rope_scaling": {"type": "linear"}, "partial_rotary_factor": 0.25}, "m: partial_rotary_factor"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, "m: quantization_config"),
        ({**GPT2, "reorder_and_upcast_attn": True}, "m: reorder_and_upcast_attn"),
        ({**GPT2, "add_cross_attention": True}, "m: add_cross_attention"),
    ],
)
def test_settings_that_a_graph_would_not_have_are_refused(config: dict[str, Any], where: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        check_decoder(config, where="m")
    assert str(caught.value.where).endswith(where)


def test_rope_settings_that_are_no_object_are_corrupt() -> None:
    with pytest.raises(CorruptSourceError, match="is no object"):
        check_decoder({**LLAMA, "rope_parameters": ["linear"]}, where="m")


@pytest.mark.parametrize("config", [{}, {"sliding_window": None}, {"sliding_window": 128}, {"sliding_window": 4096}])
def test_a_window_as_long_as_the_context_never_bites(config: dict[str, Any]) -> None:
    check_window(config, 128, where="m")


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"sliding_window": 127}, "m: sliding_window"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "m: layer_types"),
    ],
)
def test_tokens_beyond_a_window_must_not_be_seen(config: dict[str, Any], where: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        check_window(config, 128, where="m")
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (LLAMA, CacheShape(layers=2, heads=4, head_size=16)),
        ({**LLAMA, "num_key_value_heads": 2, "head_dim": 32}, CacheShape(layers=2, heads=2, head_size=32)),
        (GPT2, CacheShape(layers=3, heads=4, head_size=16)),
        ({**GPT2, "n_head": 8}, CacheShape(layers=3, heads=8, head_size=8)),
    ],
)
def test_the_caches_follow_from_the_configuration(config: dict[str, Any], shape: CacheShape) -> None:
    assert cache_shape(config, where="m") == shape


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"num_hidden_layers": MAX_LAYERS + 1}, CorruptSourceError),
        ({"num_hidden_layers": 0}, CorruptSourceError),
        ({"num_attention_heads": "4"}, CorruptSourceError),
        ({"num_attention_heads": True}, CorruptSourceError),
        ({"num_attention_heads": None}, CorruptSourceError),
        ({"num_key_value_heads": 3}, CorruptSourceError),
        ({"hidden_size": 3}, CorruptSourceError),
        ({"head_dim": 24}, UnsupportedModelError),
    ],
)
def test_sizes_that_no_graph_has_are_refused(changes: dict[str, Any], kind: type[EdgeOnnxError]) -> None:
    with pytest.raises(kind):
        cache_shape({**LLAMA, **changes}, where="m")


@pytest.mark.parametrize(("requested", "length"), [(None, 256), (100, 100), (256, 256)])
def test_the_context_is_what_was_asked_for(requested: int | None, length: int) -> None:
    assert context_length(GPT2, requested, where="m") == length
    assert context_length({"max_position_embeddings": 256}, requested, where="m") == length


def test_a_context_beyond_the_models_own_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="longer than the model's context"):
        context_length(GPT2, 257, where="m")
    with pytest.raises(CorruptSourceError):
        context_length({}, 10, where="m")
