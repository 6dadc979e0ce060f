"""What a WordPiece `tokenizer.json` says, as one frozen description; everything that we do not know is refused.

`WordPieceModel.from_tokenizer_json` reads the document field by field. The rule: a feature is accepted only if the
kernels do it exactly as Hugging Face `tokenizers` does; anything else raises UnknownTokenizerError with its place in
the document, so that the caller can hand the tokenizer to the `tokenizers` library. A broken document raises
TokenizerDataError.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from edgeonnx_ext import _document as document
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx_ext._document import Json, Object

SEQUENCE_A: Final = -1
SEQUENCE_B: Final = -2

_TOP_LEVEL = frozenset(
    {
        "version",
        "truncation",
        "padding",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "model",
    }
)


@dataclass(frozen=True, kw_only=True)
class AddedToken:
    """A token that is looked for in the raw text, before any normalization.

    Attributes:
        content: The text that it matches, exactly.
        token_id: Its id.
    """

    content: str
    token_id: int


@dataclass(frozen=True, kw_only=True)
class TemplatePiece:
    """One place of a post-processing template.

    Attributes:
        source: SEQUENCE_A, SEQUENCE_B, or the id of a special token (0 or more).
        type_id: Token type id of every token in this place.
    """

    source: int
    type_id: int


@dataclass(frozen=True, kw_only=True)
class WordPieceModel:
    """A BERT tokenizer: normalizer, pre-tokenizer, vocabulary, added tokens and templates.

    Attributes:
        vocab: Token to id, read-only; ids are unique and in [0, 2**31).
        unk_id: Id of a word that cannot be split into tokens.
        prefix: What a token that continues a word starts with ("##").
        max_word_chars: A word of more code points (after normalization) becomes `unk_id`.
        clean_text: Remove control characters, make every whitespace a space.
        handle_chinese_chars: Put spaces around CJK ideographs.
        strip_accents: Decompose and remove nonspacing marks (null in the document follows `lowercase`: resolved here).
        lowercase: Lower-case each code point.
        added_tokens: Tokens matched in the raw text.
        single: Template of a text alone; holds SEQUENCE_A once.
        pair: Template of a pair; holds SEQUENCE_A and SEQUENCE_B once each.
    """

    vocab: Mapping[str, int]
    unk_id: int
    prefix: str
    max_word_chars: int
    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool
    lowercase: bool
    added_tokens: tuple[AddedToken, ...]
    single: tuple[TemplatePiece, ...]
    pair: tuple[TemplatePiece, ...]

    @classmethod
    def from_tokenizer_json(cls, data: bytes) -> WordPieceModel:
        """Read a `tokenizer.json`.

        The document's padding and truncation lengths are ignored (the caller decides them), and so is its decoder.

        Args:
            data: The file's bytes, UTF-8.

        Returns:
            The description.

        Raises:
            UnknownTokenizerError: A feature that the kernels do not do exactly as `tokenizers` does.
            TokenizerDataError: Not UTF-8, not JSON, fields missing or of the wrong type, duplicate ids, or a vocabulary
                without its unknown token or a template's special tokens.
        """
        root = document.parse(data)
        document.refuse_unknown_keys(root, _TOP_LEVEL, "the top level")
        _check_version(root)
        _check_directions(root)
        vocab, unk_id, prefix, max_word_chars = _read_model(document.get_object(root, "model", ""))
        added = _read_added_tokens(root, vocab)
        known = {**vocab, **{token.content: token.token_id for token in added}}
        single, pair = _read_templates(root, known)
        flags = _read_normalizer(root)
        _read_pre_tokenizer(root)
        return cls(
            vocab=MappingProxyType(vocab),
            unk_id=unk_id,
            prefix=prefix,
            max_word_chars=max_word_chars,
            clean_text=flags["clean_text"],
            handle_chinese_chars=flags["handle_chinese_chars"],
            strip_accents=flags["strip_accents"],
            lowercase=flags["lowercase"],
            added_tokens=added,
            single=single,
            pair=pair,
        )

    def special_count(self, *, pair: bool) -> int:
        """Return how many tokens the template adds to a text (or to a pair)."""
        return sum(piece.source >= 0 for piece in (self.pair if pair else self.single))


def _check_version(root: Object) -> None:
    version = root.get("version", "1.0")
    if version != "1.0":
        raise UnknownTokenizerError(f"tokenizer.json version {version!r} (known: '1.0')")


def _check_directions(root: Object) -> None:
    """Refuse left truncation and padding: their lengths are the caller's, but a side changes the ids of a row."""
    for key in ("truncation", "padding"):
        section = root.get(key)
        if section is not None and not isinstance(section, dict):
            raise TokenizerDataError(f"tokenizer.json: expected an object or null at {key}, found {section!r}")
        direction = section.get("direction", "Right") if section else "Right"
        if direction != "Right":
            raise UnknownTokenizerError(f"{key} direction {direction!r} at {key}.direction")


def _read_model(model: Object) -> tuple[dict[str, int], int, str, int]:
    document.expect_type(model, "model", "model", {"WordPiece"})
    keys = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
    document.refuse_unknown_keys(model, keys, "model")
    vocab = _read_vocab(document.get_object(model, "vocab", "model"))
    unk_token = document.get_text(model, "unk_token", "model")
    if unk_token not in vocab:
        raise TokenizerDataError(
            f"tokenizer.json: expected the unknown token {unk_token!r} (model.unk_token) in model.vocab, which has "
            f"{len(vocab)} tokens without it. Every word that cannot be split needs its id."
        )
    prefix = document.get_text(model, "continuing_subword_prefix", "model")
    return vocab, vocab[unk_token], prefix, document.get_index(model, "max_input_chars_per_word", "model")


