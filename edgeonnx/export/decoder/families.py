"""Which decoders are supported, decided from their configuration alone.

Only what the tests compare with torch is taken. A setting that a graph of the contract would ignore, and that changes
the answer, is refused: the model would answer confidently and a little wrongly, and on long texts only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.errors import CorruptSourceError, UnsupportedModelError, UsageError
from edgeonnx.spec.generation import MAX_CONTEXT, MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS, CacheShape

if TYPE_CHECKING:
    from collections.abc import Mapping

DECODER_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The model class of each family that is tested (tests/integration/test_export_decoders.py)."""

DECODER_FAMILIES = tuple(DECODER_CLASSES)
BUILDER_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Families that the ORT GenAI model builder exports; the others go through torch's exporter."""

ROPE_KINDS = ("default", "dynamic", "linear", "llama3", "yarn")
"""Scalings of rotary positions that depend on the place alone (`dynamic` ones do so within the context)."""
HEAD_STEP = 16
"""ONNX Runtime's rotary attention takes heads of a multiple of this size."""

_GPT2_REFUSED = ("add_cross_attention", "reorder_and_upcast_attn")
_HEADS_KEYS = {"gpt2": "n_head"}
_LAYERS_KEYS = {"gpt2": "n_layer"}
_WIDTH_KEYS = {"gpt2": "n_embd"}


def check_decoder(config: Mapping[str, object], *, where: str) -> None:
    """Refuse settings that the exported graph would not have.

    Args:
        config: The source's configuration, as its file has it or as transformers reads it.
        where: The source, for the message.

    Raises:
        UnsupportedModelError: With the setting.
    """
    family = str(config.get("model_type", ""))
    if config.get("quantization_config") is not None:
        raise UnsupportedModelError(
            "has weights that are quantized already",
            where=f"{where}: quantization_config",
            expected="float weights: edgeonnx quantizes them itself, and measures what that costs",
            found=str(config["quantization_config"])[:200],
        )
    if family == "gpt2":
        _check_gpt2(config, where)
    else:
        _check_rope(config, where)


def _check_gpt2(config: Mapping[str, object], where: str) -> None:
    for name in _GPT2_REFUSED:
        if config.get(name):
            raise UnsupportedModelError(
                "a setting of this model is not supported", where=f"{where}: {name}", expected="false", found="true"
            )


def _check_rope(config: Mapping[str, object], where: str) -> None:
    """Rotary positions of a kind that was compared with torch, and over the whole of each head."""
    name = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    settings = config.get(name)
    if settings is None:
        return
    if not isinstance(settings, dict):
        raise CorruptSourceError("is no object", where=f"{where}: {name}", found=str(settings)[:80])
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ROPE_KINDS:
        raise UnsupportedModelError(
            "scales its rotary positions in a way that is not supported",
            where=f"{where}: {name}",
            expected=f"one of {', '.join(ROPE_KINDS)}",
            found=str(kind)[:80],
        )
    part = settings.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if part not in (None, 1.0):
        raise UnsupportedModelError(
            "rotates a part of each head only, which is not supported",
            where=f"{where}: partial_rotary_factor",
            expected="1.0",
            found=str(part)[:80],
        )


def check_window(config: Mapping[str, object], context: int, *, where: str) -> None:
    """A window of attention must not be shorter than the context: the contract's caches have no windows.

    Args:
        config: The configuration as transformers reads it (it sets the window to None where it is not used).
        context: Most tokens of a sequence.
        where: The source, for the message.

    Raises:
        UnsupportedModelError: Tokens beyond the window would be seen that the source does not see.
    """
    kinds = config.get("layer_types")
    named = {str(kind) for kind in kinds} if isinstance(kinds, list) else set()
    others = sorted(named - {"full_attention", "sliding_attention"})
    if others:
        raise UnsupportedModelError(
            "has layers that are not supported",
            where=f"{where}: layer_types",
            expected="full_attention",
            found=", ".join(others)[:200],
        )
    window = config.get("sliding_window")
    if isinstance(window, int) and 0 < window < context:
        raise UnsupportedModelError(
            "attends only to a window of the last tokens, which is not supported",
            where=f"{where}: sliding_window",
            expected=f"none, or at least the context of {context} tokens",
            found=str(window),
            hint=f"within its window it is right: --max-length {window}",
        )


def cache_shape(config: Mapping[str, object], *, where: str) -> CacheShape:
    """The caches that a configuration asks for.

    Args:
        config: The configuration as transformers reads it.
        where: The source, for the message.

    Raises:
        CorruptSourceError: A size is missing, or is no reasonable number.
        UnsupportedModelError: ONNX Runtime has no attention for heads of this size.
    """
    family = str(config.get("model_type", ""))

    def size(name: str, limit: int) -> int:
        return bounded_size(config, name, limit, where=where)

    queries = size(_HEADS_KEYS.get(family, "num_attention_heads"), MAX_HEADS)
    heads = size("num_key_value_heads", MAX_HEADS) if config.get("num_key_value_heads") is not None else queries
    if config.get("head_dim") is not None:
        head_size = size("head_dim", MAX_HEAD_SIZE)
    else:
        head_size = size(_WIDTH_KEYS.get(family, "hidden_size"), MAX_HEADS * MAX_HEAD_SIZE) // queries
    if not 0 < head_size <= MAX_HEAD_SIZE or queries % heads:
        raise CorruptSourceError(
            "has sizes that do not fit together",
            where=where,
            expected=f"heads of 1 to {MAX_HEAD_SIZE}, and a number of heads that those of the keys divide",
            found=f"{queries} heads of {head_size}, {heads} of the keys",
        )
    if family in BUILDER_FAMILIES and head_size % HEAD_STEP:
        raise UnsupportedModelError(
            "has heads of a size that ONNX Runtime does not rotate",
            where=where,
            expected=f"a multiple of {HEAD_STEP}",
            found=str(head_size),
        )
    layers = size(_LAYERS_KEYS.get(family, "num_hidden_layers"), MAX_LAYERS)
    return CacheShape(layers=layers, heads=heads, head_size=head_size)


def bounded_size(config: Mapping[str, object], name: str, limit: int, *, where: str) -> int:
    """A size of a configuration: an integer from 1 to a limit.

    Raises:
        CorruptSourceError: It is something else.
    """
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise CorruptSourceError(
            "is no usable size",
            where=f"{where}: {name}",
            expected=f"an integer from 1 to {limit}",
            found=str(value)[:80],
        )
    return value


def context_length(config: Mapping[str, object], requested: int | None, *, where: str) -> int:
    """Most tokens of a sequence: what was asked for, within what the model was made for.

    Args:
        config: The configuration as transformers reads it.
        requested: `--max-length`, or None.
        where: The source, for the message.

    Raises:
        CorruptSourceError: The configuration states no length.
        UsageError: More was asked for.
    """
    name = "n_positions" if config.get("n_positions") is not None else "max_position_embeddings"
    limit = bounded_size(config, name, MAX_CONTEXT, where=where)
    if requested is not None and requested > limit:
        raise UsageError(
            "is longer than the model's context",
            where="--max-length",
            expected=f"at most {limit}",
            found=str(requested),
        )
    return limit if requested is None else requested
