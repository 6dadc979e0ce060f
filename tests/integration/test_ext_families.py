"""The tokenizers of model families, as transformers sets them up: the kernels take them, and give their ids."""

from __future__ import annotations

from typing import Any

import pytest
from edgeonnx_ext import Decoder, DecoderModel, UnknownTokenizerError
from edgeonnx_ext.text import read_model
from tokenizers import Tokenizer

from tests.fuzz.compare import mismatches, open_kernel
from tests.support.tokenizers import byte_letters

pytestmark = pytest.mark.slow

TEXTS = [
    "",
    "Hello  world",
    " it's 2026!\n",
    "a <mask> b [MASK] c",
    "naïve 東京 🙂",
    "x\u0301\u0323 ｆｕｌｌ",
    "<s>a</s>",
]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<mask>", "<unk>", "a", "##b", "hello"]
WORDPIECE = {"vocab": {word: index for index, word in enumerate(WORDS)}}
BYTES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", *WORDS[:5], *byte_letters(), "he", "Ġw"]
BPE = {"vocab": {token: index for index, token in enumerate(BYTES)}, "merges": [("h", "e"), ("Ġ", "w")]}
FAMILIES = {
    **dict.fromkeys(["Bert", "DistilBert", "Electra", "MPNet"], WORDPIECE),
    **dict.fromkeys(["GPT2", "Roberta", "Longformer", "Bart", "CodeGen", "Deberta", "Qwen2"], BPE),
}


def document(family: str, options: dict[str, Any]) -> bytes:
    import transformers

    tokenizer = getattr(transformers, f"{family}Tokenizer")(**options)
    return str(tokenizer.backend_tokenizer.to_str()).encode()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernels_take_it_and_give_its_ids(family: str) -> None:
    data = document(family, FAMILIES[family])
    library = Tokenizer.from_str(data.decode())
    library.no_padding()
    library.no_truncation()
    wrong = mismatches(open_kernel(data), library, TEXTS)
    assert [TEXTS[row] for row in wrong] == []
    decoder = Decoder(DecoderModel.from_tokenizer_json(data))
    for text in TEXTS:
        ids = library.encode(text).ids
        assert decoder.decode(ids) == library.decode(ids)


def test_what_is_like_bpe_but_not_byte_level_goes_to_the_library() -> None:
    data = document("CLIP", {"vocab": BPE["vocab"], "merges": []})
    with pytest.raises(UnknownTokenizerError, match="end_of_word_suffix"):
        read_model(data)
