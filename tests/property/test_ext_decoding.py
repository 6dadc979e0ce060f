"""Any ids give the text of Hugging Face tokenizers: in the compiled kernel, in its plain twin, whole or streamed."""

from __future__ import annotations

import contextlib
import importlib
import json
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest
from edgeonnx_ext._kernels import PURE
from edgeonnx_ext.decoding import DecoderModel
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.reference import decoding as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel, WordPiece
from tokenizers.models import BPE
from tokenizers.models import WordPiece as WordPieceVocabulary
from tokenizers.pre_tokenizers import ByteLevel as PreTokenizer
from tokenizers.trainers import BpeTrainer

CORPUS = ["the naïve café — don't! 日本語, 日本 👩‍👩‍👧 العربية مرحبا", "Привет, мир. 👍👎 e\u0301"] * 3
MODULES: list[ModuleType] = [reference] if PURE else [reference, importlib.import_module("edgeonnx_ext._decode")]


@lru_cache(maxsize=3)
def tokenizer(kind: str) -> tuple[Tokenizer, list[Any], list[int]]:
    """Return the library's tokenizer, our decoders over its document, and all its ids."""
    library = Tokenizer(BPE())
    if kind == "byte level":
        library.pre_tokenizer, library.decoder = PreTokenizer(add_prefix_space=False), ByteLevel()
        library.train_from_iterator(CORPUS, BpeTrainer(vocab_size=340, initial_alphabet=PreTokenizer.alphabet()))
    else:
        words = ["[UNK]", "a", "##b", "##", "", ".", ",", "' ", "n't", "'s", "do not", "## .", "é", "##中", "x do not"]
        library = Tokenizer(WordPieceVocabulary({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
        library.decoder = WordPiece(cleanup=kind == "word piece, clean")
    library.add_special_tokens(["<|end|>", "<|é|>"])
    library.add_tokens([AddedToken("x y", normalized=False), AddedToken("Ġ中", normalized=False)])
    data = library.to_str().encode()
    model = DecoderModel.from_tokenizer_json(data)
    return library, [module.Decoder(model) for module in MODULES], sorted(library.get_vocab().values())


@pytest.mark.parametrize("kind", ["byte level", "word piece", "word piece, clean"])
@settings(max_examples=200, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_give_the_text_of_the_library_whole_and_streamed(kind: str, data: st.DataObject, skip: bool) -> None:
    library, decoders, known = tokenizer(kind)
    ids = data.draw(st.lists(st.sampled_from(known), max_size=30))
    expected = library.decode(ids, skip_special_tokens=skip)
    for module, decoder in zip(MODULES, decoders, strict=True):
        assert decoder.decode(ids, skip) == expected
        stream = module.DecodeStream(decoder, skip)
        for count, token_id in enumerate(ids):
            stream.push(token_id)
            if count == 2:
                break
        stream.reset()
        assert "".join(map(stream.push, ids)) + stream.finish() == expected


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_text_that_was_encoded_comes_back_and_never_waits_longer_than_a_character(text: str) -> None:
    library, decoders, _ = tokenizer("byte level")
    ids = library.encode(text).ids
    for module, decoder in zip(MODULES, decoders, strict=True):
        stream = module.DecodeStream(decoder, False)
        given_out, pieces = "", b""
        for token_id in ids:
            given_out += stream.push(token_id)
            pieces += decoder.token_bytes(token_id)
            assert given_out == pieces.decode("utf-8", "ignore")  # of valid text, all whole characters
        assert stream.finish() == ""
        assert given_out == decoder.decode(ids, False) == text


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 400), st.integers(-(2**70), 2**70)), max_size=8))
def test_the_first_id_without_token_is_named(ids: list[int]) -> None:
    _, decoders, known = tokenizer("byte level")
    position = next((position for position, token_id in enumerate(ids) if token_id not in known), None)
    for decoder in decoders:
        if position is None:
            decoder.decode(ids)
            continue
        with pytest.raises(ValueError, match=rf"ids\[{position}\]: .* found {ids[position]},"):
            decoder.decode(ids)


@settings(max_examples=100, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3)
    ),
    data=st.data(),
)
def test_a_document_is_read_or_refused_with_our_error(value: Any, data: st.DataObject) -> None:
    root = json.loads(tokenizer("byte level")[0].to_str())
    place = data.draw(st.sampled_from([*root, "decoder.type", "model.vocab", "model.type"]))
    parent, _, key = place.rpartition(".")
    (root[parent] if parent else root)[key] = value
    with contextlib.suppress(TokenizerDataError, UnknownTokenizerError):
        DecoderModel.from_tokenizer_json(json.dumps(root).encode())
