"""What the decoder of a `tokenizer.json` says, as one frozen description; everything that we do not know is refused.

`DecoderModel.from_tokenizer_json` reads only what turns ids into text: the vocabulary, the added tokens, the decoder.
The rule is that of `wordpiece.py`: a feature is accepted only if the kernels do it exactly as Hugging Face
`tokenizers` does, with its place in the document if not.

Both decoders that we know give each token bytes that depend on nothing but whether another token stands before it
(`token_pieces`). A text is those bytes, joined, as UTF-8 with U+FFFD for what is invalid. So the kernels only join.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from edgeonnx_ext import _document as document
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.sections import TOP_LEVEL, check_version, read_vocab

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx_ext._document import Json, Object

# What the models whose vocabulary is a JSON object may say. Decoding needs the vocabulary alone, but a field that is
# not here may change what that means.
_MODEL_KEYS: Final = frozenset(
    {
        "type",
        "vocab",
        "merges",
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "fuse_unk",
        "byte_fallback",
        "ignore_merges",
        "max_input_chars_per_word",
    }
)

# The cleanup of the WordPiece decoder, in its order (tokenizers/src/decoders/wordpiece.rs).
_CLEANUP: Final = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _byte_chars() -> dict[int, int]:
    """Return the code point that stands for each byte in a byte-level vocabulary, as code point to byte.

    The printable bytes stand for themselves, the others follow from U+0100 on (GPT-2's bytes_to_unicode; the same in
    tokenizers/src/pre_tokenizers/byte_level.rs).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {**{byte: byte for byte in printable}, **{0x100 + index: byte for index, byte in enumerate(others)}}


BYTE_CHARS: Final[Mapping[int, int]] = MappingProxyType(_byte_chars())
_ALPHABET: Final = frozenset(map(chr, BYTE_CHARS))


@dataclass(frozen=True, kw_only=True)
class DecoderModel:
    """The ids of a tokenizer and how they become text.

    Attributes:
        tokens: Id to token, added tokens included, read-only; ids are in [0, 2**31) and may have holes.
        special_ids: Ids that `skip_special_tokens` leaves out.
        byte_level: True for the ByteLevel decoder (byte-level BPE), False for WordPiece.
        prefix: WordPiece: what a token that continues a word starts with ("##"). "" for ByteLevel.
        cleanup: WordPiece: remove the spaces before punctuation and contractions. False for ByteLevel.

    Raises:
        ValueError: There is no token, or an id is not in [0, 2**31).
    """

    tokens: Mapping[int, str]
    special_ids: frozenset[int]
    byte_level: bool
    prefix: str
    cleanup: bool

    def __post_init__(self) -> None:
        if not self.tokens or min(self.tokens) < 0 or max(self.tokens) > document.MAX_INDEX:
            found = f"ids from {min(self.tokens)} to {max(self.tokens)}" if self.tokens else "none"
            raise ValueError(f"tokens: expected tokens with ids in [0, 2**31), found {found}")

    @classmethod
    def from_tokenizer_json(cls, data: bytes) -> DecoderModel:
        """Read a `tokenizer.json`.

        What only matters to encoding (pre-tokenizer, merges, post-processor and so on) is not looked at.

        Args:
            data: The file's bytes, UTF-8.

        Returns:
            The description.

        Raises:
            UnknownTokenizerError: A feature that the kernels do not do exactly as `tokenizers` does.
            TokenizerDataError: Not UTF-8, not JSON, fields missing or of the wrong type, duplicate ids, or no token.
        """
        root = document.parse(data)
        document.refuse_unknown_keys(root, TOP_LEVEL, "the top level")
        check_version(root)
        vocab = _read_vocab(root)
        added, special_ids = _read_added_tokens(root, vocab)
        byte_level, prefix, cleanup = _read_decoder(root)
        tokens = {token_id: token for token, token_id in vocab.items()} | added
        _check_ids(tokens)
        return cls(
            tokens=MappingProxyType(tokens),
            special_ids=special_ids,
            byte_level=byte_level,
            prefix=prefix,
            cleanup=cleanup,
        )

    @property
    def size(self) -> int:
        """The highest id, plus 1."""
        return max(self.tokens) + 1


def token_pieces(model: DecoderModel, token: str) -> tuple[bytes, bytes]:
    """Return the bytes that `token` adds to a text: as its first token, and after another one."""
    if model.byte_level:
        piece = byte_level_piece(token)
        return piece, piece
    following = token.removeprefix(model.prefix) if token.startswith(model.prefix) else f" {token}"
    if model.cleanup:
        token, following = clean_up(token), clean_up(following)
    return token.encode(), following.encode()


