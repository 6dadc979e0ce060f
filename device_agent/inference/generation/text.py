"""Text to the tokens of a prompt, and tokens back to text, for models that generate.

`edgeonnx_ext` does the work where it knows the tokenizer, the `tokenizers` library where it does not. Nothing is cut
here: a prompt that is too long is refused by whoever knows the context.

A prompt that a chat template wrote holds special tokens as text, and so may what the users in the conversation wrote.
The first are meant, the others must stay text (`encode_prompt`). A second tokenizer tells them apart: it is the same,
except that its special tokens have names that nobody can guess. Where the template wrote a special token, that name is
put in its place; everything else cannot become one, and is cut and merged exactly as it would be anyway.
"""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson
from edgeonnx_ext import BpeModel, Decoder, DecoderModel, DecodeStream, UnknownTokenizerError, decoding, library
from edgeonnx_ext import text as tokenizing

from device_agent.inference.generation.special import pattern_of, special_tokens
from device_agent.inference.text import vocabulary_size
from edgeonnx.errors import InferenceError, InvalidRequestError, ManifestError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgeonnx_ext import Tokenized, WordPieceModel
    from numpy.typing import NDArray

    from device_agent.inference.generation.chat import ChatTemplate, Prompt
    from edgeonnx.spec.manifest import TextProcessing

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MOST_HELD = 16
"""Tokens that may wait for the end of a character; a longer row of bytes will not become one."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextStream(Protocol):
    """Tokens in, pieces of text out; no piece splits a character."""

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token; empty where a character is not complete."""
        ...

    def finish(self) -> str:
        """The rest: U+FFFD for bytes that never became a character."""
        ...


