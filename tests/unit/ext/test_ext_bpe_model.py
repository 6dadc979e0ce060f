from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from edgeonnx_ext.bpe import PATTERNS, BpeModel, byte_characters, spelled
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.templates import SEQUENCE_A, SEQUENCE_B, Trim
from tokenizers import pre_tokenizers

from tests.support.tokenizers import LLAMA3, QWEN2, smollm2_tokenizer_json

Edit = Callable[[dict[str, Any]], object]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NFC = {"type": "NFC"}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LAST = {**BYTE_LEVEL, "use_regex": False}


def small() -> dict[str, Any]:
    """A complete tokenizer.json whose vocabulary has every byte and three tokens more."""
    vocab = {char: index for index, char in enumerate(byte_characters())}
    vocab |= {"ab": 256, "abc": 257, "<|end|>": 258}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": {"strategy": "BatchLongest", "direction": "Left", "pad_id": 0},
        "added_tokens": [{"id": 258, "content": "<|end|>", "special": True, **FLAGS}],
        "normalizer": None,
        "pre_tokenizer": dict(BYTE_LEVEL),
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": ["a b", "ab c"],
        },
    }


def edited(edit: Edit) -> bytes:
    root = small()
    edit(root)
    return json.dumps(root).encode()


def read(edit: Edit = lambda root: None) -> BpeModel:
    return BpeModel.from_tokenizer_json(edited(edit))


def put(path: str, value: object) -> Edit:
    *parents, last = path.split(".")

    def edit(root: dict[str, Any]) -> None:
        for parent in parents:
            root = root[parent]
        root[last] = value

    return edit


def added(content: str, token_id: int, **flags: bool) -> dict[str, Any]:
    return {"id": token_id, "content": content, "special": False, **FLAGS, **flags}


def split(pattern: str, **changes: object) -> dict[str, Any]:
    section = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {**section, **changes}


def chain(*sections: dict[str, Any]) -> Edit:
    return put("pre_tokenizer", {"type": "Sequence", "pretokenizers": list(sections)})


def drop_byte(root: dict[str, Any]) -> None:
    del root["model"]["vocab"][byte_characters()[4]]


def test_smollm2_is_read_whole() -> None:
    model = BpeModel.from_tokenizer_json(smollm2_tokenizer_json())
    assert (len(model.vocab), len(model.merges), len(model.added_tokens)) == (49152, 48900, 17)
    assert (model.pattern, model.digits, model.add_prefix_space, model.ignore_merges) == ("gpt2", None, False, False)
    assert model.trim == Trim(spaces=False, keeps_prefix=False)
    assert [(piece.source, piece.type_id) for piece in model.pair] == [(SEQUENCE_A, 0), (SEQUENCE_B, 1)]
    assert (model.special_count(pair=False), model.special_count(pair=True)) == (0, 0)
    assert byte_characters()[4] not in model.vocab


def test_the_small_one_is_read_whole() -> None:
    model = read()
    assert model.merges == {(ord("a"), ord("b")): (0, 256), (256, ord("c")): (1, 257)}
    assert (model.truncation_side, model.padding_side) == ("right", "left")
    assert read(put("truncation", {"direction": "Left", "max_length": 3})).truncation_side == "left"
    assert model == BpeModel.from_document(small())


def test_the_description_is_frozen() -> None:
    model = read()
    with pytest.raises(AttributeError):
        model.pattern = "qwen2"  # type: ignore[misc]
    with pytest.raises(TypeError):
        model.vocab["x"] = 3  # type: ignore[index]
    with pytest.raises(TypeError):
        model.merges[0, 0] = (0, 0)  # type: ignore[index]


