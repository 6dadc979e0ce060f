"""The sections of a `tokenizer.json` that every model shares: version, sides, vocabulary, added tokens.

The rule of all readers here: what the kernels do not do exactly as Hugging Face `tokenizers` does raises
UnknownTokenizerError with its place in the document; a broken document raises TokenizerDataError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgeonnx_ext import _document as document
from edgeonnx_ext._word_chars import WHITESPACE, is_word
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx_ext._document import Json, Object
    from edgeonnx_ext.layout import Side

TOP_LEVEL: Final = frozenset(
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
    """A token that is looked for in the text itself, before the model's own rules cut it.

    Attributes:
        content: The text that it matches, exactly.
        token_id: Its id.
        special: Whether decoding may leave it out; encoding does not look at it.
        single_word: Matches only between characters that are not word characters (`_word_chars`).
        lstrip: Takes the whitespace before it along, up to the added token before.
        rstrip: Takes the whitespace after it along.
        normalized: Is looked for after the tokens that are not, in what they leave; and in normalized text, so that
            `read_added_tokens` takes it only where there is no normalizer, or one that keeps it (NFC and ASCII).
    """

    content: str
    token_id: int
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


def check_version(root: Object) -> None:
    """Raise UnknownTokenizerError for another version of the format."""
    version = root.get("version", "1.0")
    if version != "1.0":
        raise UnknownTokenizerError(f"tokenizer.json version {version!r} (known: '1.0')")


def read_side(root: Object, key: str) -> Side:
    """Return the direction of the document's `truncation` or `padding`; "right" if it has no such section."""
    section = root.get(key)
    if section is not None and not isinstance(section, dict):
        raise TokenizerDataError(f"tokenizer.json: expected an object or null at {key}, found {section!r}")
    direction = section.get("direction", "Right") if section else "Right"
    if direction not in ("Right", "Left"):
        raise TokenizerDataError(f"tokenizer.json: expected Right or Left at {key}.direction, found {direction!r}")
    return "left" if direction == "Left" else "right"


def read_vocab(entries: Object) -> dict[str, int]:
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


def read_added_tokens(root: Object, vocab: Mapping[str, int], *, normalizer: bool) -> tuple[AddedToken, ...]:
    """Return the added tokens in the order of the document; of entries with one content the last counts.

    Args:
        root: The document.
        vocab: The model's vocabulary.
        normalizer: Whether the tokenizer has a normalizer. `normalized` tokens would have to be looked for in its
            output, and are then refused.
    """
    entries = root.get("added_tokens", [])
    if not isinstance(entries, list):
        raise TokenizerDataError(f"tokenizer.json: expected a list at added_tokens, found {type(entries).__name__}")
    tokens: dict[str, AddedToken] = {}
    following = len(vocab)
    for index, entry in enumerate(entries):
        path = f"added_tokens[{index}]"
        token = _read_added_token(entry, path)
        if normalizer and token.normalized:
            raise UnknownTokenizerError(f"added token {token.content!r} with normalized at {path}.normalized")
        # tokenizers takes the vocabulary's id, or else counts on from the vocabulary's size, and only warns if the
        # document says otherwise (add_tokens in tokenizers/src/tokenizer/added_vocabulary.rs). Holes matter here.
        known = tokens.get(token.content)
        assigned = vocab.get(token.content, known.token_id if known else following)
        if token.token_id != assigned:
            raise UnknownTokenizerError(
                f"added token {token.content!r} with id {token.token_id} at {path}, where tokenizers assigns {assigned}"
            )
        following += token.content not in vocab and known is None
        tokens[token.content] = token
    _check_together(tuple(tokens.values()))
    return tuple(tokens.values())


def _read_added_token(entry: Json, path: str) -> AddedToken:
    if not isinstance(entry, dict):
        raise TokenizerDataError(f"tokenizer.json: expected an object at {path}, found {type(entry).__name__}")
    names = ("special", "single_word", "lstrip", "rstrip", "normalized")
    document.refuse_unknown_keys(entry, {"id", "content", *names}, path)
    content = document.get_text(entry, "content", path)
    flags = {name: document.get_flag(entry, name, path) for name in names}
    if not content:
        raise UnknownTokenizerError(f"added token with empty content at {path}.content")
    return AddedToken(content=content, token_id=document.get_index(entry, "id", path), **flags)


def _check_together(tokens: tuple[AddedToken, ...]) -> None:
    """Refuse the few combinations whose matches depend on more than the text around them.

    Two tokens of one id: the library keeps the last. A token that begins with whitespace, beside one that strips the
    whitespace after it: the library then finds matches that overlap. A `single_word` token in the normalized set: the
    character before it may belong to a token of the other set, which the library no longer sees, so it must not be a
    word character.
    """
    owners: dict[int, str] = {}
    for token in tokens:
        other = owners.setdefault(token.token_id, token.content)
        if other != token.content:
            raise UnknownTokenizerError(f"added tokens {other!r} and {token.content!r} with the id {token.token_id}")
    for normalized in (False, True):
        group = [token for token in tokens if token.normalized is normalized]
        if any(token.rstrip for token in group):
            for token in group:
                if token.content[0] in WHITESPACE:
                    raise UnknownTokenizerError(f"added token {token.content!r} beside one with rstrip")
    if any(token.normalized and token.single_word for token in tokens):
        for token in tokens:
            if not token.normalized and is_word(token.content[-1]):
                raise UnknownTokenizerError(
                    f"added token {token.content!r} that is not normalized, beside one that is, with single_word"
                )
