from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from edgeonnx_ext import AddedToken, TemplatePiece, TokenizerDataError, UnknownTokenizerError, WordPieceModel
from edgeonnx_ext.templates import SEQUENCE_A, SEQUENCE_B

Edit = Callable[[dict[str, Any]], object]


def small() -> dict[str, Any]:
    """A complete tokenizer.json with a tiny vocabulary."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [{"id": index, "content": tokens[index], "special": True, **flags} for index in range(4)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special[0], first, special[1]],
            "pair": [special[0], first, special[1], *second],
            "special_tokens": {
                name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: index for index, token in enumerate(tokens)},
        },
    }


def edited(edit: Edit) -> bytes:
    root = small()
    edit(root)
    return json.dumps(root).encode()


def added(**changes: object) -> Edit:
    return lambda root: root["added_tokens"][3].update(changes)


def put(path: str, value: object) -> Edit:
    *parents, last = path.split(".")

    def edit(root: dict[str, Any]) -> None:
        for parent in parents:
            root = root[parent]
        root[last] = value

    return edit


ROBERTA = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True}


def trimming(vocab: dict[str, int], *, add_prefix_space: bool = False, **changes: object) -> Edit:
    """MPNet's post-processor, which trims offsets; `vocab` joins the vocabulary, `changes` an added token."""

    def edit(root: dict[str, Any]) -> None:
        root["post_processor"] = {**ROBERTA, "add_prefix_space": add_prefix_space}
        root["model"]["vocab"] |= vocab
        added(**changes)(root)

    return edit


def test_minilm_is_read_whole(minilm: WordPieceModel) -> None:
    assert len(minilm.vocab) == 30522
    assert (minilm.unk_id, minilm.prefix, minilm.max_word_chars) == (100, "##", 100)
    assert (minilm.clean_text, minilm.handle_chinese_chars, minilm.strip_accents, minilm.lowercase) == (True,) * 4
    assert AddedToken(content="[MASK]", token_id=103, special=True) in minilm.added_tokens
    sources = [(piece.source, piece.type_id) for piece in minilm.pair]
    assert sources == [(101, 0), (SEQUENCE_A, 0), (102, 0), (SEQUENCE_B, 1), (102, 1)]
    assert (minilm.special_count(pair=False), minilm.special_count(pair=True)) == (2, 3)


def test_the_description_is_frozen() -> None:
    model = WordPieceModel.from_tokenizer_json(edited(lambda root: None))
    with pytest.raises(AttributeError):
        model.unk_id = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        model.vocab["x"] = 3  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "lowercase", "expected"), [(None, True, True), (None, False, False), (True, False, True)]
)
def test_strip_accents_follows_lowercase_unless_given(value: bool | None, lowercase: bool, expected: bool) -> None:
    data = edited(lambda root: root["normalizer"].update(strip_accents=value, lowercase=lowercase))
    assert WordPieceModel.from_tokenizer_json(data).strip_accents is expected


def test_sides_are_those_of_the_document() -> None:
    model = WordPieceModel.from_tokenizer_json(edited(put("truncation.direction", "Left")))
    assert (model.truncation_side, model.padding_side) == ("left", "right")
    model = WordPieceModel.from_tokenizer_json(edited(put("padding", {"direction": "Left"})))
    assert (model.truncation_side, model.padding_side) == ("right", "left")
    assert WordPieceModel.from_tokenizer_json(edited(put("truncation", None))).truncation_side == "right"


def test_flags_of_added_tokens_are_read() -> None:
    model = WordPieceModel.from_tokenizer_json(edited(added(lstrip=True, rstrip=True, single_word=True, special=False)))
    expected = AddedToken(content="[SEP]", token_id=3, single_word=True, lstrip=True, rstrip=True)
    assert model.added_tokens[3] == expected
    assert model.added_tokens[2] == AddedToken(content="[CLS]", token_id=2, special=True)


def test_of_two_added_tokens_of_one_content_the_last_counts() -> None:
    def twice(root: dict[str, Any]) -> None:
        root["added_tokens"].append({**root["added_tokens"][3], "lstrip": True})

    tokens = WordPieceModel.from_tokenizer_json(edited(twice)).added_tokens
    assert [token.lstrip for token in tokens if token.content == "[SEP]"] == [True]


