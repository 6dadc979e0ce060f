"""Targets of the readers of `tokenizer.json`: documents that are nearly right."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from edgeonnx_ext.decoding import DecoderModel
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.wordpiece import WordPieceModel
from tokenizers import Tokenizer

from tests.fuzz import documents
from tests.fuzz.strings import random_text
from tests.fuzz.target import Attempt, Target, twins
from tests.fuzz.text_rows import assert_same, library_rows, written_rows

TYPES = [
    "BPE", "WordPiece", "WordLevel", "Unigram", "BertNormalizer", "NFC", "NFD", "Lowercase", "Sequence", "Replace",
    "BertPreTokenizer", "ByteLevel", "Split", "Digits", "Whitespace", "TemplateProcessing", "BertProcessing",
    "RobertaProcessing", "Isolated", "Removed", "Right", "Left", "LongestFirst", "OnlyFirst",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 100, 2**31 - 1, 2**31, 2**63, 2**70, 0.0, 0.5, 1e300, "", " ", "a", "##", "é",
    "\ud800", "[UNK]", "[CLS]", "<|endoftext|>", "a b", "a a b", "Ġ", [], {}, [None], ["a", 0], ["a", "b"], [[]],
    {"type": "Sequence"}, {"String": "a"}, {"Regex": "("}, {"Regex": r"\d"}, {"type": "NFC"},
    {"type": "Sequence", "normalizers": []},
    {"id": 0, "content": "a", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
     "special": True},
    {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
]  # fmt: skip
KEYS = ["type", "vocab", "merges", "added_tokens", "normalizer", "dropout", "unk_token", "byte_fallback", "x", ""]
# The library panics on some documents, and would tell at length.
os.environ["RUST_BACKTRACE"] = "0"
REFUSALS = (TokenizerDataError, UnknownTokenizerError)


def _place(rng: random.Random, root: Any) -> tuple[Any, Any]:
    """Some container of the document, and a key or index in it; every level counts the same, however wide it is."""
    place, key = root, rng.choice(list(root))
    while isinstance(place[key], dict | list) and place[key] and rng.random() < 0.75:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    return place, key


def _value(rng: random.Random, root: Any) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(TYPES)
    if kind == 1:
        place, key = _place(rng, root)
        return copy.deepcopy(place[key])  # something of the document in another place of it
    return copy.deepcopy(rng.choice(VALUES))


def _change_structure(rng: random.Random, root: dict[str, Any]) -> None:
    if not root:
        return
    place, key = _place(rng, root)
    kind = rng.randrange(6)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, list):
        place.insert(rng.randint(0, len(place)), _value(rng, root))
    elif kind == 1:
        place[rng.choice(KEYS)] = _value(rng, root)
    elif kind == 2 and isinstance(place[key], int) and not isinstance(place[key], bool):
        place[key] += rng.choice((-1, 1, 1000, -(10**6)))
    elif kind == 3 and isinstance(place[key], bool):
        place[key] = not place[key]
    elif kind == 4 and isinstance(place, list):
        other = rng.randrange(len(place))
        place[key], place[other] = place[other], place[key]
    else:
        place[key] = _value(rng, root)


def _change_bytes(rng: random.Random, data: bytes) -> bytes:
    place = rng.randint(0, len(data))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes(rng.choices(range(256), k=rng.randint(1, 4))) + data[place + 1 :]
    if kind == 2:
        return data.replace(b"{", b'{"type":"x",', rng.randint(1, 3))  # a key twice
    if kind == 3:
        return b"\xef\xbb\xbf" + data
    if kind == 4:
        return data.replace(b"false", rng.choice((b"NaN", b"Infinity", b"1e999", b"-0", b"0x1")), 1)
    if kind == 5:
        return data[:place] + rng.choice((b"[", b'{"a":')) * rng.choice((100, 5000, 100_000)) + data[place:]
    return rng.choice((b"", b" ", b"null", b"[]", b"{}", b'"a"', b"\x00", data + b"{}", data.decode().encode("utf-16")))


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A document with a few changes of its structure, or of its bytes."""
    if rng.random() < 0.1:
        return _change_bytes(rng, data)
    root = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change_structure(rng, root)
    # A lone surrogate is escaped, as JSON allows it; everything else stands as it is.
    return json.dumps(root, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _library(data: bytes) -> Tokenizer | None:
    try:
        return Tokenizer.from_str(data.decode())
    except BaseException as error:  # a panic of the library is a BaseException
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None


def _sources(found: Mapping[str, bytes]) -> list[bytes]:
    """Documents small enough to be read often; written without spaces."""
    small = [data for data in found.values() if len(data) < 100_000]
    return [json.dumps(json.loads(data), ensure_ascii=False).encode() for data in small]


def _reader_target(
    found: Callable[[], Mapping[str, bytes]], read: Callable[[bytes], Any], kernel: str, module: str
) -> Callable[[], Attempt]:
    def open_target() -> Attempt:
        sources = _sources(found())
        kinds = twins(f"_{module}", module)

        def attempt(rng: random.Random) -> None:
            data = mutated(rng, rng.choice(sources))
            try:
                model = read(data)
            except REFUSALS:
                return
            kernels = {kind: getattr(twin, kernel)(model) for kind, twin in kinds.items()}
            library = _library(data)
            if library is None:  # a field that our reader does not need, such as the decoder
                return
            contents = documents.added_contents(library)
            texts = [random_text(rng, contents) for _ in range(3)]
            pairs = [random_text(rng, contents) for _ in range(3)]
            for second in (None, pairs):
                expected = library_rows(library, texts, second)
                for kind, tokenizer in kernels.items():
                    assert_same(
                        written_rows(tokenizer, texts, second), expected, kind, (texts, second, _difference(data))
                    )

        return attempt

    return open_target


def _difference(data: bytes) -> str:
    """The document without its long vocabulary, for the message of a failure."""
    root = json.loads(data)
    if isinstance(root.get("model"), dict):
        root["model"] = {key: value for key, value in root["model"].items() if key not in ("vocab", "merges")}
    return json.dumps(root)


def _open_decoder_reader() -> Attempt:
    sources = _sources({**documents.wordpiece_documents(), **documents.bpe_documents()})
    kinds = twins("_decode", "decoding")

    def attempt(rng: random.Random) -> None:
        data = mutated(rng, rng.choice(sources))
        try:
            model = DecoderModel.from_tokenizer_json(data)
        except REFUSALS:
            return
        decoders = {kind: twin.Decoder(model) for kind, twin in kinds.items()}
        library = _library(data)
        ids = rng.choices(sorted(model.tokens), k=12)
        for skip in (True, False):
            texts = {kind: decoder.decode(ids, skip) for kind, decoder in decoders.items()}
            if library is not None:
                texts["library"] = library.decode(ids, skip_special_tokens=skip)
            assert len(set(texts.values())) == 1, (texts, ids, skip, _difference(data))

    return attempt


def _read_bpe(data: bytes) -> Any:
    from edgeonnx_ext.bpe import BpeModel

    return BpeModel.from_tokenizer_json(data)


INVARIANT = "a mutated document is read, and then tokenizes as the library does, or refused with an error of ours"
TARGETS = [
    Target(
        name="wordpiece-reader",
        invariant=INVARIANT,
        open=_reader_target(
            documents.wordpiece_documents, WordPieceModel.from_tokenizer_json, "WordPieceTokenizer", "wordpiece"
        ),
        short=100,
    ),
    Target(
        name="bpe-reader",
        invariant=INVARIANT,
        open=_reader_target(documents.bpe_documents, _read_bpe, "BpeTokenizer", "bpe"),
        short=100,
    ),
    Target(
        name="decoder-reader",
        invariant="a mutated document is read, and then decodes as the library does, or refused with an error of ours",
        open=_open_decoder_reader,
        short=100,
    ),
]
