"""The post-processor of a `tokenizer.json` as templates: where special tokens stand around a text, or around a pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from edgeonnx_ext import _document as document
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx_ext._document import Json, Object

SEQUENCE_A: Final = -1
SEQUENCE_B: Final = -2


@dataclass(frozen=True, kw_only=True)
class TemplatePiece:
    """One place of a post-processing template.

    Attributes:
        source: SEQUENCE_A, SEQUENCE_B, or the id of a special token (0 or more).
        type_id: Token type id of every token in this place.
    """

    source: int
    type_id: int


# Of a text, and of a pair.
Templates: TypeAlias = tuple[tuple[TemplatePiece, ...], tuple[TemplatePiece, ...]]

# A text and a pair without special tokens: what the library makes of them where nothing else says it.
_BARE: Final = (
    (TemplatePiece(source=SEQUENCE_A, type_id=0),),
    (TemplatePiece(source=SEQUENCE_A, type_id=0), TemplatePiece(source=SEQUENCE_B, type_id=1)),
)
_PROCESSORS: Final = frozenset({"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"})


def read_templates(root: Object, known: Mapping[str, int]) -> Templates:
    """Return the templates of a text and of a pair.

    Null, TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (which has no template), a sequence of one of
    these, and a sequence of ByteLevel and TemplateProcessing are known.

    Args:
        root: The document.
        known: The ids of all tokens, added ones included; special tokens must have theirs.
    """
    templates: Templates = _BARE
    for processor, path in _read_processors(root):
        if processor["type"] == "TemplateProcessing":
            templates = _read_template_processing(processor, path, known)
        elif processor["type"] == "BertProcessing":
            templates = _read_bert_processing(processor, path, known)
        elif processor["type"] == "RobertaProcessing":
            templates = _read_roberta_processing(processor, path, known)
        else:
            document.refuse_unknown_keys(processor, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, path)
    return templates


@dataclass(frozen=True, kw_only=True)
class Trim:
    """What the post-processor does to offsets.

    Attributes:
        spaces: Spaces at both ends of a token do not belong to its offsets.
        keeps_prefix: Except for the one space before a text's first token, which a prefix space may have been.
    """

    spaces: bool
    keeps_prefix: bool


def read_trim(root: Object) -> Trim:
    """Return what the post-processor does to the offsets of tokens: RobertaProcessing and ByteLevel may trim them."""
    trim = Trim(spaces=False, keeps_prefix=False)
    for processor, path in _read_processors(root):
        if processor["type"] in {"RobertaProcessing", "ByteLevel"}:
            spaces = document.get_flag(processor, "trim_offsets", path)
            trim = Trim(spaces=spaces, keeps_prefix=document.get_flag(processor, "add_prefix_space", path))
    return trim


def _read_processors(root: Object) -> list[tuple[Object, str]]:
    """Return the post-processors and their paths: none, one, or ByteLevel and TemplateProcessing."""
    if root.get("post_processor") is None:
        return []
    section = document.get_object(root, "post_processor", "")
    if section.get("type") != "Sequence":
        document.expect_type(section, "post_processor", "post_processor", _PROCESSORS)
        return [(section, "post_processor")]
    document.refuse_unknown_keys(section, {"type", "processors"}, "post_processor")
    items = section.get("processors")
    if not isinstance(items, list):
        raise TokenizerDataError(
            f"tokenizer.json: expected a list of objects at post_processor.processors, found {type(items).__name__}"
        )
    found: list[tuple[Object, str]] = []
    for index, item in enumerate(items):
        path = f"post_processor.processors[{index}]"
        if not isinstance(item, dict):
            raise TokenizerDataError(f"tokenizer.json: expected an object at {path}, found {type(item).__name__}")
        document.expect_type(item, "post_processor", path, _PROCESSORS)
        found.append((item, path))
    kinds = [item["type"] for item, _ in found]
    if len(kinds) > 1 and kinds != ["ByteLevel", "TemplateProcessing"]:
        raise UnknownTokenizerError(f"post_processors {kinds} at post_processor.processors")
    return found


def _read_template_processing(processor: Object, path: str, known: Mapping[str, int]) -> Templates:
    document.refuse_unknown_keys(processor, {"type", "single", "pair", "special_tokens"}, path)
    specials = _read_special_tokens(document.get_object(processor, "special_tokens", path), path, known)
    single = _read_template(processor, "single", path, specials)
    pair = _read_template(processor, "pair", path, specials)
    _expect_sequences(single, [SEQUENCE_A], f"{path}.single")
    _expect_sequences(pair, [SEQUENCE_B, SEQUENCE_A], f"{path}.pair")
    return single, pair


def _read_bert_processing(processor: Object, path: str, known: Mapping[str, int]) -> Templates:
    document.refuse_unknown_keys(processor, {"type", "sep", "cls"}, path)
    cls, sep = (_read_special_token(processor, key, path, known) for key in ("cls", "sep"))
    first = TemplatePiece(source=cls, type_id=0)
    text = (first, TemplatePiece(source=SEQUENCE_A, type_id=0), TemplatePiece(source=sep, type_id=0))
    second = (TemplatePiece(source=SEQUENCE_B, type_id=1), TemplatePiece(source=sep, type_id=1))
    return text, text + second


def _read_roberta_processing(processor: Object, path: str, known: Mapping[str, int]) -> Templates:
    """Return the templates of RoBERTa: two separators between the texts of a pair, and type id 0 everywhere."""
    document.refuse_unknown_keys(processor, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"}, path)
    cls, sep = (_read_special_token(processor, key, path, known) for key in ("cls", "sep"))
    single = (cls, SEQUENCE_A, sep)
    pair = (*single, sep, SEQUENCE_B, sep)
    return tuple(TemplatePiece(source=source, type_id=0) for source in single), tuple(
        TemplatePiece(source=source, type_id=0) for source in pair
    )


def _read_special_token(processor: Object, key: str, path: str, known: Mapping[str, int]) -> int:
    """Return the id in a [token, id] of BertProcessing and RobertaProcessing."""
    value = processor.get(key)
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise TokenizerDataError(f"tokenizer.json: expected [token, id] at {path}.{key}, found {value!r}")
    token_id = document.index_of(value[1], f"{path}.{key}[1]")
    _expect_known(value[0], token_id, known, f"{path}.{key}")
    return token_id


def _read_special_tokens(entries: Object, path: str, known: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the ids that each special token of a template stands for."""
    specials = {}
    for name in entries:
        place = f"{path}.special_tokens.{name}"
        entry = document.get_object(entries, name, f"{path}.special_tokens")
        ids, tokens = entry.get("ids"), entry.get("tokens")
        if not isinstance(ids, list) or not isinstance(tokens, list) or len(ids) != len(tokens):
            raise TokenizerDataError(
                f"tokenizer.json: expected ids and tokens of one length at {place}, found {entry!r}"
            )
        specials[name] = [document.index_of(token_id, f"{place}.ids") for token_id in ids]
        for token, token_id in zip(tokens, specials[name], strict=True):
            _expect_known(token, token_id, known, place)
    return specials


