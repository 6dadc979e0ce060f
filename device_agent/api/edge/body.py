"""Reading requests: bodies counted while they arrive, JSON parsed strictly, values checked with their place named.

What both protocols check in the same way is here. Every message begins with the field that is wrong.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, TypeVar

import orjson

from device_agent.api.edge.compression import STEP_BYTES, Decompressor
from device_agent.api.edge.exchange import exchange
from edgeonnx.errors import ClientGoneError, InvalidRequestError, RequestTooLargeError, SlowClientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray
    from starlette.requests import Request

    from device_agent.config import Limits, ServerConfig

    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

T = TypeVar("T", str, int, dict, list)  # type: ignore[type-arg]

LARGE_BODY_BYTES = 64 << 10
"""Smaller bodies hold too little for the garbage collector to matter."""

JSON_NAMES: dict[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


async def read_body(request: Request, limits: Limits, server: ServerConfig) -> bytes:
    """The body, decompressed, whether its length was announced or it comes in chunks.

    Args:
        request: The request, its body not yet read.
        limits: `max_body_bytes` bounds what arrives as well as what comes out of decompression.
        server: `body_seconds` bounds how long it takes to arrive.

    Raises:
        RequestTooLargeError: It is larger. What the client still sends is thrown away unread by the server.
        UnsupportedEncodingError: It is compressed in another way than gzip or deflate.
        InvalidRequestError: It cannot be decompressed.
        SlowClientError: It did not arrive in time.
        ClientGoneError: The client left before it was complete.
    """
    limit = limits.max_body_bytes
    encoding = check_head(request.scope["headers"], limit)
    decompressor = Decompressor(encoding) if encoding else None
    arrived = exchange(request.scope)
    if arrived is not None and arrived.body_arrived:
        # Nearly every body comes with its head. Then there is nothing to wait for, and the timer costs as much as all
        # of the rest here.
        return await _collect(request.receive, limit, decompressor)
    try:
        async with asyncio.timeout(server.body_seconds):
            return await _collect(request.receive, limit, decompressor)
    except TimeoutError:
        raise SlowClientError(
            "the body did not arrive in time", where="body", expected=f"all of it within {server.body_seconds:g} s"
        ) from None


def check_head(headers: Iterable[tuple[bytes, bytes]], limit: int) -> str:
    """Refuse an announced length above the limit, before anything is read.

    Args:
        headers: Names, in lower case, and values.
        limit: Most bytes.

    Returns:
        The value of `Content-Encoding`; empty if the body is not compressed.

    Raises:
        RequestTooLargeError: The announced length is too large.
    """
    encodings = []
    for name, value in headers:
        if name == b"content-length":
            if value.isdigit() and int(value[:20]) > limit:
                raise _too_large(limit, f"{value[:20].decode()} bytes announced")
        elif name == b"content-encoding":
            encodings.append(value.decode("latin-1"))
    encoding = ", ".join(encodings).strip()
    return "" if encoding.lower() == "identity" else encoding


async def _collect(receive: Receive, limit: int, decompressor: Decompressor | None) -> bytes:
    """Read messages until the body is complete; sizes count before as well as after decompression."""
    # One buffer, not a list of pieces: a hostile client sends pieces of one byte.
    body = bytearray()
    received = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError("the client left before its request was complete")
        data: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        received += len(data)
        if received > limit:
            raise _too_large(limit, "more")
        if decompressor is not None:
            await _decompress(decompressor, data, body, limit)
        elif not more and not body:
            return data
        else:
            body += data
    if decompressor is not None and received:
        decompressor.finish()
    return bytes(body)


async def _decompress(decompressor: Decompressor, data: bytes, body: bytearray, limit: int) -> None:
    """Add what `data` gives to `body`; others have their turn between two steps."""
    for step in decompressor.feed(data):
        body += step
        if len(body) > limit:
            raise _too_large(limit, "more after decompression")
        if len(step) == STEP_BYTES:
            await asyncio.sleep(0)


def _too_large(limit: int, found: str) -> RequestTooLargeError:
    return RequestTooLargeError(
        "the body is too large",
        where="body",
        expected=f"at most {limit:,} bytes",
        found=found,
        hint="send fewer texts in one request",
    )


def parse_object(data: bytes) -> dict[str, object]:
    """The body as a JSON object.

    Raises:
        InvalidRequestError: It is not JSON (NaN, lone surrogates and bytes that are not UTF-8 included), or no object.
    """
    try:
        value = _loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(
            "the body is not JSON", where="body", expected="a JSON object in UTF-8", found=_describe(data, error)
        ) from None
    return of_type(value, dict, "body")


def _loads(data: bytes) -> object:
    """`orjson.loads`, without the garbage collector where it would walk again and again through what is being made.

    A hostile body of 7 MiB of empty arrays takes 1.5 s with it and 0.4 s without, in which nobody else is served.
    """
    if len(data) < LARGE_BODY_BYTES or not gc.isenabled():
        return orjson.loads(data)
    gc.disable()
    try:
        return orjson.loads(data)
    finally:
        gc.enable()


def _describe(data: bytes, error: orjson.JSONDecodeError) -> str:
    """What is wrong, in words that name the commonest causes."""
    if not data:
        return "an empty body"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as fault:
        return f"bytes that are not UTF-8, the first at {fault.start}"
    if "surrogate" in error.msg:
        return f"a lone surrogate near character {error.pos}: no Unicode text holds one"
    return f"{error.msg} at character {error.pos}"


def of_type(value: object, kind: type[T], where: str) -> T:
    """`value` if it is exactly of that JSON type (true is no integer).

    Raises:
        InvalidRequestError: It is of another one.
    """
    if type(value) is not kind:
        found = JSON_NAMES.get(type(value), type(value).__name__)
        raise InvalidRequestError("is of the wrong type", where=where, expected=JSON_NAMES[kind], found=found)
    return value


def required(fields: dict[str, object], name: str, where: str | None = None) -> object:
    """The member `name`.

    Raises:
        InvalidRequestError: It is missing.
    """
    if name not in fields:
        raise InvalidRequestError("is missing", where=f"{where}.{name}" if where else name)
    return fields[name]


def check_row_count(count: int, where: str, limits: Limits) -> None:
    """Refuse a request without rows, or with more than the limit.

    Raises:
        InvalidRequestError, RequestTooLargeError: As said.
    """
    if count < 1:
        raise InvalidRequestError("is empty", where=where, expected="at least one text")
    if count > limits.max_texts:
        raise RequestTooLargeError(
            "has too many texts",
            where=where,
            expected=f"at most {limits.max_texts:,}",
            found=f"{count:,}",
            hint="send them in several requests",
        )


def check_texts(values: Sequence[object], where: str, limits: Limits) -> list[str]:
    """The values if each is a text that is not too long. An empty text is one: it has an answer.

    Raises:
        InvalidRequestError: One is no string.
        RequestTooLargeError: There are too many, or one is too long.
    """
    check_row_count(len(values), where, limits)
    texts = []
    for index, value in enumerate(values):
        text = of_type(value, str, f"{where}[{index}]")
        if len(text) > limits.max_text_characters:
            raise RequestTooLargeError(
                "the text is too long",
                where=f"{where}[{index}]",
                expected=f"at most {limits.max_text_characters:,} characters",
                found=f"{len(text):,}",
                hint="the model reads only its beginning; cut it before sending",
            )
        texts.append(text)
    return texts


def check_integers(values: Sequence[object], where: str) -> None:
    """Refuse anything but integers.

    Raises:
        InvalidRequestError: One is something else; its place is named.
    """
    if set(map(type, values)) <= {int}:
        return
    index = next(index for index, value in enumerate(values) if type(value) is not int)
    of_type(values[index], int, f"{where}[{index}]")


def check_ids(ids: NDArray[np.int64], where: str, vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary.

    Args:
        ids: int64, any shape.
        where: The field that they came in.
        vocabulary_size: Ids from 0 to below this exist; 0 if it is not known.

    Raises:
        InvalidRequestError: An id is negative or too large.
    """
    wrong = ids < 0
    if vocabulary_size:
        wrong |= ids >= vocabulary_size
    if wrong.any():
        raise InvalidRequestError(
            "is not a token id of this model",
            where=where,
            expected=f"0 to {vocabulary_size - 1}" if vocabulary_size else "at least 0",
            found=str(int(ids[wrong][0])),
        )


def check_width(width: int, where: str, max_length: int) -> None:
    """Refuse rows of tokens that are longer than the model reads; texts are cut, a client's own tokens never.

    Raises:
        InvalidRequestError: They are.
    """
    if width > max_length:
        raise InvalidRequestError(
            "the row of tokens is longer than the model reads",
            where=where,
            expected=f"at most {max_length}",
            found=str(width),
            hint="cut it, or send text, which the agent cuts as the model's tokenizer does",
        )
