"""Decoding, whole and streamed, against Hugging Face `tokenizers`; every kernel test runs over both twins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import decoding
from edgeonnx_ext.decoding import DecoderModel
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.reference import decoding as reference
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel, Sequence, WordPiece
from tokenizers.models import BPE
from tokenizers.models import WordPiece as WordPieceVocabulary

from tests.support.texts import minilm_tokenizer_json
from tests.unit.ext.conftest import compiled

# One byte of each kind that UTF-8 tells apart, limits included.
BYTES = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xF5]
CHAR_OF_BYTE = {byte: chr(char) for char, byte in decoding.BYTE_CHARS.items()}
TEXTS = [
    "Hello, world!",
    "don't do not; I'm fine.",
    "  spaces\n\n\ttabs  ",
    "naïve café — 日本語 👩‍👩‍👧 العربية",
    "",
    "x" * 300,
]


@pytest.fixture(params=["compiled", "reference"])
def twin(request: pytest.FixtureRequest) -> SimpleNamespace:
    module = compiled("_decode") if request.param == "compiled" else reference
    return SimpleNamespace(Decoder=module.Decoder, DecodeStream=module.DecodeStream)


def added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **plain, **flags}


def document(
    vocab: dict[str, int], tokens: Iterable[dict[str, Any]] = (), decoder: Any = None, **sections: Any
) -> dict[str, Any]:
    """Return a byte-level BPE document; the library itself wrote its sections."""
    tokenizer = Tokenizer(BPE(vocab, []))
    tokenizer.decoder = decoder or ByteLevel()
    return {**json.loads(tokenizer.to_str()), "added_tokens": list(tokens), **sections}


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def byte_vocab(*merged: str) -> dict[str, int]:
    """Return all byte tokens, byte b with id b, and then `merged` in byte characters."""
    tokens = [CHAR_OF_BYTE[byte] for byte in range(256)]
    tokens += ["".join(CHAR_OF_BYTE[byte] for byte in text.encode()) for text in merged]
    return {token: token_id for token_id, token in enumerate(tokens)}


def wordpiece_document(tokens: list[str], **decoder: Any) -> dict[str, Any]:
    tokenizer = Tokenizer(WordPieceVocabulary({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.decoder = WordPiece(**decoder)
    return json.loads(tokenizer.to_str())


def both(twin: SimpleNamespace, data: bytes) -> tuple[Tokenizer, Any]:
    return Tokenizer.from_str(data.decode()), twin.Decoder(DecoderModel.from_tokenizer_json(data))


def streamed(twin: SimpleNamespace, decoder: Any, ids: Iterable[int], *, skip: bool) -> str:
    stream = twin.DecodeStream(decoder, skip)
    return "".join(map(stream.push, ids)) + stream.finish()


# --- the document -----------------------------------------------------------------------------------------------------


def test_a_byte_level_document_is_read() -> None:
    tokens = [added(256, "<|end|>", special=True, lstrip=True), added(257, "<x y>", single_word=True, rstrip=True)]
    model = DecoderModel.from_tokenizer_json(encoded(document(byte_vocab(), tokens)))
    assert (model.byte_level, model.prefix, model.cleanup, model.size) == (True, "", False, 258)
    assert model.special_ids == {256}
    assert [model.tokens[index] for index in (65, 256, 257)] == ["A", "<|end|>", "<x y>"]


@pytest.mark.parametrize("decoder", [WordPiece("@@", False), Sequence([WordPiece("@@", False)])])
def test_a_word_piece_decoder_is_read_alone_or_in_a_sequence_of_one(decoder) -> None:
    model = DecoderModel.from_tokenizer_json(encoded(document({"a": 0}, decoder=decoder)))
    assert (model.byte_level, model.prefix, model.cleanup) == (False, "@@", False)


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    from tokenizers.pre_tokenizers import ByteLevel as PreTokenizer

    assert {chr(char) for char in decoding.BYTE_CHARS} == set(PreTokenizer.alphabet())
    assert sorted(decoding.BYTE_CHARS.values()) == list(range(256))


NFC = {"type": "NFC"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decoder": None}, "no decoder"),
        ({"decoder": {"type": "Metaspace"}}, "decoder type 'Metaspace' at decoder"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteLevel"}] * 2}}, "2 sections"),
        ({"decoder": {"type": "ByteLevel", "new": 1}}, "field 'new' at decoder"),
        ({"decoder": {"type": "WordPiece", "prefix": "", "cleanup": True, "new": 1}}, "field 'new' at decoder"),
        ({"model": {"type": "Unigram", "vocab": []}}, "model type 'Unigram'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "new": 1}}, "field 'new' at model"),
        ({"model": {"type": "BPE", "vocab": {"a": 2**30}}}, "id 1073741824 in model.vocab"),
        ({"version": "2.0"}, "version '2.0'"),
        ({"new": 1}, "field 'new' at the top level"),
        ({"added_tokens": [added(7, "x")]}, r"'x' with id 7 at added_tokens\[0\], where tokenizers assigns 2"),
        ({"added_tokens": [added(1, "a")]}, "'a' with id 1 .* assigns 0"),
        ({"added_tokens": [added(2, "x"), added(4, "y")]}, r"'y' with id 4 at added_tokens\[1\], .* assigns 3"),
        ({"model": {"vocab": {"a": 0, "b": 2}}, "added_tokens": [added(2, "x")]}, "the id of another token"),
        ({"added_tokens": [added(2, "")]}, "empty content"),
        ({"added_tokens": [added(2, "x", normalized=True)], "normalizer": {"type": "Lowercase"}}, "normalized"),
        ({"added_tokens": [added(2, "é", normalized=True)], "normalizer": NFC}, "normalized"),
        ({"added_tokens": [{**added(2, "x"), "new": 1}]}, r"field 'new' at added_tokens\[0\]"),
    ],
)
def test_what_is_not_known_exactly_is_refused_with_its_place(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownTokenizerError, match=reason):
        DecoderModel.from_tokenizer_json(encoded({**document({"a": 0, "b": 1}), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"vocab": {}}}, "found none"),
        ({"model": {"vocab": {"a": 0, "b": 0}}}, "unique ids"),
        ({"model": {"vocab": {"a": -1}}}, "model.vocab.a"),
        ({"model": {"vocab": {"\ud800": 1}}}, "lone surrogate"),
        ({"model": None}, "object at model"),
        ({"decoder": []}, "object at decoder"),
        ({"decoder": {"type": "WordPiece", "prefix": 1, "cleanup": True}}, "text at decoder.prefix"),
        ({"decoder": {"type": "WordPiece", "prefix": "", "cleanup": 1}}, "true or false at decoder.cleanup"),
        ({"added_tokens": {}}, "list at added_tokens"),
        ({"added_tokens": [1]}, r"object at added_tokens\[0\]"),
        ({"added_tokens": [{**added(2, "x"), "special": 1}]}, "special"),
    ],
)
def test_a_broken_document_is_told_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerDataError, match=message):
        DecoderModel.from_tokenizer_json(encoded({**document({"a": 0, "b": 1}), **changes}))


def test_zero_bytes_are_no_document() -> None:
    with pytest.raises(TokenizerDataError, match="0 bytes"):
        DecoderModel.from_tokenizer_json(b"")


@pytest.mark.parametrize("tokens", [{}, {-1: "a"}, {2**31: "a"}])
def test_a_model_made_by_hand_needs_ids(tokens: dict[int, str]) -> None:
    with pytest.raises(ValueError, match=r"tokens: expected .* in \[0, 2\*\*31\)"):
        DecoderModel(tokens=tokens, special_ids=frozenset(), byte_level=True, prefix="", cleanup=False)


# --- whole ------------------------------------------------------------------------------------------------------------


def test_any_bytes_become_what_the_library_makes_of_them(twin: SimpleNamespace) -> None:
    library, decoder = both(twin, encoded(document(byte_vocab())))
    for length in range(1, 5):
        batch = [list(ids) for ids in itertools.product(BYTES, repeat=length)]
        assert decoder.decode_batch(batch) == library.decode_batch(batch)


@pytest.mark.parametrize("content", ["<|x|>", "x y", "éé", "ĠĠ", "Ġ ", "中", "Ã©", "\n"])
@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_are_decoded_as_the_library_does(twin: SimpleNamespace, content: str, special: bool) -> None:
    library, decoder = both(twin, encoded(document(byte_vocab(), [added(256, content, special=special)])))
    for ids, skip in itertools.product([[256], [65, 256, 66], [0xC3, 256, 0xA9], [0xE4, 256]], [True, False]):
        assert decoder.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


def test_a_token_that_was_once_added_as_special_stays_special(twin: SimpleNamespace) -> None:
    tokens = [added(256, "<x>", special=True), added(256, "<x>")]
    library, decoder = both(twin, encoded(document(byte_vocab(), tokens)))
    assert decoder.decode([65, 256]) == library.decode([65, 256]) == "A"


def test_only_new_added_tokens_take_new_ids(twin: SimpleNamespace) -> None:
    tokens = [added(65, "A"), added(256, "<x>"), added(256, "<x>"), added(257, "<y>")]
    library, decoder = both(twin, encoded(document(byte_vocab(), tokens)))
    ids = [65, 256, 257]
    assert decoder.decode(ids) == library.decode(ids) == "A<x><y>"


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_an_added_token_that_its_normalizer_keeps_is_known(twin: SimpleNamespace, normalizer: Any) -> None:
    tokens = [added(256, "<x>", special=True, normalized=True)]
    library, decoder = both(twin, encoded(document(byte_vocab(), tokens, normalizer=normalizer)))
    for skip in (True, False):
        assert decoder.decode([65, 256], skip) == library.decode([65, 256], skip_special_tokens=skip)


WORDS = ["[UNK]", "##a", "a", "##", "", ".", "?", "!", ",", "'", "' ", "n't", "'m", "'s", "'ve", "'re", "do not", "a ."]
WORDS += ["##'s", "## .", "x do not y", "é", "##中"]


@pytest.mark.parametrize("decoder", [{}, {"cleanup": False}, {"prefix": "a"}, {"prefix": ""}])
def test_word_pieces_become_what_the_library_makes_of_them(twin: SimpleNamespace, decoder: dict[str, Any]) -> None:
    library, ours = both(twin, encoded(wordpiece_document(WORDS, **decoder)))
    batch = [list(ids) for length in (1, 2) for ids in itertools.product(range(len(WORDS)), repeat=length)]
    batch += [list(range(len(WORDS))), list(reversed(range(len(WORDS))))]
    expected = library.decode_batch(batch)
    assert ours.decode_batch(batch) == expected
    assert [streamed(twin, ours, ids, skip=True) for ids in batch] == expected


@pytest.mark.parametrize("skip", [True, False])
def test_minilm_decodes_texts_as_the_library_does(twin: SimpleNamespace, skip: bool) -> None:
    library, decoder = both(twin, minilm_tokenizer_json())
    batch = [encoding.ids for encoding in library.encode_batch(TEXTS)]
    expected = library.decode_batch(batch, skip_special_tokens=skip)
    assert decoder.decode_batch(batch, skip) == expected
    assert decoder.decode_batch(np.array(batch), skip) == expected
    assert [streamed(twin, decoder, ids, skip=skip) for ids in batch] == expected


def test_a_special_token_that_was_skipped_is_not_the_first(twin: SimpleNamespace) -> None:
    library, decoder = both(twin, minilm_tokenizer_json())
    ids = [library.token_to_id(token) for token in ("[CLS]", "##ing", "[SEP]", "word")]
    assert decoder.decode(ids) == library.decode(ids) == "##ing word"
    assert decoder.decode(ids, False) == library.decode(ids, skip_special_tokens=False) == "[CLS]ing [SEP] word"


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        iter,
        lambda ids: np.array(ids, np.int32),
        lambda ids: np.array(ids, np.int64),
        lambda ids: [np.int32(index) for index in ids],
        lambda ids: np.array(ids, np.int64).view(type("Ids", (np.ndarray,), {})),
        lambda ids: np.frombuffer(np.array(ids).tobytes(), np.int64),
    ],
)
def test_every_kind_of_ids_is_taken(twin: SimpleNamespace, make) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab())))
    assert decoder.decode(make([72, 105])) == "Hi"
    assert decoder.decode(make([])) == ""


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([65, 300], ValueError, r"ids\[1\]: .* found 300, .* \(ids up to 299\)"),
        ([65, 280], ValueError, r"ids\[1\]: .* found 280, "),
        ([-1], ValueError, r"ids\[0\]: .* found -1"),
        ([65, 2**70, -1], ValueError, rf"ids\[1\]: .* found {2**70}"),
        ([65, 500, 2**70], ValueError, r"ids\[1\]: .* found 500"),
        ([-(2**63) - 1], ValueError, rf"found {-(2**63) - 1}"),
        (np.array([65, 66, 2**40]), ValueError, rf"ids\[2\]: .* found {2**40}"),
        (np.array([-5], np.int32), ValueError, r"ids\[0\]: .* found -5"),
        ([65, 1.0], TypeError, r"ids\[1\]: expected an integer, found float"),
        ([65, 500, None], TypeError, r"ids\[2\]: expected an integer, found NoneType"),
        (65, TypeError, "ids: expected a sequence of int, .* found int"),
        ("AB", TypeError, "ids: .* found str"),
        (b"AB", TypeError, "ids: .* found bytes"),
        (np.array([1.0]), TypeError, "ids: expected dtype int32 or int64, found float64"),
        (np.array([1], np.uint8), TypeError, "found uint8"),
        (np.array([1], ">i8"), TypeError, "found >i8"),
        (np.array([True]), TypeError, "found bool"),
        (np.array([[1]]), ValueError, r"ids: expected 1 dimensions, found shape \(1, 1\)"),
        (np.arange(4)[::2], ValueError, "ids: expected a C-contiguous"),
        (np.frombuffer(bytes(17), np.int8)[1:].view(np.int64), ValueError, "ids: expected a C-contiguous, aligned"),
    ],
)
def test_ids_without_token_and_other_types_are_refused(twin: SimpleNamespace, ids, error, message: str) -> None:
    _, decoder = both(twin, encoded(document({**byte_vocab(), "Hi": 299})))
    with pytest.raises(error, match=message):
        decoder.decode(ids)
    with pytest.raises(error, match=message.replace("ids", r"batch\[1\]", 1) if message.startswith("ids") else message):
        decoder.decode_batch([[65], ids])


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (1, TypeError, "batch: expected a sequence of sequences of ids, found int"),
        ("ab", TypeError, "batch: .* found str"),
        (np.array([1]), ValueError, "batch: expected 2 dimensions"),
        (np.array([[1.0]]), TypeError, "batch: expected dtype int32 or int64, found float64"),
        (np.array([[65, 66], [67, 999]]), ValueError, r"batch\[1\]\[1\]: .* found 999"),
        ([[65], 66], TypeError, r"batch\[1\]: expected a sequence"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(twin: SimpleNamespace, batch, error, message: str) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab())))
    with pytest.raises(error, match=message):
        decoder.decode_batch(batch)


def test_token_bytes(twin: SimpleNamespace) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab(" é"), [added(257, "<x y>", special=True)])))
    assert [decoder.token_bytes(index) for index in (0, 0xFF, 256, 257)] == [b"\0", b"\xff", " é".encode(), b"<x y>"]
    assert decoder.token_bytes(np.int32(65)) == b"A"
    assert decoder.size == 258
    for bad in (258, -1, 2**70):
        with pytest.raises(ValueError, match=f"token_id: .* found {bad}"):
            decoder.token_bytes(bad)
    with pytest.raises(TypeError, match="token_id: expected an integer, found float"):
        decoder.token_bytes(1.0)


def test_token_bytes_of_word_pieces_stand_after_another_token(twin: SimpleNamespace) -> None:
    _, decoder = both(twin, encoded(wordpiece_document(["[UNK]", "word", "##ing", "."])))
    assert [decoder.token_bytes(index) for index in range(1, 4)] == [b" word", b"ing", b"."]


# --- as they come -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("aé".encode(), ["a", "", "é", ""]),
        ("👍".encode(), ["", "", "", "👍", ""]),
        (b"\xf0\x9f\x91A", ["", "", "", "\ufffdA", ""]),
        (b"\xf0\x9f\x91", ["", "", "", "\ufffd"]),
        (b"\xe0\x80", ["", "\ufffd\ufffd", ""]),
        (b"\xed\xa0", ["", "\ufffd\ufffd", ""]),
        (b"\xf4\x90", ["", "\ufffd\ufffd", ""]),
        (b"\xf0\x80", ["", "\ufffd\ufffd", ""]),
        (b"\xe1\xe1\xc3", ["", "\ufffd", "\ufffd", "\ufffd"]),
        (b"\x80\xff\xc1", ["\ufffd", "\ufffd", "\ufffd", ""]),
    ],
)
def test_a_token_that_ends_inside_a_character_waits(twin: SimpleNamespace, data: bytes, expected: list[str]) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab())))
    stream = twin.DecodeStream(decoder)
    assert [*map(stream.push, data), stream.finish()] == expected


def certain_text(data: bytes) -> str:
    """Return what any further bytes leave as it is: the longest common start over one continuation of each kind."""
    endings = [
        b"",
        *(bytes(rest) for length in (1, 2, 3) for rest in itertools.product([0x80, 0x90, 0xA0], repeat=length)),
    ]
    texts = [(data + ending).decode("utf-8", "replace") for ending in endings]
    same = itertools.takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False))
    return "".join(chars[0] for chars in same)


def test_every_byte_is_given_out_as_soon_as_it_is_certain(twin: SimpleNamespace) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab())))
    stream = twin.DecodeStream(decoder)
    for data in map(bytes, itertools.product(BYTES[::-1], repeat=3)):
        assert "".join(map(stream.push, data)) == certain_text(data), data
        assert stream.finish() == data.decode("utf-8", "replace")[len(certain_text(data)) :], data


@pytest.mark.parametrize("skip", [True, False])
def test_a_stream_skips_special_tokens_inside_a_character(twin: SimpleNamespace, skip: bool) -> None:
    library, decoder = both(twin, encoded(document(byte_vocab(), [added(256, "<x>", special=True)])))
    ids = [0xC3, 256, 0xA9]
    assert streamed(twin, decoder, ids, skip=skip) == library.decode(ids, skip_special_tokens=skip)


def test_a_stream_can_be_used_again(twin: SimpleNamespace) -> None:
    _, decoder = both(twin, encoded(wordpiece_document(["[UNK]", "a", "b"])))
    stream = twin.DecodeStream(decoder)
    assert [stream.push(1), stream.push(2), stream.finish(), stream.push(1)] == ["a", " b", "", "a"]
    stream.reset()
    assert stream.push(2) == "b"
    _, decoder = both(twin, encoded(document(byte_vocab())))
    stream = twin.DecodeStream(decoder)
    stream.push(0xC3)
    stream.reset()
    assert [stream.push(0xA9), stream.finish()] == ["\ufffd", ""]


def test_an_id_without_token_leaves_a_stream_as_it_was(twin: SimpleNamespace) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab())))
    stream = twin.DecodeStream(decoder)
    stream.push(0xC3)
    with pytest.raises(ValueError, match=r"token_id: .* found 256"):
        stream.push(256)
    with pytest.raises(TypeError, match="token_id: expected an integer, found str"):
        stream.push("A")
    assert stream.push(0xA9) == "é"


@pytest.mark.parametrize("decoder", [None, "x"])
def test_a_stream_needs_a_decoder(twin: SimpleNamespace, decoder) -> None:
    with pytest.raises(TypeError, match=f"decoder: expected a Decoder of this module, found {type(decoder).__name__}"):
        twin.DecodeStream(decoder)


def test_streams_of_one_decoder_do_not_meet(twin: SimpleNamespace) -> None:
    _, decoder = both(twin, encoded(document(byte_vocab())))
    first, second = twin.DecodeStream(decoder), twin.DecodeStream(decoder)
    assert [first.push(0xC3), second.push(0xC3), first.push(0xA9), second.push(0xA8)] == ["", "", "é", "è"]


def test_a_long_token_joins_what_waits(twin: SimpleNamespace) -> None:
    token = b"\xa9" + b"x" * 5000 + b"\xf0\x9f\x91"
    vocab = {**byte_vocab(), "".join(CHAR_OF_BYTE[byte] for byte in token): 256}
    _, decoder = both(twin, encoded(document(vocab)))
    stream = twin.DecodeStream(decoder)
    assert [stream.push(index) for index in (0xC3, 256, 0x8D)] == ["", "é" + "x" * 5000, "👍"]