def _expect_known(token: Json, token_id: int, known: Mapping[str, int], path: str) -> None:
    found = known.get(token) if isinstance(token, str) else None
    if found != token_id:
        where = "not in the vocabulary" if found is None else f"{found} in the vocabulary"
        raise TokenizerDataError(
            f"tokenizer.json: expected the vocabulary to give the special token {token!r} the id {token_id} that "
            f"stands at {path}; it is {where}"
        )


def _read_template(
    processor: Object, key: str, path: str, specials: Mapping[str, list[int]]
) -> tuple[TemplatePiece, ...]:
    entries = processor.get(key)
    if not isinstance(entries, list):
        raise TokenizerDataError(f"tokenizer.json: expected a list at {path}.{key}, found {type(entries).__name__}")
    pieces: list[TemplatePiece] = []
    for index, entry in enumerate(entries):
        pieces.extend(_read_piece(entry, f"{path}.{key}[{index}]", specials))
    return tuple(pieces)


def _read_piece(entry: Json, path: str, specials: Mapping[str, list[int]]) -> list[TemplatePiece]:
    if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in {"Sequence", "SpecialToken"}:
        raise UnknownTokenizerError(f"template piece {entry!r} at {path}")
    kind = next(iter(entry))
    piece = document.get_object(entry, kind, path)
    name, type_id = document.get_text(piece, "id", path), document.get_index(piece, "type_id", path)
    if kind == "SpecialToken":
        if name not in specials:
            raise TokenizerDataError(f"tokenizer.json: expected special token {name!r} of {path} in special_tokens")
        return [TemplatePiece(source=token_id, type_id=type_id) for token_id in specials[name]]
    if name not in {"A", "B"}:
        raise UnknownTokenizerError(f"template sequence {name!r} at {path}")
    return [TemplatePiece(source=SEQUENCE_A if name == "A" else SEQUENCE_B, type_id=type_id)]


def _expect_sequences(template: tuple[TemplatePiece, ...], expected: list[int], path: str) -> None:
    found = sorted(piece.source for piece in template if piece.source < 0)
    if found != expected:
        names = {SEQUENCE_A: "A", SEQUENCE_B: "B"}
        raise UnknownTokenizerError(f"template with the sequences {[names[source] for source in found]} at {path}")
