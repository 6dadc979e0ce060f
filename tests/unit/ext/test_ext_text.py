from __future__ import annotations

import json
import sys

import edgeonnx_ext
import numpy as np
import pytest
from edgeonnx_ext import TextEncoder, TokenizerDataError, UnknownTokenizerError, open_text_encoder

from tests.support.texts import vader_texts
from tests.support.tokenizers import trained_bpe_json

NATIVE = "wordpiece-native" if edgeonnx_ext.HAS_NATIVE else "wordpiece-reference"


def unknown(data: bytes) -> bytes:
    """The same tokenizer behind a normalizer that the kernels do not know."""
    root = json.loads(data)
    root["normalizer"] = {"type": "Sequence", "normalizers": [root["normalizer"], {"type": "NFC"}]}
    return json.dumps(root).encode()


@pytest.fixture(params=["wordpiece", "tokenizers"])
def encoder(request: pytest.FixtureRequest, minilm_json: bytes) -> TextEncoder:
    return open_text_encoder(minilm_json, max_length=16, pad_id=0, backend=request.param)


def test_it_says_which_backend_and_why(minilm_json: bytes) -> None:
    known = open_text_encoder(minilm_json, max_length=16, pad_id=0)
    assert (known.backend, known.reason) == (NATIVE, None)
    other = open_text_encoder(unknown(minilm_json), max_length=16, pad_id=0)
    assert (other.backend, other.reason) == ("tokenizers", "normalizer type 'NFC' at normalizer.normalizers[1]")
    forced = open_text_encoder(minilm_json, max_length=16, pad_id=0, backend="tokenizers")
    assert (forced.backend, forced.reason) == ("tokenizers", "backend='tokenizers' was asked for")


def test_a_batch_is_padded_to_its_longest_row(encoder: TextEncoder) -> None:
    batch = encoder.encode(["hello world", ""])
    assert batch.input_ids.tolist() == [[101, 7592, 2088, 102], [101, 102, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0] * 4] * 2
    assert batch.lengths.tolist() == [4, 2]
    arrays = (batch.input_ids, batch.attention_mask, batch.token_type_ids, batch.lengths)
    assert all(array.dtype == np.int64 and array.flags.c_contiguous for array in arrays)


def test_pairs_have_type_ids(encoder: TextEncoder) -> None:
    batch = encoder.encode(["hello", "a"], ["world", "b c"])
    assert batch.input_ids.tolist() == [[101, 7592, 102, 2088, 102, 0], [101, 1037, 102, 1038, 1039, 102]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]]