def _read_vocab(entries: Object) -> dict[str, int]:
    """Return the vocabulary; its ids must be unique, but may have holes, which no text can reach."""
    owners: dict[int, str] = {}
    for token in entries:
        token_id = document.get_index(entries, token, "model.vocab")
        document.refuse_surrogates(token, "a token of model.vocab")
        if token_id in owners:
            raise TokenizerDataError(
                f"tokenizer.json: expected unique ids in model.vocab, found id {token_id} for both "
                f"{owners[token_id]!r} and {token!r}"
            )
        owners[token_id] = token
    return {token: token_id for token_id, token in owners.items()}


def _read_added_tokens(root: Object, vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
    entries = root.get("added_tokens", [])
    if not isinstance(entries, list):
        raise TokenizerDataError(f"tokenizer.json: expected a list at added_tokens, found {type(entries).__name__}")
    tokens: dict[str, int] = {}
    following = len(vocab)
    for index, entry in enumerate(entries):
        content, token_id = _read_added_token(entry, f"added_tokens[{index}]")
        # tokenizers takes the vocabulary's id, or else counts on from the vocabulary's size, and only warns if the
        # document says otherwise (add_tokens in tokenizers/src/tokenizer/added_vocabulary.rs). Holes matter here.
        assigned = vocab.get(content, tokens.get(content, following))
        if token_id != assigned:
            raise UnknownTokenizerError(
                f"added token {content!r} with id {token_id} at added_tokens[{index}], "
                f"where tokenizers assigns {assigned}"
            )
        following += content not in vocab and content not in tokens
        tokens[content] = token_id
    return tuple(AddedToken(content=content, token_id=token_id) for content, token_id in tokens.items())


def _read_added_token(entry: Json, path: str) -> tuple[str, int]:
    if not isinstance(entry, dict):
        raise TokenizerDataError(f"tokenizer.json: expected an object at {path}, found {type(entry).__name__}")
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    document.refuse_unknown_keys(entry, {"id", "content", "special", *flags}, path)
    content = document.get_text(entry, "content", path)
    document.get_flag(entry, "special", path)
    for flag in flags:
        if document.get_flag(entry, flag, path):
            raise UnknownTokenizerError(f"added token {content!r} with {flag} at {path}.{flag}")
    if not content:
        raise UnknownTokenizerError(f"added token with empty content at {path}.content")
    return content, document.get_index(entry, "id", path)


def _read_normalizer(root: Object) -> dict[str, bool]:
    normalizer, path = document.unwrap(root, "normalizer", "normalizers", {"BertNormalizer"})
    keys = ("clean_text", "handle_chinese_chars", "lowercase")
    document.refuse_unknown_keys(normalizer, {"type", "strip_accents", *keys}, path)
    flags = {key: document.get_flag(normalizer, key, path) for key in keys}
    follows = normalizer.get("strip_accents") is None
    strip_accents = flags["lowercase"] if follows else document.get_flag(normalizer, "strip_accents", path)
    return {**flags, "strip_accents": strip_accents}


def _read_pre_tokenizer(root: Object) -> None:
    pre_tokenizer, path = document.unwrap(root, "pre_tokenizer", "pretokenizers", {"BertPreTokenizer"})
    document.refuse_unknown_keys(pre_tokenizer, {"type"}, path)


def _read_templates(
    root: Object, known: Mapping[str, int]
) -> tuple[tuple[TemplatePiece, ...], tuple[TemplatePiece, ...]]:
    """Return the templates of a text and of a pair."""
    processor, path = document.unwrap(root, "post_processor", "processors", {"TemplateProcessing", "BertProcessing"})
    if processor["type"] == "BertProcessing":
        return _read_bert_processing(processor, path, known)
    document.refuse_unknown_keys(processor, {"type", "single", "pair", "special_tokens"}, path)
    specials = _read_special_tokens(document.get_object(processor, "special_tokens", path), path, known)
    single = _read_template(processor, "single", path, specials)
    pair = _read_template(processor, "pair", path, specials)
    _expect_sequences(single, [SEQUENCE_A], f"{path}.single")
    _expect_sequences(pair, [SEQUENCE_B, SEQUENCE_A], f"{path}.pair")
    return single, pair


def _read_bert_processing(
    processor: Object, path: str, known: Mapping[str, int]
) -> tuple[tuple[TemplatePiece, ...], tuple[TemplatePiece, ...]]:
    document.refuse_unknown_keys(processor, {"type", "sep", "cls"}, path)
    ids = {}
    for key in ("cls", "sep"):
        value = processor.get(key)
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
            raise TokenizerDataError(f"tokenizer.json: expected [token, id] at {path}.{key}, found {value!r}")
        ids[key] = document.index_of(value[1], f"{path}.{key}[1]")
        _expect_known(value[0], ids[key], known, f"{path}.{key}")
    first = TemplatePiece(source=ids["cls"], type_id=0)
    text = (first, TemplatePiece(source=SEQUENCE_A, type_id=0), TemplatePiece(source=ids["sep"], type_id=0))
    second = (TemplatePiece(source=SEQUENCE_B, type_id=1), TemplatePiece(source=ids["sep"], type_id=1))
    return text, text + second


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