def test_offsets_are_trimmed_where_the_post_processor_says_so() -> None:
    assert not WordPieceModel.from_tokenizer_json(edited(lambda root: None)).trims_spans
    for edit in (trimming({"aĠb": 9}, lstrip=True), trimming({}, add_prefix_space=True, rstrip=True)):
        assert WordPieceModel.from_tokenizer_json(edited(edit)).trims_spans


def test_an_empty_prefix_is_a_prefix() -> None:
    assert WordPieceModel.from_tokenizer_json(edited(put("model.continuing_subword_prefix", ""))).prefix == ""


def test_a_document_in_memory_is_read_as_its_file() -> None:
    assert WordPieceModel.from_document(small()) == WordPieceModel.from_tokenizer_json(edited(lambda root: None))


def test_bert_processing_gives_the_templates_of_bert() -> None:
    processor = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    model = WordPieceModel.from_tokenizer_json(edited(put("post_processor", processor)))
    assert model == WordPieceModel.from_tokenizer_json(edited(lambda root: None))
    assert model.single[0] == TemplatePiece(source=2, type_id=0)


def test_a_sequence_of_one_is_that_one() -> None:
    def wrap(root: dict[str, Any]) -> None:
        root["normalizer"] = {"type": "Sequence", "normalizers": [root["normalizer"]]}

    assert WordPieceModel.from_tokenizer_json(edited(wrap)) == WordPieceModel.from_tokenizer_json(
        edited(lambda root: None)
    )


def test_added_tokens_behind_the_vocabulary_count_on() -> None:
    extra = {**small()["added_tokens"][0], "content": "<new>", "special": False}
    data = edited(lambda root: root["added_tokens"].append({**extra, "id": 6}))
    assert WordPieceModel.from_tokenizer_json(data).added_tokens[-1] == AddedToken(content="<new>", token_id=6)


BERT = small()["normalizer"]
UNKNOWN: list[tuple[Edit, str]] = [
    (put("version", "2.0"), "version '2.0'"),
    (put("later", 1), "field 'later' at the top level"),
    (put("normalizer", None), "no normalizer"),
    (put("normalizer.type", "NFKC"), "normalizer type 'NFKC' at normalizer"),
    (put("normalizer.more", True), "field 'more' at normalizer"),
    (
        put("normalizer", {"type": "Sequence", "normalizers": [BERT, {"type": "Replace"}]}),
        r"normalizer type 'Replace' at normalizer.normalizers\[1\]",
    ),
    (put("normalizer", {"type": "Sequence", "normalizers": [BERT, BERT]}), "2 sections at normalizer.normalizers"),
    (put("pre_tokenizer.type", "Whitespace"), "pre_tokenizer type 'Whitespace' at pre_tokenizer"),
    (put("pre_tokenizer", None), "no pre_tokenizer"),
    (trimming({"Ġa": 9}), "trim_offsets at post_processor, with the token 'Ġa'"),
    (
        trimming({}, add_prefix_space=True, lstrip=True),
        r"trim_offsets and add_prefix_space .* lstrip of the added token '\[SEP\]'",
    ),
    (trimming({"a\u3000": 9}), "trim_offsets at post_processor, with the token 'a"),
    (put("post_processor.type", "Unheard"), "post_processor type 'Unheard' at post_processor"),
    (put("post_processor.single", []), r"template with the sequences \[\] at post_processor.single"),
    (
        put("post_processor.pair", [{"Sequence": {"id": "A", "type_id": 0}}] * 2),
        r"template with the sequences \['A', 'A'\] at post_processor.pair",
    ),
    (put("post_processor.single", [{"Other": {}}]), r"template piece .* at post_processor.single\[0\]"),
    (put("model.type", "BPE"), "model type 'BPE' at model"),
    (put("model.dropout", 0.1), "field 'dropout' at model"),
    (added(normalized=True), r"added token '\[SEP\]' with normalized at added_tokens\[3\].normalized"),
    (added(content=""), "added token with empty content"),
    (added(id=5), "with id 5 .* where tokenizers assigns 3"),
    (added(content="<new>", id=9), "with id 9 .* where tokenizers assigns 6"),
]


