"""The source's tokenizer: loading it, and the form in which it is shipped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import transformers
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase, Sequence

from edgeonnx.errors import CorruptSourceError, UnsupportedModelError, first_line

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.export.source import Source


@dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """What the device must know of the source's tokenizer.

    Attributes:
        document: `tokenizer.json`, without padding and truncation (those are the caller's).
        max_length: Longest row in tokens.
        pad_id: Id of the padding token.
        pad_type_id: Token type id of padding.
        prefix: Text put in front of every text.
    """

    document: bytes
    max_length: int
    pad_id: int
    pad_type_id: int
    prefix: str


def read_tokenizer(source: Source, folder: Path | None = None) -> Any:
    """The source's own tokenizer, as transformers loads it.

    Args:
        source: The source.
        folder: Where its files are to be read from, if not from its own directory.

    Raises:
        CorruptSourceError: It cannot be read.
        UnsupportedModelError: It has no `tokenizer.json` form.
    """
    options = {} if source.gguf is None else {"gguf_file": source.gguf}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder or source.path), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:
        raise CorruptSourceError(
            "has a tokenizer that cannot be read",
            where=str(source.path / (source.gguf or "")),
            found=f"{type(error).__name__}: {first_line(error)}",
        ) from error
    if not tokenizer.is_fast:
        raise UnsupportedModelError(
            "has a tokenizer that is not supported",
            where=str(source.path),
            expected="one with a tokenizer.json form",
            found=type(tokenizer).__name__,
        )
    return tokenizer


def load_tokenizer(source: Source) -> Any:
    """The tokenizer of a text encoder: rows that it pads must be rows that the device can pad.

    Raises:
        CorruptSourceError: It cannot be read.
        UnsupportedModelError: It has no `tokenizer.json` form or no padding token, or works on the left.
    """
    tokenizer = read_tokenizer(source)
    sides = (tokenizer.padding_side, tokenizer.truncation_side)
    if tokenizer.pad_token_id is None or sides != ("right", "right"):
        raise UnsupportedModelError(
            "has a tokenizer that is not supported",
            where=str(source.path),
            expected="one with a tokenizer.json form and a padding token, padding and truncating on the right",
            found=f"{type(tokenizer).__name__}, pad token {tokenizer.pad_token!r}, "
            f"padding {sides[0]}, truncating {sides[1]}",
        )
    return tokenizer


def tokenizer_document(tokenizer: Any, *, lowercase: bool) -> bytes:
    """The tokenizer as `tokenizer.json`, with lower-casing in it where sentence-transformers asks for it."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    if lowercase and not _lowercases(backend):
        first = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = Sequence([Lowercase(), *first])
        tokenizer.backend_tokenizer.normalizer = backend.normalizer
    text: str = backend.to_str(pretty=True)
    return text.encode("utf-8")


def _lowercases(backend: Any) -> bool:
    """Whether the tokenizer lower-cases anyway. Lower-casing before BERT's normalizer then changes no character."""
    if backend.normalizer is None:
        return False
    stages = json.loads(backend.to_str())["normalizer"]
    return any(
        stage["type"] == "Lowercase" or stage.get("lowercase") is True for stage in stages.get("normalizers", [stages])
    )


def check_vocabulary(source: Source, tokenizer: Any, *, rows: int) -> None:
    """Every id that the tokenizer can give has a row in the embedding table, or some text would end in a crash.

    Raises:
        CorruptSourceError: An id is too large.
    """
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= rows:
        raise CorruptSourceError(
            "has a tokenizer that gives ids beyond the model's embedding table",
            where=str(source.path),
            expected=f"ids below {rows}",
            found=f"an id of {highest}",
            hint="the tokenizer belongs to another model, or tokens were added: model.resize_token_embeddings",
        )
