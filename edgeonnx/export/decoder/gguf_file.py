"""A GGUF file as a source model: its configuration, and that transformers will read all of it.

transformers maps the tensors and settings that it knows by name and passes over the rest in silence. So a file must
have exactly the tensors of its family, in the sizes that its metadata states, and no setting that would be lost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgeonnx.errors import CorruptSourceError, RuntimeUnavailableError, UnsupportedModelError
from edgeonnx.export.decoder.families import DECODER_CLASSES, bounded_size
from edgeonnx.export.decoder.gguf_header import read_header
from edgeonnx.spec.generation import MAX_CONTEXT, MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.export.decoder.gguf_header import GgufHeader

GGUF_FAMILIES = ("llama", "qwen2", "qwen3")
"""Architectures of GGUF that are tested; Mistral's files name `llama`."""

_HINT = "take the model's Hugging Face directory instead"


def read_gguf(file: Path) -> dict[str, object]:
    """The configuration of a GGUF file, by the names of Hugging Face.

    Args:
        file: The file.

    Raises:
        CorruptSourceError: It is damaged, or its tensors do not fit its metadata.
        UnsupportedModelError: It is of another architecture, in pieces, or has what transformers would pass over.
        RuntimeUnavailableError: The package `gguf` is not installed.
    """
    header = read_header(file)
    where = str(file)
    family = header.scalars.get("general.architecture")
    if family not in GGUF_FAMILIES:
        raise UnsupportedModelError(
            "the architecture is not supported as GGUF",
            where=f"{where}: general.architecture",
            expected=f"one of {', '.join(GGUF_FAMILIES)}",
            found=repr(family)[:80],
        )
    config = _config(header, str(family), where)
    _check_settings(header, str(family), where)
    _check_tensors(header, _expected(config, str(family)), where)
    _check_data(header, where)
    return config


def _config(header: GgufHeader, family: str, where: str) -> dict[str, object]:
    def size(key: str, limit: int, default: int | None = None) -> int:
        name = f"{family}.{key}"
        if default is not None and name not in header.scalars:
            return default
        return bounded_size(header.scalars, name, limit, where=where)

    width = size("embedding_length", 1 << 24)
    heads = size("attention.head_count", MAX_HEADS)
    vocabulary = header.lengths.get("tokenizer.ggml.tokens", 0)
    if not vocabulary:
        raise CorruptSourceError("has no tokenizer", where=f"{where}: tokenizer.ggml.tokens")
    return {
        "model_type": family,
        "architectures": [DECODER_CLASSES[family]],
        "hidden_size": width,
        "intermediate_size": size("feed_forward_length", 1 << 24),
        "max_position_embeddings": size("context_length", MAX_CONTEXT),
        "num_attention_heads": heads,
        "num_hidden_layers": size("block_count", MAX_LAYERS),
        "num_key_value_heads": size("attention.head_count_kv", MAX_HEADS, default=heads),
        "head_dim": size("attention.key_length", MAX_HEAD_SIZE, default=width // heads),
        "vocab_size": size("vocab_size", 1 << 24, default=vocabulary),
    }


def _check_settings(header: GgufHeader, family: str, where: str) -> None:
    """Settings that change the answer, and that transformers does not take from GGUF."""
    scalars = header.scalars
    context, window = scalars.get(f"{family}.context_length"), scalars.get(f"{family}.attention.sliding_window")
    head = scalars.get(f"{family}.attention.key_length")
    rotated = scalars.get(f"{family}.rope.dimension_count")
    refused = {
        "split.count": int(scalars.get("split.count", 0) or 0) > 1,
        f"{family}.rope.scaling.type": scalars.get(f"{family}.rope.scaling.type", "none") != "none",
        f"{family}.rope.scale_linear": scalars.get(f"{family}.rope.scale_linear", 1.0) != 1.0,
        f"{family}.expert_count": bool(scalars.get(f"{family}.expert_count", 0)),
        f"{family}.attention.sliding_window": isinstance(window, int)
        and isinstance(context, int)
        and 0 < window < context,
        f"{family}.rope.dimension_count": None not in (head, rotated) and head != rotated,
    }
    for name, bad in refused.items():
        if bad:
            raise UnsupportedModelError(
                "has a setting that is not supported in GGUF files",
                where=f"{where}: {name}",
                found=str(scalars[name])[:80],
                hint="merge the pieces: llama-gguf-split --merge" if name == "split.count" else _HINT,
            )


def _expected(config: dict[str, object], family: str) -> dict[str, tuple[int, ...]]:
    """Sizes of every tensor, the innermost first; those of a layer by their name without it."""
    sizes = {name: value for name, value in config.items() if isinstance(value, int)}
    width, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    queries, keys = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (width, queries),
        "attn_k.weight": (width, keys),
        "attn_v.weight": (width, keys),
        "attn_output.weight": (queries, width),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (width, inner),
        "ffn_up.weight": (width, inner),
        "ffn_down.weight": (inner, width),
    }
    if family == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if family == "qwen3":
        layer |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    table = (width, sizes["vocab_size"])
    found = {f"blk.{index}.{name}": size for index in range(sizes["num_hidden_layers"]) for name, size in layer.items()}
    return {"token_embd.weight": table, "output_norm.weight": (width,), "output.weight": table, **found}


def _check_tensors(header: GgufHeader, expected: dict[str, tuple[int, ...]], where: str) -> None:
    strange = sorted(set(header.tensors) - set(expected))
    if strange:
        raise UnsupportedModelError(
            "has tensors that transformers would pass over, so it would compute something else",
            where=where,
            details=tuple(f"not expected: {name[:80]}" for name in strange[:8]),
            hint=_HINT,
        )
    # Without a tensor `output.weight`, the head is the embedding.
    lacking = sorted(set(expected) - set(header.tensors) - {"output.weight"})
    wrong = [name for name, tensor in header.tensors.items() if tensor.sizes != expected[name]]
    if lacking or wrong:
        raise CorruptSourceError(
            "lacks tensors, or has them in other sizes than its metadata states",
            where=where,
            details=(
                *(f"missing: {name}" for name in lacking[:8]),
                *(f"{name}: expected {expected[name]}, found {header.tensors[name].sizes}" for name in wrong[:8]),
            ),
        )


def _check_data(header: GgufHeader, where: str) -> None:
    """Every tensor's bytes lie in the file."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        raise RuntimeUnavailableError(
            "a library that reads GGUF files is not installed", where=where, hint="install it: pip install gguf"
        ) from None
    kinds = {int(kind): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType if kind in GGML_QUANT_SIZES}
    for name, tensor in header.tensors.items():
        if tensor.kind not in kinds:
            raise UnsupportedModelError(
                "has weights of an unknown type", where=f"{where}: {name}", found=f"ggml type {tensor.kind}"
            )
        block, block_bytes = kinds[tensor.kind]
        end = header.data_start + tensor.offset + math.prod(tensor.sizes) // block * block_bytes
        if tensor.sizes[0] % block or end > header.size:
            raise CorruptSourceError(
                "is not a whole GGUF file",
                where=where,
                expected=f"{name} up to byte {end}, in blocks of {block}",
                found=f"{header.size} bytes, and rows of {tensor.sizes[0]}",
                hint="copy or download the file again",
            )
