"""Compressed bodies, both ways: bounded decompression of requests, and answers compressed for clients that ask.

Requests: `gzip` (also `x-gzip`) and `deflate`, one of them. The bound is on what comes out, so a bomb costs at most
the limit of a plain body, whatever its ratio. What counts as whole is strict, because a body that was cut or had
something appended is no body that a client meant:

- a stream that ends early is refused;
- bytes after the end are refused, except a further member of gzip (`gzip`, `bgzip` and `cat` write such files), of
  which there may be `MAX_MEMBERS`: an empty member costs 20 bytes to send, and far more to open;
- `deflate` is the zlib format (RFC 9110, 8.4.1.2) or the raw deflate that some clients send under that name; the first
  two bytes tell, because a raw stream that looks like a zlib header is not one that a compressor writes.

Answers: see `chosen_encoding`.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import TYPE_CHECKING

from edgeonnx.errors import InvalidRequestError, UnsupportedEncodingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.responses import Response

MAX_MEMBERS = 1024
STEP_BYTES = 256 << 10
"""Most bytes that one step of decompression gives: about a millisecond, after which the event loop can turn."""
ANSWER_ENCODINGS = ("gzip", "deflate")
MIN_ANSWER_BYTES = 4 << 10
"""Smaller answers are not compressed: they fit into few packets anyway."""
THREAD_BYTES = 32 << 10
"""Larger answers are compressed in a thread: that many bytes of JSON numbers take a third of a millisecond."""
LEVEL = 1
"""Fast, and numbers in JSON do not get much smaller with more work."""

_GZIP, _ZLIB, _RAW = 31, 15, -15
_WINDOW_BITS = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _ZLIB}
_GZIP_MAGIC = b"\x1f\x8b"
_QUALITY = re.compile(r"q=([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


class Decompressor:
    """One compressed body, decompressed while it arrives.

    Args:
        encoding: The value of `Content-Encoding`.

    Raises:
        UnsupportedEncodingError: It is not one of those above, or there are several.
    """

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        if name not in _WINDOW_BITS:
            raise UnsupportedEncodingError(
                "the body's compression is not supported",
                where="Content-Encoding",
                expected="one of gzip, deflate and identity",
                found=repr(encoding[:80]),
            )
        self._bits = _WINDOW_BITS[name]
        self._stream = None if name == "deflate" else zlib.decompressobj(self._bits)
        self._held = b""
        self._members = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress what arrived, in steps of at most `STEP_BYTES`.

        Raises:
            InvalidRequestError: The bytes are no such stream, or go on after its end.
        """
        data = self._held + data
        self._held = b""
        if self._stream is None:
            if len(data) < len(_GZIP_MAGIC):
                self._held = data
                return
            self._stream = zlib.decompressobj(_ZLIB if _is_zlib(data) else _RAW)
        while data:
            if self._stream.eof:
                if not self._begin_member(data):
                    return
                data, self._held = self._held, b""
            try:
                out = self._stream.decompress(data, STEP_BYTES)
            except zlib.error as error:
                raise _broken(str(error)) from None
            # What the stream did not take yet, or what follows its end.
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            yield out

    def _begin_member(self, data: bytes) -> bool:
        """Open the member of gzip that begins with `data`; False if its first bytes are not all there yet.

        Either way `data` is held afterwards.
        """
        if self._bits != _GZIP or not data.startswith(_GZIP_MAGIC[: len(data)]):
            raise _broken("bytes after the end of the compressed body")
        self._held = data
        if len(data) < len(_GZIP_MAGIC):
            return False
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise _broken(f"more than {MAX_MEMBERS:,} members of gzip")
        self._stream = zlib.decompressobj(self._bits)
        return True

    def finish(self) -> None:
        """Check that the body was whole.

        Raises:
            InvalidRequestError: It was not.
        """
        if self._held or self._stream is None or not self._stream.eof:
            raise _broken("the compressed body ends too early")


def _is_zlib(data: bytes) -> bool:
    """Whether the two bytes are a zlib header (RFC 1950): method 8, and a check number that fits."""
    return data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0


def _broken(found: str) -> InvalidRequestError:
    return InvalidRequestError("the body cannot be decompressed", where="body", found=found)


def chosen_encoding(accepted: str) -> str | None:
    """How to compress an answer for a client that sent this `Accept-Encoding`; None: not at all.

    HTTP libraries permit several codings by default, and compressing costs a small machine more than sending does: an
    embedding of 384 numbers (4.7 KB) takes 32 microseconds, and gets to 46 % of its size. So a client that names one
    coding asks for it, as tritonclient's `response_compression_algorithm` does, and gets it; one that names several
    only permits them, and gets none.
    """
    qualities: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, parameters = item.partition(";")
        match = _QUALITY.search(parameters)
        qualities[name.strip()] = float(match.group(1)) if match else 1.0
    named = [name for name, quality in qualities.items() if quality > 0 and name not in ("", "identity")]
    if len(named) != 1 or named[0] not in ANSWER_ENCODINGS:
        return None
    return named[0] if qualities[named[0]] >= qualities.get("identity", 0.0) else None


async def compressed(response: Response, request: Request) -> Response:
    """The response, its body compressed if the client asked for that and it is worth it.

    Args:
        response: A whole response; it is changed.
        request: The request that it answers.
    """
    if len(response.body) < MIN_ANSWER_BYTES:
        return response
    accepted = request.headers.get("accept-encoding")
    if accepted is None:
        return response
    response.headers["Vary"] = "Accept-Encoding"
    encoding = chosen_encoding(accepted)
    if encoding is None:
        return response
    body = bytes(response.body)
    if len(body) < THREAD_BYTES:
        body = _compress(body, encoding)
    else:
        body = await asyncio.to_thread(_compress, body, encoding)
    response.body = body
    response.headers["Content-Encoding"] = encoding
    response.headers["Content-Length"] = str(len(body))
    return response


def _compress(data: bytes, encoding: str) -> bytes:
    return zlib.compress(data, LEVEL, wbits=_WINDOW_BITS[encoding])
