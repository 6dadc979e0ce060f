"""The plain twin of `_decode.pyx`: ids to text, whole or as they come.

Written to be read beside the Hugging Face sources that it agrees with (tokenizers/src/tokenizer/mod.rs `decode`,
decoders/wordpiece.rs, pre_tokenizers/byte_level.rs). Python's "replace" puts U+FFFD exactly where Rust's
`from_utf8_lossy` does: one for each longest sequence of bytes that starts a character (The Unicode Standard, section
3.9, "U+FFFD Substitution of Maximal Subparts").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeonnx_ext import _checks_decoding as checks
from edgeonnx_ext.decoding import token_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from numpy.typing import NDArray

    from edgeonnx_ext.decoding import DecoderModel

# The bytes that may follow a first byte; the others that start a character take any continuation byte (80 to BF).
_SECOND = {0xE0: range(0xA0, 0xC0), 0xED: range(0x80, 0xA0), 0xF0: range(0x90, 0xC0), 0xF4: range(0x80, 0x90)}
_CONTINUATION = range(0x80, 0xC0)


def incomplete_tail(data: bytes) -> int:
    """Return how many bytes at the end of `data` start a character that further bytes could complete: 0 to 3."""
    for count in range(1, min(3, len(data)) + 1):
        first = data[-count]
        if first in _CONTINUATION:
            continue
        wanted = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 0
        open_ended = count == 1 or data[1 - count] in _SECOND.get(first, _CONTINUATION)
        return count if wanted > count and open_ended else 0
    return 0


class Decoder:
    """Ids to text, exactly as Hugging Face `tokenizers` decodes them; only ids without token are refused.

    Args:
        model: The vocabulary and its decoder.
    """

    def __init__(self, model: DecoderModel) -> None:
        self._pieces = {token_id: token_pieces(model, token) for token_id, token in model.tokens.items()}
        self._special_ids = model.special_ids
        self._size = model.size

    @property
    def size(self) -> int:
        """The highest id, plus 1."""
        return self._size

    def decode(
        self,
        ids: Sequence[SupportsIndex] | NDArray[np.int32] | NDArray[np.int64],
        skip_special_tokens: bool = True,
    ) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: A sequence of int, or an int32 or int64 array (n,), C-contiguous.
            skip_special_tokens: Leave special tokens out.

        Raises:
            TypeError: `ids` is no such sequence or array.
            ValueError: An id has no token (the message names its position), or an array of another shape.
        """
        return self._decode(ids, bool(skip_special_tokens), "ids")

    def decode_batch(
        self,
        batch: Sequence[Sequence[SupportsIndex]] | NDArray[np.int32] | NDArray[np.int64],
        skip_special_tokens: bool = True,
    ) -> list[str]:
        """Return the text of each row of `batch`, as `decode`.

        Args:
            batch: A sequence of what `decode` takes, or an int32 or int64 array (rows, n), C-contiguous.
            skip_special_tokens: Leave special tokens out, such as those that pad.

        Raises:
            TypeError: As `decode`; so for ValueError.
        """
        rows = checks.batch_rows(batch)
        return [self._decode(ids, bool(skip_special_tokens), f"batch[{row}]") for row, ids in enumerate(rows)]

    def token_bytes(self, token_id: SupportsIndex) -> bytes:
        """Return the bytes that a token adds to a text after another token, special or not.

        Raises:
            TypeError: `token_id` is not an integer.
            ValueError: It has no token.
        """
        return self._pieces_of(checks.index(token_id, "token_id"))[1]

    def _decode(self, ids: object, skip: bool, name: str) -> str:
        items = checks.id_items(ids, name)
        numbers = items if isinstance(items, np.ndarray) else checks.id_array(items, name)
        parts: list[bytes] = []
        for position, token_id in enumerate(numbers.tolist()):
            if token_id not in self._pieces:
                checks.raise_unknown_id(f"{name}[{position}]", items[position], self._size)
            if not (skip and token_id in self._special_ids):
                parts.append(self._pieces[token_id][bool(parts)])
        return b"".join(parts).decode("utf-8", "replace")

    def _pieces_of(self, token_id: int) -> tuple[bytes, bytes]:
        if token_id not in self._pieces:
            checks.raise_unknown_id("token_id", token_id, self._size)
        return self._pieces[token_id]


class DecodeStream:
    """The text of a sequence as its ids come, for one sequence at a time.

    Always `"".join(map(stream.push, ids)) + stream.finish() == decoder.decode(ids, skip_special_tokens)`. What is given
    out is final: bytes that may still become a character wait for it, at most three.

    Args:
        decoder: What decodes; shared freely.
        skip_special_tokens: Leave special tokens out.

    Raises:
        TypeError: `decoder` is no Decoder, or that of the other twin.
    """

    def __init__(self, decoder: Decoder, skip_special_tokens: bool = True) -> None:
        if not isinstance(decoder, Decoder):
            raise TypeError(f"decoder: expected a Decoder of this module, found {type(decoder).__name__}")
        self._decoder = decoder
        self._skip = bool(skip_special_tokens)
        self._pending = b""
        self._started = False

    def push(self, token_id: SupportsIndex) -> str:
        """Return the text that has become certain with this id; often a token's, sometimes "".

        Raises:
            TypeError: `token_id` is not an integer.
            ValueError: It has no token. The stream is as it was.
        """
        number = checks.index(token_id, "token_id")
        first, following = self._decoder._pieces_of(number)
        if self._skip and number in self._decoder._special_ids:
            return ""
        data = self._pending + (following if self._started else first)
        self._started = True
        certain = len(data) - incomplete_tail(data)
        self._pending = data[certain:]
        return data[:certain].decode("utf-8", "replace")

    def finish(self) -> str:
        """Return what still waits (U+FFFD, as no more bytes come), or ""; the next id starts a new sequence."""
        rest = self._pending.decode("utf-8", "replace")
        self.reset()
        return rest

    def reset(self) -> None:
        """Forget the sequence; the next id starts a new one."""
        self._pending = b""
        self._started = False