@pytest.mark.parametrize(("edit", "reason"), UNKNOWN)
def test_what_it_does_not_know_is_refused_with_its_place(edit: Edit, reason: str) -> None:
    with pytest.raises(UnknownTokenizerError, match=reason) as caught:
        WordPieceModel.from_tokenizer_json(edited(edit))
    assert caught.value.reason == str(caught.value)


BROKEN: list[tuple[Edit, str]] = [
    (put("model", None), "expected an object at model"),
    (put("model.vocab", []), "expected an object at model.vocab"),
    (put("model.vocab.a", -1), r"expected an integer in \[0, 2\*\*31\) at model.vocab.a, found -1"),
    (put("model.vocab.a", 2**31), "found 2147483648"),
    (put("model.vocab.a", 1.0), "found 1.0"),
    (put("model.vocab.a", True), "found True"),
    (put("model.vocab.a", 5), "found id 5 for both 'a' and '##b'"),
    (put("model.vocab.\ud800", 7), "found a lone surrogate"),
    (put("model.vocab", {"a": 0}), r"expected the unknown token '\[UNK\]'"),
    (lambda root: root["model"]["vocab"].pop("[CLS]"), "where tokenizers assigns|special token"),
    (lambda root: (root["model"]["vocab"].pop("[CLS]"), root.update(added_tokens=[])), r"special token '\[CLS\]'"),
    (put("post_processor.special_tokens.[SEP].ids", [4]), r"special token '\[SEP\]' the id 4 .* 3 in the vocabulary"),
    (put("post_processor.special_tokens.[SEP].ids", 3), "expected ids and tokens of one length"),
    (lambda root: root["post_processor"]["special_tokens"].pop("[SEP]"), "special token .* in special_tokens"),
    (
        put("post_processor", {"type": "BertProcessing", "sep": ["[SEP]", 3]}),
        r"expected \[token, id\] at post_processor.cls",
    ),
    (put("model.unk_token", 3), "expected a text at model.unk_token"),
    (put("model.max_input_chars_per_word", "100"), "at model.max_input_chars_per_word"),
    (put("normalizer.lowercase", None), "expected true or false at normalizer.lowercase"),
    (put("normalizer", []), "expected an object at normalizer"),
    (put("normalizer", {"type": "Sequence", "normalizers": 3}), "expected a list of objects"),
    (put("added_tokens", {}), "expected a list at added_tokens"),
    (put("added_tokens", [3]), r"expected an object at added_tokens\[0\]"),
    (put("truncation", 3), "expected an object or null at truncation"),
    (put("truncation.direction", "Up"), "expected Right or Left at truncation.direction, found 'Up'"),
    (put("padding", {"direction": None}), "expected Right or Left at padding.direction, found None"),
    (put("model.continuing_subword_prefix", None), "expected a text at model.continuing_subword_prefix"),
    (put("post_processor.single", {}), "expected a list at post_processor.single"),
]


@pytest.mark.parametrize(("edit", "message"), BROKEN)
def test_broken_fields_are_named(edit: Edit, message: str) -> None:
    with pytest.raises((TokenizerDataError, UnknownTokenizerError), match=message):
        WordPieceModel.from_tokenizer_json(edited(edit))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found 0 bytes"),
        (b"{", "expected JSON"),
        (b"[]", "expected a JSON object, found list"),
        (b"\xff{}", "expected UTF-8, found byte 0xff at 0"),
        (b"\xef\xbb\xbf{}", "expected JSON"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_documents_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(TokenizerDataError, match=message):
        WordPieceModel.from_tokenizer_json(data)


def test_both_errors_are_value_errors() -> None:
    assert issubclass(UnknownTokenizerError, ValueError)
    assert issubclass(TokenizerDataError, ValueError)


def test_every_truncation_of_a_document_is_refused() -> None:
    data = edited(lambda root: None)
    for end in range(0, len(data), 7):
        with pytest.raises(TokenizerDataError):
            WordPieceModel.from_tokenizer_json(data[:end])
