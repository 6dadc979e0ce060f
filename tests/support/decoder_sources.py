"""Tiny source models that generate text, with random weights: Hugging Face directories of several families.

Their weights are large enough that the most probable token stands out: quantization then changes few of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.decoders import END, END_OF_TURN, TEMPLATE, VOCABULARY, tokenizer_json

CONTEXT = 512
LAYERS = 2
SPREAD = 0.15
"""Standard deviation of the weights; transformers' own 0.02 gives almost equal logits."""


def save_llama(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A Llama with grouped heads and tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        **{**sizes, **heads, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, **_common(), **changes}
    )
    return _save(LlamaForCausalLM, config, folder, seed)


def save_gpt2(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": CONTEXT}
    return _save(GPT2LMHeadModel, GPT2Config(**{**sizes, **_common(), **changes}), folder, seed)


def _common() -> dict[str, Any]:
    return {
        "vocab_size": len(VOCABULARY),
        "initializer_range": SPREAD,
        "eos_token_id": VOCABULARY[END_OF_TURN],
        "bos_token_id": None,
        "pad_token_id": VOCABULARY[END],
    }


def _save(model_class: Any, config: Any, folder: Path, seed: int) -> Path:
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model_class(config).eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": END,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