class TextDecoder(Protocol):
    """Ids to text: `edgeonnx_ext.Decoder`, or `LibraryDecoder`."""

    def decode(self, ids: Sequence[int] | NDArray[np.int64], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text that has begun."""
        ...


class _Encoder(Protocol):
    def tokenize(self, texts: Sequence[str], *, special_tokens: bool = True) -> Tokenized: ...


class GenerationText:
    """The tokenizer of a decoder's bundle; safe in any thread.

    Args:
        tokenizer_json: The bundle's `tokenizer.json`.
        processing: The manifest's processing. Its prefix and its longest row are for encoders, and not looked at.
        chat: The bundle's chat template, or None.

    Attributes:
        chat: As given.
        decoder: Ids to text.
        special_ids: The ids of the special tokens by their texts.
        vocabulary_size: Ids are below this.

    Raises:
        ManifestError: The tokenizer cannot be opened.
    """

    def __init__(self, tokenizer_json: bytes, processing: TextProcessing, chat: ChatTemplate | None = None) -> None:
        self.chat = chat
        self.tokenizer_json = tokenizer_json
        self._building = threading.Lock()
        try:
            self.vocabulary_size = vocabulary_size(tokenizer_json)
            self.special_ids = special_tokens(orjson.loads(tokenizer_json))
            self._asked = processing.backend
            self._encoder, self.backend, _ = _open_encoder(tokenizer_json, processing.backend)
            self.decoder = open_decoder(tokenizer_json)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(
                "the tokenizer cannot be opened",
                where=processing.tokenizer,
                found=f"{type(error).__name__}: {first_line(error)}",
            ) from None
        self._special = pattern_of(self.special_ids)

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        """The ids of a text; special tokens that it spells become their ids.

        Args:
            text: The text.
            special_tokens: Add those that the model's tokenizer adds to a text.

        Raises:
            InvalidRequestError: It holds a lone surrogate.
        """
        return _ids(self._encoder, text, special_tokens=special_tokens)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a conversation as its template wrote it; none is added.

        Raises:
            InvalidRequestError: It holds a lone surrogate.
            InferenceError: The tokenizer makes a special token of other text, so the conversation cannot be told from
                its frame.
        """
        found = [match.span() for match in self._special.finditer(prompt.text)] if prompt.client else []
        meant = [span for span in found if not prompt.from_client(span)]
        if len(meant) == len(found):
            return self.encode(prompt.text, special_tokens=False)
        renamed = self._renamed
        ids = _ids(renamed.encoder, renamed.rename(prompt.text, meant), special_tokens=False)
        special = set(self.special_ids.values())
        if sum(token in special for token in ids) != len(meant):
            raise InferenceError("the model's tokenizer makes special tokens of plain text", where="messages")
        return ids

    def stream(self) -> TextStream:
        """A new stream; special tokens are left out of its text."""
        return DecodeStream(self.decoder) if isinstance(self.decoder, Decoder) else PrefixStream(self.decoder)

    @cached_property
    def _renamed(self) -> _Renamed:
        """Made when it is first needed: most conversations name no special token.

        The document is parsed once more for it: kept, it would take ten times the room of its file.
        """
        with self._building:
            if "_renamed" in self.__dict__:
                made: _Renamed = self.__dict__["_renamed"]
                return made
            nonce = secrets.token_hex(16)
            names = {text: f"\U0010fffd{nonce}:{token_id}\U0010fffd" for text, token_id in self.special_ids.items()}
            encoder: _Encoder
            _, _, model = _open_encoder(self.tokenizer_json, self._asked)
            if isinstance(model, BpeModel):
                encoder, _ = tokenizing.open_kernel(renamed_model(model, names))
            else:
                document = renamed_document(orjson.loads(self.tokenizer_json), names)
                encoder = library.LibraryTokenizer(orjson.dumps(document), "special tokens were renamed")
            return _Renamed(encoder=encoder, names=names)


@dataclass(frozen=True, kw_only=True)
class _Renamed:
    """The tokenizer whose special tokens have other names, by their own ones."""

    encoder: _Encoder
    names: Mapping[str, str]

    def rename(self, text: str, spans: Iterable[tuple[int, int]]) -> str:
        """The text with the special tokens at `spans` called by the names."""
        parts, end = [], 0
        for start, stop in spans:
            parts += [text[end:start], self.names[text[start:stop]]]
            end = stop
        return "".join([*parts, text[end:]])


def _ids(encoder: _Encoder, text: str, *, special_tokens: bool) -> list[int]:
    try:
        tokenized = encoder.tokenize((text,), special_tokens=special_tokens)
    except ValueError as error:
        raise InvalidRequestError("a text cannot be encoded", where="text", found=str(error)) from None
    ids = np.empty((1, max(1, tokenized.width)), dtype=np.int64)
    tokenized.write_into(ids)
    return [int(token) for token in ids[0, : tokenized.lengths[0]].tolist()]


def _open_encoder(tokenizer_json: bytes, backend: str) -> tuple[_Encoder, str, BpeModel | WordPieceModel | None]:
    """The encoder, its name, and the kernel's model; the library has none."""
    if backend != "tokenizers":
        try:
            model = tokenizing.read_model(tokenizer_json, backend)
        except UnknownTokenizerError:
            pass  # the host's release may have known more than this one
        else:
            encoder, name = tokenizing.open_kernel(model)
            return encoder, name, model
    return library.LibraryTokenizer(tokenizer_json, "the bundle asks for the tokenizers library"), "tokenizers", None


def open_decoder(tokenizer_json: bytes) -> Decoder | LibraryDecoder:
    """What makes text of ids: the extension, or the library where that does not know the decoder.

    Raises:
        ValueError: The document is broken, or the library is needed and not installed.
    """
    try:
        return Decoder(DecoderModel.from_tokenizer_json(tokenizer_json))
    except UnknownTokenizerError as error:
        return LibraryDecoder(tokenizer_json, str(error))


def renamed_model(model: BpeModel, names: Mapping[str, str]) -> BpeModel:
    """A kernel's model with other names for some added tokens; they match wherever they stand."""
    added = tuple(
        replace(token, content=names[token.content], single_word=False) if token.content in names else token
        for token in model.added_tokens
    )
    return replace(model, added_tokens=added)


def renamed_document(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A `tokenizer.json` with other names for some added tokens, wherever it names them, under the same ids."""
    added = [
        {**token, "content": names[token["content"]], "single_word": False} if token["content"] in names else token
        for token in document["added_tokens"]
    ]
    model = dict(document["model"])
    vocabulary = model.get("vocab", {})
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(entry[0], entry[0]), *entry[1:]] for entry in vocabulary]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return {**document, "added_tokens": added, "model": model}


class LibraryDecoder:
    """The decoder of the `tokenizers` library, for what the extension does not know (SentencePiece's kin).

    Args:
        tokenizer_json: The bundle's `tokenizer.json`.
        reason: Why the extension does not do it, for the message.

    Raises:
        UnknownTokenizerError: The library is not installed.
        ValueError: It refuses the document.
    """

    def __init__(self, tokenizer_json: bytes, reason: str) -> None:
        try:
            import tokenizers
        except ImportError:
            raise UnknownTokenizerError(f"{reason}; and the tokenizers library is not installed") from None
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_str(tokenizer_json.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"the tokenizers library refuses the document: {first_line(error)}") from error
        self._byte_level = b'"ByteLevel"' in orjson.dumps(orjson.loads(tokenizer_json).get("decoder"))
        self.size = vocabulary_size(tokenizer_json)

    def decode(self, ids: Sequence[int] | NDArray[np.int64], skip_special_tokens: bool = True) -> str:
        """The text of tokens; an id that the vocabulary lacks has none."""
        return str(self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text that has begun."""
        token = self._tokenizer.id_to_token(int(token_id))
        if token is None:
            return b""
        if self._byte_level:
            return decoding.byte_level_piece(token)
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else str(token).replace("\u2581", " ").encode()


class PrefixStream:
    """A stream on a decoder that only knows whole texts.

    Each piece is what the text of the last few tokens has beyond the text of the same without the new ones: what comes
    before them no longer matters to it. A text that ends in U+FFFD may end inside a character, and waits.
    """

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._known = 0  # how many of them the pieces so far have told

    def push(self, token_id: int) -> str:
        """The text that is certain after one more token."""
        self._ids.append(int(token_id))
        text = self._decoder.decode(self._ids)
        held = text.endswith(REPLACEMENT) and len(self._ids) - self._known < MOST_HELD
        return "" if held else self._tell(text)

    def finish(self) -> str:
        """The rest."""
        return self._tell(self._decoder.decode(self._ids)) if len(self._ids) > self._known else ""

    def _tell(self, text: str) -> str:
        told = self._decoder.decode(self._ids[: self._known]) if self._known else ""
        if len(text) <= len(told):
            return ""
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        return text[len(told) :]
