"""Any Unicode text gives the same ids and offsets in the compiled kernel, in its plain twin, and in the library."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import edgeonnx_ext
import numpy as np
from edgeonnx_ext._kernels import BpeTokenizer
from edgeonnx_ext.bpe import BpeModel
from edgeonnx_ext.reference.bpe import BpeTokenizer as PlainTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from tests.support.tokenizers import Kind, pairing_bpe_json

# Pattern, prefix space, NFC; the fuzz target of the tokenizer takes further ones in bulk.
CASES: tuple[tuple[Kind, bool, bool], ...] = (
    ("gpt2", False, False),
    ("gpt2", True, True),
    ("llama3", False, False),
    ("qwen2", False, True),
    ("digits", False, False),
    ("digit_runs", False, False),
    ("whole", True, False),
)
# Where a pattern or a table could go wrong: contractions, every kind of whitespace, numbers of all sorts, letters and
# marks of many scripts, characters that only one of the library's tables knows, joined emoji, controls.
LETTERS = "aAsStTrReEvVlLmMdDxzßſıİéǅДж中あ각\u1100\u1161\u11a8ש\u0628\u212b\uf900\U00010400\U0001d400"
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u3000"
NUMBERS = "0123456789\u0661\u00b2½\u216b㈠\U00011de0\U00016ff4"
OTHERS = (
    "'’.,!?-_/<|>\"#\0\x04\x1c\x7f\u0301\u0323\u093f\u200b\u200d\ufe0f\ufffd€\U0001f469\U0001f3fd\U0001f1e9\U0010ffff"
)
PIECES = [
    "'s",
    "'S",
    "'re",
    "'rE",
    "'ll",
    "'LL",
    "'ve",
    "'d",
    "'ſ",
    "  ",
    "\r\n",
    " \n",
    "12345",
    "<|end|>",
    "<|end",
    " <m>",
]

texts = st.lists(
    st.one_of(
        st.text(st.sampled_from(LETTERS + SPACES + NUMBERS + OTHERS), max_size=10),
        st.text(st.sampled_from(SPACES), max_size=5),
        st.text(st.sampled_from("ab' s\n1!"), max_size=70),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        st.sampled_from(PIECES),
    ),
    max_size=8,
).map("".join)


@lru_cache(maxsize=len(CASES))
def tokenizers_for(kind: Kind, prefix: bool, nfc: bool) -> tuple[Tokenizer, tuple[Any, Any]]:
    """Return the library's tokenizer, and the kernel in use and its twin, with added tokens."""
    library = Tokenizer.from_str(pairing_bpe_json(kind, add_prefix_space=prefix).decode())
    library.normalizer = normalizers.NFC() if nfc else None  # type: ignore[assignment]
    library.add_special_tokens(["<|end|>", AddedToken("<m>", lstrip=True)])
    library.add_tokens([AddedToken("zz", single_word=True), AddedToken("<|e", normalized=True)])
    model = BpeModel.from_tokenizer_json(library.to_str().encode())
    return library, (BpeTokenizer(model), PlainTokenizer(model))


def rows(kernel: Any, batch: list[str], *, offsets: bool) -> list[Any]:
    tokenized = kernel.tokenize(batch, offsets=offsets)
    ids = np.full((tokenized.rows, tokenized.width), -1, dtype=np.int64)
    spans = np.full((tokenized.rows, tokenized.width, 2), -1, dtype=np.int64)
    tokenized.write_into(ids, offsets=spans if offsets else None)
    lengths = tokenized.lengths.tolist()
    return [
        (ids[row, :length].tolist(), [tuple(span) for span in spans[row, :length].tolist()] if offsets else None)
        for row, length in enumerate(lengths)
    ]


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(CASES), batch=st.lists(texts, min_size=1, max_size=4))
def test_texts_give_the_ids_and_offsets_of_the_library(case: tuple[Kind, bool, bool], batch: list[str]) -> None:
    library, kernels = tokenizers_for(*case)
    encodings = library.encode_batch(batch)
    for kernel in kernels:
        assert rows(kernel, batch, offsets=True) == [(row.ids, row.offsets) for row in encodings]
        assert rows(kernel, batch, offsets=False) == [(row.ids, None) for row in encodings]


def test_the_kernel_in_use_is_the_compiled_one_if_there_is_one() -> None:
    assert (BpeTokenizer is not PlainTokenizer) is edgeonnx_ext.HAS_NATIVE