def byte_level_piece(token: str) -> bytes:
    """Return the bytes that the characters of `token` stand for; its UTF-8 if one of them stands for none.

    So an added token such as "<|x y|>", whose space stands for no byte, is taken as it is; but one that happens to
    spell bytes is not ("Ġ" is a space), as in `tokenizers`.
    """
    if _ALPHABET.issuperset(token):
        return token.translate(BYTE_CHARS).encode("latin-1")
    return token.encode()


def clean_up(text: str) -> str:
    """Return `text` without the spaces that stand before punctuation; `tokenizers` does this token by token."""
    for artifact, clean in _CLEANUP:
        text = text.replace(artifact, clean)
    return text


def _read_vocab(root: Object) -> dict[str, int]:
    model = document.get_object(root, "model", "")
    if "type" in model:  # older documents do not name it; the vocabulary tells
        document.expect_type(model, "model", "model", {"BPE", "WordPiece"})
    document.refuse_unknown_keys(model, _MODEL_KEYS, "model")
    return read_vocab(document.get_object(model, "vocab", "model"))


def _read_decoder(root: Object) -> tuple[bool, str, bool]:
    decoder, path = document.unwrap(root, "decoder", "decoders", {"ByteLevel", "WordPiece"})
    if decoder["type"] == "ByteLevel":
        # Its flags belong to the pre-tokenizer and post-processor of the same name.
        document.refuse_unknown_keys(decoder, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, path)
        return True, "", False
    document.refuse_unknown_keys(decoder, {"type", "prefix", "cleanup"}, path)
    return False, document.get_text(decoder, "prefix", path), document.get_flag(decoder, "cleanup", path)


def _read_added_tokens(root: Object, vocab: Mapping[str, int]) -> tuple[dict[int, str], frozenset[int]]:
    """Return the added tokens by id, and which of them are special.

    What only matters to finding them in a text (lstrip, single_word and so on) is not looked at.
    """
    entries = root.get("added_tokens", [])
    if not isinstance(entries, list):
        raise TokenizerDataError(f"tokenizer.json: expected a list at added_tokens, found {type(entries).__name__}")
    taken = set(vocab.values())
    ids: dict[str, int] = {}
    special: set[int] = set()
    following = len(vocab)
    for index, entry in enumerate(entries):
        path = f"added_tokens[{index}]"
        content, token_id, is_special = _read_added_token(root, entry, path)
        # tokenizers takes the vocabulary's id, or else counts on from the vocabulary's size, and only warns if the
        # document says otherwise (add_tokens in tokenizers/src/tokenizer/added_vocabulary.rs). Holes matter here.
        is_new = content not in vocab and content not in ids
        assigned = following if is_new else vocab.get(content, ids.get(content))
        if token_id != assigned or (is_new and token_id in taken):
            raise UnknownTokenizerError(
                f"added token {content!r} with id {token_id} at {path}, where tokenizers assigns {assigned}"
                + (", the id of another token" if assigned in taken and is_new else "")
            )
        following += is_new
        ids[content] = token_id
        special |= {token_id} if is_special else set()
    return {token_id: content for content, token_id in ids.items()}, frozenset(special)


def _read_added_token(root: Object, entry: Json, path: str) -> tuple[str, int, bool]:
    if not isinstance(entry, dict):
        raise TokenizerDataError(f"tokenizer.json: expected an object at {path}, found {type(entry).__name__}")
    document.refuse_unknown_keys(
        entry, {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"}, path
    )
    content = document.get_text(entry, "content", path)
    if not content:
        raise UnknownTokenizerError(f"added token with empty content at {path}.content")
    if document.get_flag(entry, "normalized", path) and not _normalizer_keeps(root, content):
        # tokenizers decodes it to what the normalizer makes of it, and asks whether that is special.
        raise UnknownTokenizerError(f"added token {content!r} with normalized at {path}.normalized, and a normalizer")
    return content, document.get_index(entry, "id", path), document.get_flag(entry, "special", path)


def _normalizer_keeps(root: Object, content: str) -> bool:
    """Return whether the normalizer surely leaves `content` as it is."""
    normalizer = root.get("normalizer")
    return normalizer is None or (normalizer == {"type": "NFC"} and content.isascii())


def _check_ids(tokens: Mapping[int, str]) -> None:
    """Refuse a document without tokens, and ids so sparse that a table over them would be far larger than they are."""
    if not tokens:
        raise TokenizerDataError("tokenizer.json: expected tokens in model.vocab or added_tokens, found none")
    most = 4 * len(tokens) + 2**20
    if max(tokens) >= most:
        raise UnknownTokenizerError(f"id {max(tokens)} in model.vocab, for {len(tokens)} tokens (known: below {most})")
