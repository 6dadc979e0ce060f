"""Post-processors: what the templates say is what the library makes of a text and of a pair."""

from __future__ import annotations

import json
from typing import Any

import pytest
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.templates import SEQUENCE_A, SEQUENCE_B, TemplatePiece, Trim, read_templates, read_trim
from tokenizers import Tokenizer

KNOWN = {"a": 0, "b": 1, "<s>": 2, "</s>": 3}
A, B = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
END = {"SpecialToken": {"id": "</s>", "type_id": 7}}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [A, END],
    "pair": [END, B, A],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [3, 2], "tokens": ["</s>", "<s>"]}},
}
BERT = {"type": "BertProcessing", "sep": ["</s>", 3], "cls": ["<s>", 2]}
ROBERTA = {
    "type": "RobertaProcessing",
    "sep": ["</s>", 3],
    "cls": ["<s>", 2],
    "trim_offsets": True,
    "add_prefix_space": False,
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def sequence(*processors: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "processors": list(processors)}


def library(processor: dict[str, Any] | None) -> Tokenizer:
    return Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {"type": "Whitespace"},
                "post_processor": processor,
                "decoder": None,
                "model": {"type": "WordLevel", "vocab": KNOWN, "unk_token": "<s>"},
            }
        )
    )


def filled(template: tuple[TemplatePiece, ...], texts: dict[int, list[int]]) -> tuple[list[int], list[int]]:
    """Return ids and type ids of the template's row."""
    places = [(token_id, piece.type_id) for piece in template for token_id in texts.get(piece.source, [piece.source])]
    return [token_id for token_id, _ in places], [type_id for _, type_id in places]


KNOWN_PROCESSORS = [
    None,
    TEMPLATE,
    BERT,
    ROBERTA,
    BYTE_LEVEL,
    sequence(),
    sequence(TEMPLATE),
    sequence(ROBERTA),
    sequence(BYTE_LEVEL, TEMPLATE),
]


@pytest.mark.parametrize("processor", KNOWN_PROCESSORS)
def test_templates_say_what_the_library_does(processor: dict[str, Any] | None) -> None:
    single, pair = read_templates({"post_processor": processor}, KNOWN)
    tokenizer = library(processor)
    alone, both = tokenizer.encode("a b a"), tokenizer.encode("a b a", "b b")
    assert filled(single, {SEQUENCE_A: [0, 1, 0]}) == (alone.ids, alone.type_ids)
    assert filled(pair, {SEQUENCE_A: [0, 1, 0], SEQUENCE_B: [1, 1]}) == (both.ids, both.type_ids)


def test_a_missing_post_processor_is_null() -> None:
    assert read_templates({}, {}) == read_templates({"post_processor": None}, {})


@pytest.mark.parametrize(
    ("processor", "trim"),
    [
        (None, Trim(spaces=False, keeps_prefix=False)),
        (TEMPLATE, Trim(spaces=False, keeps_prefix=False)),
        (BYTE_LEVEL, Trim(spaces=True, keeps_prefix=True)),
        (ROBERTA, Trim(spaces=True, keeps_prefix=False)),
        ({**BYTE_LEVEL, "trim_offsets": False}, Trim(spaces=False, keeps_prefix=True)),
        (sequence(BYTE_LEVEL, TEMPLATE), Trim(spaces=True, keeps_prefix=True)),
    ],
)
def test_what_becomes_of_spaces_in_offsets(processor: dict[str, Any] | None, trim: Trim) -> None:
    assert read_trim({"post_processor": processor}) == trim


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        ({"type": "Other"}, "post_processor type 'Other' at post_processor"),
        (sequence(TEMPLATE, BYTE_LEVEL), "at post_processor.processors"),
        (sequence(BYTE_LEVEL, ROBERTA), "at post_processor.processors"),
        (sequence(BYTE_LEVEL, {"type": "Other"}), r"'Other' at post_processor.processors\[1\]"),
        ({**ROBERTA, "later": 1}, "field 'later' at post_processor"),
        ({**BERT, "later": 1}, "field 'later' at post_processor"),
        ({**TEMPLATE, "later": 1}, "field 'later' at post_processor"),
        ({**BYTE_LEVEL, "later": 1}, "field 'later' at post_processor"),
        ({**sequence(), "later": 1}, "field 'later' at post_processor"),
        ({**TEMPLATE, "single": [A, B]}, r"sequences \['B', 'A'\] at post_processor.single"),
        ({**TEMPLATE, "pair": [A]}, r"sequences \['A'\] at post_processor.pair"),
    ],
)
def test_what_it_does_not_know_is_refused_with_its_place(processor: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownTokenizerError, match=reason):
        read_templates({"post_processor": processor}, KNOWN)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ([], "expected an object at post_processor"),
        ({"type": "Sequence", "processors": {}}, "expected a list of objects at post_processor.processors"),
        ({"type": "Sequence", "processors": [3]}, r"expected an object at post_processor.processors\[0\]"),
        ({**ROBERTA, "cls": "<s>"}, r"expected \[token, id\] at post_processor.cls"),
        ({**ROBERTA, "sep": ["</s>", 2]}, "special token '</s>' the id 2 .* 3 in the vocabulary"),
        ({**ROBERTA, "sep": ["<x>", 2]}, "special token '<x>' .* not in the vocabulary"),
    ],
)
def test_broken_fields_are_named(processor: Any, message: str) -> None:
    with pytest.raises(TokenizerDataError, match=message):
        read_templates({"post_processor": processor}, KNOWN)


@pytest.mark.parametrize("processor", [{**ROBERTA, "trim_offsets": None}, {**BYTE_LEVEL, "add_prefix_space": 1}])
def test_flags_of_trimming_must_be_flags(processor: dict[str, Any]) -> None:
    with pytest.raises(TokenizerDataError, match="expected true or false at post_processor"):
        read_trim({"post_processor": processor})
