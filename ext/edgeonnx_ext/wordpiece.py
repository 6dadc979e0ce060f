"""What a WordPiece `tokenizer.json` says, as one frozen description; everything that we do not know is refused.

`WordPieceModel.from_tokenizer_json` reads the document field by field. The rule: a feature is accepted only if the
kernels do it exactly as Hugging Face `tokenizers` does; anything else raises UnknownTokenizerError with its place in
the document, so that the caller can hand the tokenizer to the `tokenizers` library. A broken document raises
TokenizerDataError.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgeonnx_ext import _document as document
from edgeonnx_ext._word_chars import WHITESPACE
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.sections import TOP_LEVEL, AddedToken, check_version, read_added_tokens, read_side, read_vocab
from edgeonnx_ext.templates import TemplatePiece, Trim, read_templates, read_trim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx_ext._document import Object
    from edgeonnx_ext.layout import Side


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
        trims_spans: Whitespace that added tokens take along does not belong to their offsets.
        single: Template of a text alone; holds SEQUENCE_A once.
        pair: Template of a pair; holds SEQUENCE_A and SEQUENCE_B once each.
        truncation_side: The side at which the document lets texts lose tokens.
        padding_side: The side at which the document pads.
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
    truncation_side: Side = "right"
    padding_side: Side = "right"
    trims_spans: bool = False

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
        return cls.from_document(document.parse(data))

    @classmethod
    def from_document(cls, root: Object) -> WordPieceModel:
        """As from_tokenizer_json, of the object in the file."""
        document.refuse_unknown_keys(root, TOP_LEVEL, "the top level")
        check_version(root)
        vocab, unk_id, prefix, max_word_chars = _read_model(document.get_object(root, "model", ""))
        added = read_added_tokens(root, vocab, normalizer=True)
        known = {**vocab, **{token.content: token.token_id for token in added}}
        single, pair = read_templates(root, known)
        trim = read_trim(root)
        if trim.spaces:
            _refuse_what_trimming_changes(vocab, added, trim)
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
            truncation_side=read_side(root, "truncation"),
            padding_side=read_side(root, "padding"),
            trims_spans=trim.spaces,
        )

    def special_count(self, *, pair: bool) -> int:
        """Return how many tokens the template adds to a text (or to a pair)."""
        return sum(piece.source >= 0 for piece in (self.pair if pair else self.single))


def _read_model(model: Object) -> tuple[dict[str, int], int, str, int]:
    document.expect_type(model, "model", "model", {"WordPiece"})
    keys = {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}
    document.refuse_unknown_keys(model, keys, "model")
    vocab = read_vocab(document.get_object(model, "vocab", "model"))
    unk_token = document.get_text(model, "unk_token", "model")
    if unk_token not in vocab:
        raise TokenizerDataError(
            f"tokenizer.json: expected the unknown token {unk_token!r} (model.unk_token) in model.vocab, which has "
            f"{len(vocab)} tokens without it. Every word that cannot be split needs its id."
        )
    prefix = document.get_text(model, "continuing_subword_prefix", "model")
    return vocab, vocab[unk_token], prefix, document.get_index(model, "max_input_chars_per_word", "model")


def _refuse_what_trimming_changes(vocab: Mapping[str, int], added: tuple[AddedToken, ...], trim: Trim) -> None:
    """Refuse tokens whose offsets a post-processor for byte-level BPE would cut in ways that the kernels do not.

    It takes whitespace, and the character that stands for a space in byte-level BPE, off both ends of every token.
    Without such tokens (MPNet has none) only the whitespace that added tokens take along is left to it.
    """
    blank = "".join(WHITESPACE) + "\u0120"
    for token in (*vocab, *(token.content for token in added)):
        if token != token.strip(blank):
            raise UnknownTokenizerError(f"trim_offsets at post_processor, with the token {token!r}")
    for taking in added:
        if taking.lstrip and trim.keeps_prefix:
            raise UnknownTokenizerError(
                f"trim_offsets and add_prefix_space at post_processor, with lstrip of the added token "
                f"{taking.content!r}"
            )


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
