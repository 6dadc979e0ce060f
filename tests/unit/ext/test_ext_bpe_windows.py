"""Offsets of the tokens in each window of a long text: the library trims them after it has cut, window by window."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext.bpe import BpeModel
from edgeonnx_ext.layout import Truncation
from edgeonnx_ext.library import LibraryTokenizer
from tokenizers import AddedToken, Tokenizer, processors

from tests.support.tokenizers import Kind
from tests.unit.ext.test_ext_bpe_kernel import trained

PARTS = ["<s>", " <m> ", "a", " a", "  a", "  ", " ", "the", " cat's", "é", "e\u0301", "\n ", " \n", " \u3000"]
TEXTS = [
    "the cat's a  a\n a cat's <m> the the",
    " a a a a a a a a a a a a a",
    "a<s>a<s> a<s>  a<s>a a<m>a",
    *("".join(random.Random(seed).choices(PARTS, k=24)) for seed in range(30)),
]


@lru_cache(maxsize=16)
def tokenizers_for(kind: Kind, prefix: bool, trim: bool, keeps_prefix: bool) -> tuple[LibraryTokenizer, BpeModel]:
    library = Tokenizer.from_str(trained(kind, add_prefix_space=prefix).decode())
    library.add_special_tokens(["<s>", AddedToken("<m>", lstrip=True, rstrip=True, normalized=False)])
    if kind == "whole":
        library.post_processor = processors.ByteLevel(trim_offsets=trim, add_prefix_space=keeps_prefix)
    else:
        special = ("<s>", library.token_to_id("<s>"))
        library.post_processor = processors.RobertaProcessing(
            special, special, trim_offsets=trim, add_prefix_space=keeps_prefix
        )
    data = library.to_str().encode()
    return LibraryTokenizer(data, "a test"), BpeModel.from_tokenizer_json(data)


def rows(tokenizer: Any, truncation: Truncation) -> list[Any]:
    tokenized = tokenizer.tokenize(TEXTS, truncation=truncation, offsets=True)
    ids = np.full((tokenized.rows, tokenized.width), -1, dtype=np.int64)
    offsets = np.full((tokenized.rows, tokenized.width, 2), -1, dtype=np.int64)
    tokenized.write_into(ids, offsets=offsets)
    return [ids.tolist(), offsets.tolist(), tokenized.sources.tolist()]


CUTS = [
    Truncation(max_length=9, side="left"),
    Truncation(max_length=7, side="right", overflow=True),
    Truncation(max_length=6, side="right", overflow=True, stride=2),
    Truncation(max_length=7, side="left", overflow=True, stride=1),
]


@pytest.mark.parametrize("kind", ["gpt2", "whole"])
@pytest.mark.parametrize(("prefix", "trim", "keeps_prefix"), list(product([True, False], repeat=3)))
def test_every_window_has_the_offsets_of_the_library(
    twin: SimpleNamespace, kind: Kind, prefix: bool, trim: bool, keeps_prefix: bool
) -> None:
    library, model = tokenizers_for(kind, prefix, trim, keeps_prefix)
    kernel = twin.BpeTokenizer(model)
    for truncation in CUTS:
        assert rows(kernel, truncation) == rows(library, truncation)


def test_only_the_first_token_of_a_window_keeps_its_space(twin: SimpleNamespace) -> None:
    _, model = tokenizers_for("gpt2", True, True, True)
    kernel = twin.BpeTokenizer(model)
    tokenized = kernel.tokenize(["a a a a"], truncation=Truncation(max_length=4, overflow=True), offsets=True)
    offsets = np.zeros((tokenized.rows, tokenized.width, 2), dtype=np.int64)
    tokenized.write_into(np.zeros((tokenized.rows, tokenized.width), dtype=np.int64), offsets=offsets)
    assert offsets[:, 1:3].tolist() == [[[0, 1], [2, 3]], [[3, 5], [6, 7]]]