def test_both_backends_give_the_same_batches(minilm_json: bytes) -> None:
    texts = vader_texts()[::23]
    options = {"max_length": 33, "pad_id": 5, "pad_type_id": 1, "prefix": " Query: "}
    kernel = open_text_encoder(minilm_json, **options)
    library = open_text_encoder(minilm_json, backend="tokenizers", **options)
    for pairs in (None, texts[::-1]):
        ours, theirs = kernel.encode(texts, pairs), library.encode(texts, pairs)
        for name in ("input_ids", "attention_mask", "token_type_ids", "lengths"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_a_width_may_be_given(encoder: TextEncoder) -> None:
    assert encoder.encode(["hello"], width=8).input_ids.shape == (1, 8)
    assert encoder.encode(["hello"], pad_to_multiple_of=8).input_ids.shape == (1, 8)
    assert encoder.encode(["hello"], pad_to_multiple_of=3).input_ids.shape == (1, 3)
    with pytest.raises(ValueError, match="width: expected at least 3, the longest row, found 2"):
        encoder.encode(["hello"], width=2)
    with pytest.raises(ValueError, match="pad_to_multiple_of: expected 1 or more, found 0"):
        encoder.encode(["hello"], pad_to_multiple_of=0)
    with pytest.raises(ValueError, match="found both"):
        encoder.encode(["hello"], width=8, pad_to_multiple_of=8)


def test_the_prefix_stands_before_texts_and_not_before_pairs(minilm_json: bytes) -> None:
    plain = open_text_encoder(minilm_json, max_length=32, pad_id=0)
    prefixed = open_text_encoder(minilm_json, max_length=32, pad_id=0, prefix="query: ")
    assert prefixed.encode(["a"]).input_ids.tolist() == plain.encode(["query: a"]).input_ids.tolist()
    assert prefixed.encode(["a"], ["b"]).input_ids.tolist() == plain.encode(["query: a"], ["b"]).input_ids.tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ValueError, "texts: expected at least one text, found none"),
        (("hello",), TypeError, "found one str"),
        (([1],), TypeError, r"texts\[0\]: expected a str, found int"),
        ((["a"], []), ValueError, "pairs: expected one for each of the 1 texts, found 0"),
        ((["a", "b\ud800"],), ValueError, r"texts\[1\]: .* U\+D800 at character 1\."),
        ((["a"], ["\udfff"]), ValueError, r"pairs\[0\]: .* U\+DFFF at character 0\."),
    ],
)
def test_bad_texts_are_refused_alike(
    encoder: TextEncoder, arguments: tuple, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        encoder.encode(*arguments)


@pytest.mark.parametrize("backend", ["wordpiece", "tokenizers"])
def test_positions_of_surrogates_are_those_of_the_callers_text(minilm_json: bytes, backend: str) -> None:
    encoder = open_text_encoder(minilm_json, max_length=8, pad_id=0, prefix="query: ", backend=backend)
    with pytest.raises(ValueError, match="at character 3"):
        encoder.encode(["  a\udc80"])


@pytest.mark.parametrize("backend", ["wordpiece", "tokenizers"])
def test_a_max_length_without_room_is_refused(minilm_json: bytes, backend: str) -> None:
    with pytest.raises(ValueError, match="expected at least the 2 special tokens"):
        open_text_encoder(minilm_json, max_length=1, pad_id=0, backend=backend)
    with pytest.raises(ValueError, match="pad_id: expected an integer"):
        open_text_encoder(minilm_json, max_length=8, pad_id=-1, backend=backend)
    with pytest.raises(ValueError, match="expected at least the 3 special tokens"):
        open_text_encoder(minilm_json, max_length=2, pad_id=0, backend=backend).encode(["a"], ["b"])


@pytest.mark.parametrize("backend", ["auto", "wordpiece", "tokenizers"])
@pytest.mark.parametrize("data", [b"", b"{}x", b"\xff"])
def test_a_broken_document_is_refused(data: bytes, backend: str) -> None:
    with pytest.raises(TokenizerDataError, match=r"tokenizer\.json"):
        open_text_encoder(data, max_length=8, pad_id=0, backend=backend)


def test_only_auto_hands_over_to_the_library(minilm_json: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownTokenizerError, match="NFC"):
        open_text_encoder(unknown(minilm_json), max_length=8, pad_id=0, backend="wordpiece")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnknownTokenizerError, match=r"NFC.*pip install tokenizers"):
        open_text_encoder(unknown(minilm_json), max_length=8, pad_id=0)
    assert open_text_encoder(minilm_json, max_length=8, pad_id=0).backend == NATIVE
    with pytest.raises(UnknownTokenizerError, match="model type 'WordPiece' at model"):
        open_text_encoder(minilm_json, max_length=8, pad_id=0, backend="bpe")
    with pytest.raises(ValueError, match="backend: expected one of auto, wordpiece, bpe, tokenizers, found 'unigram'"):
        open_text_encoder(minilm_json, max_length=8, pad_id=0, backend="unigram")


