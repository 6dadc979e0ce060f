r"""What a byte-level BPE `tokenizer.json` says, as one frozen description; everything that we do not know is refused.

GPT-2, RoBERTa, SmolLM2, Llama 3, Qwen 2 and kin. The rule is that of `wordpiece.py`: a feature is accepted only if the
kernels do it exactly as Hugging Face `tokenizers` does; anything else raises UnknownTokenizerError with its place in
the document. A broken document raises TokenizerDataError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, get_args

from edgeonnx_ext import _document as document
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.sections import TOP_LEVEL, AddedToken, check_version, read_added_tokens, read_side, read_vocab
from edgeonnx_ext.templates import TemplatePiece, Trim, read_templates, read_trim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edgeonnx_ext._document import Json, Object
    from edgeonnx_ext.layout import Side

Digits = Literal["single", "runs"]
Pattern = Literal["whole", "gpt2", "llama3", "qwen2"]

# In the order of the enum `Pattern` in _scan.pxd; "whole" makes a section one piece.
PATTERNS: Final[tuple[Pattern, ...]] = get_args(Pattern)

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As OpenAI writes it: the possessive quantifiers and the single line break match what those of _LLAMA3 do.
_GPT4: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
# The regular expressions that the scanners do, letter by letter; any other is refused.
KNOWN_EXPRESSIONS: Final[Mapping[str, Pattern]] = MappingProxyType(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
        _LLAMA3: "llama3",
        _LLAMA3.replace(_CONTRACTIONS, r"'(?i:[sdmt]|ll|ve|re)"): "llama3",
        _GPT4: "llama3",
        _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2",
        _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}").replace(_CONTRACTIONS, r"'(?i:[sdmt]|ll|ve|re)"): "qwen2",
        _GPT4.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2",
    }
)


@dataclass(frozen=True, kw_only=True)
class BpeModel:
    """A byte-level BPE tokenizer: normalizer, pre-tokenizer, vocabulary, merges, added tokens and templates.

    Attributes:
        vocab: Token (in the characters that stand for bytes) to id, read-only; ids are unique and in [0, 2**31).
        merges: Pair of ids to its rank (lowest merges first) and the merged token's id, read-only.
        ignore_merges: A piece that is a token as a whole becomes that token, whatever the merges say.
        nfc: What stands between added tokens that are not `normalized` is put into Unicode normalization form C.
        pattern: How a section is cut into pieces: the name of a known regular expression, or "whole".
        digits: Digits are cut off before: "single" each alone, "runs" runs of them, None not at all.
        add_prefix_space: A section that does not begin with a space gets one.
        trim: What becomes of spaces in the offsets of tokens.
        added_tokens: Tokens matched in the text itself; those that are `normalized`, in what `nfc` makes of it.
        single: Template of a text alone; holds SEQUENCE_A once.
        pair: Template of a pair; holds SEQUENCE_A and SEQUENCE_B once each.
        truncation_side: The side at which the document lets texts lose tokens.
        padding_side: The side at which the document pads.
    """

    vocab: Mapping[str, int]
    merges: Mapping[tuple[int, int], tuple[int, int]]
    ignore_merges: bool
    nfc: bool
    pattern: Pattern
    digits: Digits | None
    add_prefix_space: bool
    trim: Trim
    added_tokens: tuple[AddedToken, ...]
    single: tuple[TemplatePiece, ...]
    pair: tuple[TemplatePiece, ...]
    truncation_side: Side
    padding_side: Side

    @classmethod
    def from_tokenizer_json(cls, data: bytes) -> BpeModel:
        """Read a `tokenizer.json`.

        The document's padding and truncation lengths are ignored (the caller decides them), and so is its decoder.

        Args:
            data: The file's bytes, UTF-8.

        Returns:
            The description.

        Raises:
            UnknownTokenizerError: A feature that the kernels do not do exactly as `tokenizers` does.
            TokenizerDataError: Not UTF-8, not JSON, fields missing or of the wrong type, duplicate ids, a merge of or
                to a token that the vocabulary lacks, or a template whose special tokens it lacks.
        """
        return cls.from_document(document.parse(data))

    @classmethod
    def from_document(cls, root: Object) -> BpeModel:
        """As from_tokenizer_json, of the object in the file."""
        document.refuse_unknown_keys(root, TOP_LEVEL, "the top level")
        check_version(root)
        model = document.get_object(root, "model", "")
        _refuse_model_features(model)
        vocab = read_vocab(document.get_object(model, "vocab", "model"))
        _check_unknown_token(model, vocab)
        nfc = _read_normalizer(root)
        added = read_added_tokens(root, vocab, normalizer=False)
        if nfc:
            _refuse_contents_that_may_change(added)
        single, pair = read_templates(root, {**vocab, **{token.content: token.token_id for token in added}})
        pattern, digits, add_prefix_space = _read_pre_tokenizer(root)
        return cls(
            vocab=MappingProxyType(vocab),
            merges=MappingProxyType(_read_merges(model, vocab)),
            ignore_merges="ignore_merges" in model and document.get_flag(model, "ignore_merges", "model"),
            nfc=nfc,
            pattern=pattern,
            digits=digits,
            add_prefix_space=add_prefix_space,
            trim=read_trim(root),
            added_tokens=added,
            single=single,
            pair=pair,
            truncation_side=read_side(root, "truncation"),
            padding_side=read_side(root, "padding"),
        )

    def special_count(self, *, pair: bool) -> int:
        """Return how many tokens the template adds to a text (or to a pair)."""
        return sum(piece.source >= 0 for piece in (self.pair if pair else self.single))


@lru_cache(maxsize=1)
def byte_characters() -> str:
    """Return the 256 characters that stand for bytes 0 to 255 in the vocabulary.

    Visible Latin-1 characters stand for themselves, the other bytes count on from U+0100 (GPT-2's `bytes_to_unicode`).
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def spelled(vocab: Mapping[str, int]) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes and id of each token that consists of `byte_characters` alone; no piece becomes another one."""
    byte_of = {char: byte for byte, char in enumerate(byte_characters())}
    for token, token_id in vocab.items():
        if all(char in byte_of for char in token):
            yield bytes(byte_of[char] for char in token), token_id


def _refuse_model_features(model: Object) -> None:
    document.expect_type(model, "model", "model", {"BPE"})
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    flags = ("fuse_unk", "byte_fallback", "ignore_merges")
    document.refuse_unknown_keys(model, {"type", "dropout", "unk_token", *affixes, *flags, "vocab", "merges"}, "model")
    # 0.0 merges as null does; anything else is random.
    dropout = model.get("dropout")
    if dropout is not None and (isinstance(dropout, bool) or dropout != 0):
        raise UnknownTokenizerError(f"dropout {dropout!r} at model.dropout")
    for affix in affixes:
        if model.get(affix) is not None and document.get_text(model, affix, "model"):
            raise UnknownTokenizerError(f"{affix} {model[affix]!r} at model.{affix}")
    for flag in flags:
        if flag in model:
            document.get_flag(model, flag, "model")
    if model.get("byte_fallback"):
        raise UnknownTokenizerError("byte_fallback at model.byte_fallback")


def _check_unknown_token(model: Object, vocab: Mapping[str, int]) -> None:
    """Refuse an unknown token that some text could reach: where the vocabulary lacks a byte.

    Without one, the library lets such a byte vanish, and so do the kernels.
    """
    if model.get("unk_token") is None:
        return
    unknown = document.get_text(model, "unk_token", "model")
    missing = [byte for byte, char in enumerate(byte_characters()) if char not in vocab]
    if missing:
        raise UnknownTokenizerError(
            f"unk_token {unknown!r} at model.unk_token, with a vocabulary without byte {missing[0]:#04x}"
        )


def _read_merges(model: Object, vocab: Mapping[str, int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return rank and merged id of each pair of ids; of a pair that stands twice, the last counts."""
    entries = model.get("merges")
    if not isinstance(entries, list):
        raise TokenizerDataError(f"tokenizer.json: expected a list at model.merges, found {type(entries).__name__}")
    spelled_out = bool(entries) and isinstance(entries[0], str)
    # The lines of a merges.txt may begin with its header, which is not a merge and has no rank.
    lines = [entry for entry in entries if not (isinstance(entry, str) and entry.startswith("#version"))]
    merges: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, entry in enumerate(lines if spelled_out else entries):
        left, right = _read_merge(entry, spelled_out=spelled_out, rank=rank)
        for token in (left, right, left + right):
            if token not in vocab:
                raise TokenizerDataError(
                    f"tokenizer.json: expected every token of merge {rank} of model.merges ({left!r} and {right!r}) in "
                    f"model.vocab, which lacks {token!r}"
                )
        merges[vocab[left], vocab[right]] = (rank, vocab[left + right])
    return merges


def _read_merge(entry: Json, *, spelled_out: bool, rank: int) -> tuple[str, str]:
    parts = entry.split(" ") if spelled_out and isinstance(entry, str) else entry
    if spelled_out is isinstance(entry, str) and isinstance(parts, list) and len(parts) == 2:
        left, right = parts
        if isinstance(left, str) and isinstance(right, str):
            return left, right
    form = '"a b"' if spelled_out else '["a", "b"]'
    raise TokenizerDataError(f"tokenizer.json: expected {form} as merge {rank} of model.merges, found {entry!r}")


def _read_normalizer(root: Object) -> bool:
    """Return whether there is one: it is null, NFC, or a sequence of NFC alone, or of none."""
    if root.get("normalizer") in (None, {"type": "Sequence", "normalizers": []}):
        return False
    normalizer, path = document.unwrap(root, "normalizer", "normalizers", {"NFC"})
    document.refuse_unknown_keys(normalizer, {"type"}, path)
    return True


def _refuse_contents_that_may_change(added: tuple[AddedToken, ...]) -> None:
    """Refuse a `normalized` token of other characters than ASCII's: the library looks for NFC of its content."""
    for token in added:
        if token.normalized and not token.content.isascii():
            raise UnknownTokenizerError(f"added token {token.content!r} with normalized at added_tokens, beside NFC")


def _read_pre_tokenizer(root: Object) -> tuple[Pattern, Digits | None, bool]:
    """Return the pattern, what becomes of digits before it, and whether a section gets a prefix space."""
    sections = _pre_tokenizers(root)
    last, path = sections[-1]
    document.expect_type(last, "pre_tokenizer", path, {"ByteLevel"})
    document.refuse_unknown_keys(last, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, path)
    add_prefix_space = document.get_flag(last, "add_prefix_space", path)
    use_regex = document.get_flag(last, "use_regex", path) if "use_regex" in last else True
    if len(sections) == 1:
        return "gpt2" if use_regex else "whole", None, add_prefix_space
    if add_prefix_space:
        # The library would put it before each of the pieces that the first pre-tokenizer makes.
        raise UnknownTokenizerError(f"add_prefix_space behind another pre_tokenizer at {path}.add_prefix_space")
    first, first_path = sections[0]
    document.expect_type(first, "pre_tokenizer", first_path, {"Split", "Digits"})
    digits = first["type"] == "Digits"
    if use_regex is not digits:
        raise UnknownTokenizerError(f"use_regex {use_regex} behind {first['type']} at {path}.use_regex")
    if not digits:
        return _read_split(first, first_path), None, False
    document.refuse_unknown_keys(first, {"type", "individual_digits"}, first_path)
    return "gpt2", "single" if document.get_flag(first, "individual_digits", first_path) else "runs", False


def _pre_tokenizers(root: Object) -> list[tuple[Object, str]]:
    """Return the one or two pre-tokenizers, with their paths."""
    path = "pre_tokenizer"
    if root.get(path) is None:
        raise UnknownTokenizerError("no pre_tokenizer")
    section = document.get_object(root, path, "")
    if section.get("type") != "Sequence":
        return [(section, path)]
    document.refuse_unknown_keys(section, {"type", "pretokenizers"}, path)
    items = section.get("pretokenizers")
    if not isinstance(items, list):
        raise TokenizerDataError(f"tokenizer.json: expected a list at {path}.pretokenizers, found {items!r}")
    found: list[tuple[Object, str]] = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise TokenizerDataError(
                f"tokenizer.json: expected an object at {path}.pretokenizers[{index}], found {item!r}"
            )
        found.append((item, f"{path}.pretokenizers[{index}]"))
    if not 1 <= len(found) <= 2:
        raise UnknownTokenizerError(f"{len(found)} sections at {path}.pretokenizers")
    return found


def _read_split(section: Object, path: str) -> Pattern:
    document.refuse_unknown_keys(section, {"type", "pattern", "behavior", "invert"}, path)
    # Each known expression matches at every character, so that there is nothing between its matches to be removed.
    behavior = (section.get("behavior"), document.get_flag(section, "invert", path))
    if behavior not in (("Isolated", False), ("Removed", True)):
        raise UnknownTokenizerError(f"Split that is {behavior[0]!r}, or inverted, at {path}")
    pattern = document.get_object(section, "pattern", path)
    document.refuse_unknown_keys(pattern, {"Regex"}, f"{path}.pattern")
    expression = document.get_text(pattern, "Regex", f"{path}.pattern")
    if expression not in KNOWN_EXPRESSIONS:
        raise UnknownTokenizerError(f"regular expression {expression!r} at {path}.pattern.Regex")
    return KNOWN_EXPRESSIONS[expression]