def test_byte_characters_are_the_alphabet_of_the_library() -> None:
    letters = byte_characters()
    assert sorted(letters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for char in map(chr, [*range(1, 128), 0xE9, 0x4E2D, 0x1F600]):
        expected = "".join(letters[byte] for byte in char.encode())
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(char)
        assert pieces[0][0] == expected


def test_only_tokens_in_the_alphabet_are_spelled() -> None:
    assert dict(spelled({"\u0120a": 1, "\u0143": 2, "中": 3, "a b": 4})) == {b" a": 1, b"\xad": 2}


@pytest.mark.parametrize(
    ("edit", "pattern", "digits"),
    [
        (lambda root: None, "gpt2", None),
        (
            put("pre_tokenizer", {key: BYTE_LEVEL[key] for key in ("type", "add_prefix_space", "trim_offsets")}),
            "gpt2",
            None,
        ),
        (put("pre_tokenizer", LAST), "whole", None),
        (chain(BYTE_LEVEL), "gpt2", None),
        (chain(split(GPT2), LAST), "gpt2", None),
        (chain(split(LLAMA3), LAST), "llama3", None),
        (chain(split(QWEN2), LAST), "qwen2", None),
        (chain(split(LLAMA3, behavior="Removed", invert=True), LAST), "llama3", None),
        (chain({"type": "Digits", "individual_digits": True}, BYTE_LEVEL), "gpt2", "single"),
        (chain({"type": "Digits", "individual_digits": False}, BYTE_LEVEL), "gpt2", "runs"),
    ],
)
def test_known_pre_tokenizers(edit: Edit, pattern: str, digits: str | None) -> None:
    model = read(edit)
    assert (model.pattern, model.digits) == (pattern, digits)
    assert pattern in PATTERNS


@pytest.mark.parametrize("normalizer", [NFC, {"type": "Sequence", "normalizers": [NFC]}])
def test_nfc_is_known_alone_and_in_a_sequence(normalizer: object) -> None:
    assert read(put("normalizer", normalizer)).nfc
    assert not read().nfc
    assert not read(put("normalizer", {"type": "Sequence", "normalizers": []})).nfc


def test_normalized_tokens_of_ascii_may_stand_beside_nfc() -> None:
    tokens = [added("<a>", 259, normalized=True), added("<é>", 260)]
    model = read(lambda root: (root.update(normalizer=NFC), root["added_tokens"].extend(tokens)))
    assert [(token.content, token.normalized) for token in model.added_tokens[1:]] == [("<a>", True), ("<é>", False)]


def test_pairs_are_the_same_merges_as_texts() -> None:
    assert read(put("model.merges", [["a", "b"], ["ab", "c"]])) == read()


def test_the_header_of_a_merges_file_is_no_merge() -> None:
    assert read(put("model.merges", ["#version: 0.2", "a b", "ab c"])) == read()


def test_of_a_merge_that_stands_twice_the_last_counts() -> None:
    merges = read(put("model.merges", ["a b", "ab c", "a b"])).merges
    assert sorted(merges.values()) == [(1, 257), (2, 256)]


def test_an_unknown_token_that_no_text_reaches_is_fine() -> None:
    assert read(put("model.unk_token", "<|end|>")) == read()


def test_missing_bytes_are_fine_without_an_unknown_token() -> None:
    assert len(read(drop_byte).vocab) == 258


UNKNOWN: list[tuple[Edit, str]] = [
    (put("version", "2.0"), "version '2.0'"),
    (put("later", 1), "field 'later' at the top level"),
    (put("normalizer", {"type": "NFKC"}), "normalizer type 'NFKC' at normalizer"),
    (put("normalizer", {"type": "NFC", "later": 1}), "field 'later' at normalizer"),
    (put("normalizer", {"type": "Sequence", "normalizers": [NFC, NFC]}), "2 sections at normalizer.normalizers"),
    (
        put("normalizer", {"type": "Sequence", "normalizers": [NFC, {"type": "Strip"}]}),
        r"type 'Strip' at normalizer.normalizers\[1\]",
    ),
    (
        lambda root: (root.update(normalizer=NFC), root["added_tokens"].append(added("<é>", 259, normalized=True))),
        "added token '<é>' with normalized at added_tokens, beside NFC",
    ),
    (put("model.type", "WordPiece"), "model type 'WordPiece' at model"),
    (put("model.later", 1), "field 'later' at model"),
    (put("model.dropout", 0.1), "dropout 0.1 at model.dropout"),
    (put("model.continuing_subword_prefix", "##"), "continuing_subword_prefix '##' at model"),
    (put("model.end_of_word_suffix", "</w>"), "end_of_word_suffix '</w>' at model"),
    (put("model.byte_fallback", True), "byte_fallback at model.byte_fallback"),
    (
        lambda root: (drop_byte(root), root["model"].update(unk_token="a")),
        "unk_token 'a' at model.unk_token, with a vocabulary without byte 0x04",
    ),
    (put("pre_tokenizer", None), "no pre_tokenizer"),
    (put("pre_tokenizer.type", "Whitespace"), "pre_tokenizer type 'Whitespace' at pre_tokenizer"),
    (put("pre_tokenizer.later", 1), "field 'later' at pre_tokenizer"),
    (chain(), "0 sections at pre_tokenizer.pretokenizers"),
    (chain(BYTE_LEVEL, BYTE_LEVEL, BYTE_LEVEL), "3 sections at pre_tokenizer.pretokenizers"),
    (chain(split(GPT2)), r"type 'Split' at pre_tokenizer.pretokenizers\[0\]"),
    (chain({"type": "Punctuation"}, LAST), r"type 'Punctuation' at pre_tokenizer.pretokenizers\[0\]"),
    (chain(split(GPT2 + "|x"), LAST), r"regular expression .* at pre_tokenizer.pretokenizers\[0\].pattern.Regex"),
    (chain(split(GPT2, behavior="Removed"), LAST), r"Split that is 'Removed'"),
    (chain(split(GPT2, behavior="Removed"), LAST), r"or inverted, at pre_tokenizer.pretokenizers\[0\]"),
    (chain(split(GPT2, invert=True), LAST), r"or inverted, at pre_tokenizer.pretokenizers\[0\]"),
    (chain({**split(GPT2), "pattern": {"String": " "}}, LAST), "field 'String' at"),
    (chain(split(GPT2), BYTE_LEVEL), "use_regex True behind Split at"),
    (chain({"type": "Digits", "individual_digits": True}, LAST), "use_regex False behind Digits at"),
    (chain(split(GPT2), {**LAST, "add_prefix_space": True}), "add_prefix_space behind another pre_tokenizer"),
    (put("post_processor", {"type": "Other"}), "post_processor type 'Other'"),
    (lambda root: root["added_tokens"][0].update(id=7), "with id 7"),
]


@pytest.mark.parametrize(("edit", "reason"), UNKNOWN)
def test_what_it_does_not_know_is_refused_with_its_place(edit: Edit, reason: str) -> None:
    with pytest.raises(UnknownTokenizerError, match=reason):
        read(edit)


BROKEN: list[tuple[Edit, str]] = [
    (put("model", None), "expected an object at model"),
    (put("model.vocab", []), "expected an object at model.vocab"),
    (put("model.vocab.ab", 257), "found id 257 for both"),
    (put("model.vocab.ab", -1), "at model.vocab.ab, found -1"),
    (put("model.merges", None), "expected a list at model.merges"),
    (put("model.merges", ["a b", "ab x"]), "merge 1 of model.merges .* lacks 'abx'"),
    (put("model.merges", ["a \u4e2d"]), "merge 0 of model.merges .* lacks '\u4e2d'"),
    (put("model.merges", ["a b", ["ab", "c"]]), r'expected "a b" as merge 1 of model.merges'),
    (put("model.merges", [["a", "b"], "ab c"]), r'expected \["a", "b"\] as merge 1 of model.merges'),
    (put("model.merges", ["a b c"]), r'expected "a b" as merge 0'),
    (put("model.merges", [["a"]]), r'expected \["a", "b"\] as merge 0'),
    (put("model.merges", [["a", 3]]), r'expected \["a", "b"\] as merge 0'),
    (put("model.merges", [3]), r'expected \["a", "b"\] as merge 0'),
    (put("model.unk_token", 3), "expected a text at model.unk_token"),
    (put("model.ignore_merges", 1), "expected true or false at model.ignore_merges"),
    (put("model.byte_fallback", None), "expected true or false at model.byte_fallback"),
    (put("normalizer", 3), "expected an object at normalizer"),
    (put("pre_tokenizer", 3), "expected an object at pre_tokenizer"),
    (put("pre_tokenizer.add_prefix_space", None), "at pre_tokenizer.add_prefix_space"),
    (put("pre_tokenizer", {"type": "Sequence", "pretokenizers": 3}), "expected a list at pre_tokenizer.pretokenizers"),
    (put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [3]}), r"at pre_tokenizer.pretokenizers\[0\]"),
    (put("padding", 3), "expected an object or null at padding"),
    (put("padding.direction", "Up"), "expected Right or Left at padding.direction"),
    (put("added_tokens", {}), "expected a list at added_tokens"),
]


@pytest.mark.parametrize(("edit", "message"), BROKEN)
def test_broken_fields_are_named(edit: Edit, message: str) -> None:
    with pytest.raises(TokenizerDataError, match=message):
        read(edit)


def test_every_truncation_of_a_document_is_refused() -> None:
    data = edited(lambda root: None)
    for end in range(0, len(data), 53):
        with pytest.raises(TokenizerDataError):
            BpeModel.from_tokenizer_json(data[:end])