@pytest.mark.parametrize("backend", ["wordpiece", "tokenizers"])
def test_the_side_of_truncation_is_the_documents(minilm_json: bytes, backend: str) -> None:
    root = json.loads(minilm_json)
    root["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    encoder = open_text_encoder(json.dumps(root).encode(), max_length=4, pad_id=0, backend=backend)
    assert encoder.encode(["hello big world"]).input_ids.tolist() == [[101, 2502, 2088, 102]]


def test_padding_may_stand_on_the_left(minilm_json: bytes) -> None:
    encoder = open_text_encoder(minilm_json, max_length=8, pad_id=7, padding_side="left")
    batch = encoder.encode(["hello world", ""])
    assert batch.input_ids.tolist() == [[101, 7592, 2088, 102], [7, 7, 101, 102]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]


def test_one_text_of_a_pair_may_be_the_one_that_is_cut(minilm_json: bytes) -> None:
    encoder = open_text_encoder(minilm_json, max_length=7, pad_id=0, strategy="only_second")
    batch = encoder.encode(["a b"], ["c d e f"])
    assert batch.input_ids.tolist() == [[101, 1037, 1038, 102, 1039, 1040, 102]]


def test_encoding_into_the_callers_buffers(encoder: TextEncoder) -> None:
    texts = ["a", "hello world", ""]
    for dtype in (np.int64, np.int32):
        ids, mask, types = (np.full((3, 6), -1, dtype=dtype) for _ in range(3))
        spans = np.full((3, 6, 2), -1, dtype=dtype)
        found = encoder.encode_into(texts, ids, mask, types, offsets=spans, sort_by_length=True)
        assert found.order.tolist() == [1, 0, 2]
        assert found.lengths.tolist() == [4, 3, 2]
        assert ids.tolist() == [[101, 7592, 2088, 102, 0, 0], [101, 1037, 102, 0, 0, 0], [101, 102, 0, 0, 0, 0]]
        assert mask.sum(axis=1).tolist() == [4, 3, 2]
        assert not types.any()
        assert spans[0, :4].tolist() == [[0, 0], [0, 5], [6, 11], [0, 0]]
    given = np.full((3, 6), -1, dtype=np.int64)
    assert encoder.encode_into(texts, given).order.tolist() == [0, 1, 2]
    assert given[0].tolist() == [101, 1037, 102, 0, 0, 0]


def test_pairs_into_the_callers_buffers(encoder: TextEncoder) -> None:
    ids, types = np.full((1, 6), -1, dtype=np.int64), np.full((1, 6), -1, dtype=np.int64)
    encoder.encode_into(["hello"], ids, token_type_ids=types, pairs=["world"])
    assert ids.tolist() == [[101, 7592, 102, 2088, 102, 0]]
    assert types.tolist() == [[0, 0, 0, 1, 1, 0]]


def test_buffers_that_do_not_fit_stay_as_they_are(encoder: TextEncoder) -> None:
    ids = np.full((2, 3), -1, dtype=np.int64)
    with pytest.raises(ValueError, match=r"input_ids: expected shape \(2, 4 or more\), found \(2, 3\)"):
        encoder.encode_into(["hello world", ""], ids)
    assert (ids == -1).all()


def test_offsets_are_those_of_the_callers_text(minilm_json: bytes) -> None:
    encoder = open_text_encoder(minilm_json, max_length=16, pad_id=0, prefix="query: ")
    ids, spans = np.zeros((1, 6), dtype=np.int64), np.zeros((1, 6, 2), dtype=np.int64)
    encoder.encode_into(["hello world"], ids, offsets=spans)
    assert spans[0].tolist() == [[0, 0], [0, 0], [0, 0], [0, 5], [6, 11], [0, 0]]
    with pytest.raises(ValueError, match="offsets: expected texts alone where a prefix"):
        encoder.encode_into(["a"], ids, pairs=["b"], offsets=spans)


def test_byte_level_bpe_has_a_kernel_too() -> None:
    texts = ["Hello  world", "it's 2026!\n", "naïve 東京 🙂"]
    data = trained_bpe_json("gpt2", vader_texts()[:500], vocab_size=500)
    kernel = open_text_encoder(data, max_length=12, pad_id=0)
    assert kernel.backend == NATIVE.replace("wordpiece", "bpe")
    library = open_text_encoder(data, max_length=12, pad_id=0, backend="tokenizers")
    for pairs in (None, texts[::-1]):
        for name, expected in library.encode(texts, pairs).tensors().items():
            np.testing.assert_array_equal(kernel.encode(texts, pairs).tensors()[name], expected, err_msg=name)
