"""An answer that is streamed as OpenAI's API does it: bytes of server-sent events in, pieces of text out.

The framing is that of the HTML standard, section "Server-sent events": lines end by CR, LF or both, an empty line ends
an event, and the `data` fields of an event belong together. The stream ends with the data `[DONE]`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DONE = "[DONE]"
MAX_EVENT_BYTES = 1 << 20
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # CR at the very end may be the first half of CR LF: wait for more


class EventParser:
    """Finds the events in a stream that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[str]:
        """Take the next bytes.

        Returns:
            The data of the events that are whole now; events without data, and comments, are left out.

        Raises:
            AgentError: An event is longer than any that an agent sends.
        """
        found = []
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                found.append(b"\n".join(self._data).decode(errors="replace"))
                self._data.clear()
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise AgentError("an event of the stream is too long", expected=f"at most {MAX_EVENT_BYTES} bytes")
        return found

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of a request: of the prompt, those of them that stood in the caches before, and of the answer."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one event tells.

    Attributes:
        text: The next text of the answer.
        finish: Why the answer ended; None: it goes on.
        usage: The tokens; it comes once, at the end.
    """

    text: str = ""
    finish: str | None = None
    usage: Usage | None = None


def pieces(stream: Iterable[bytes]) -> Iterator[Piece]:
    """Read an answer.

    Args:
        stream: The bytes of the body as they come.

    Raises:
        AgentError: The agent reports an error, the stream breaks off, or it is none of this API.
    """
    parser = EventParser()
    for received in stream:
        for data in parser.feed(received):
            if data == DONE:
                return
            yield read_piece(data)
    raise AgentError("the answer broke off", expected=f"a stream that ends with {DONE}")


def read_piece(data: str) -> Piece:
    """Read the data of one event: a chunk of `chat.completion.chunk` or of `text_completion`.

    Raises:
        AgentError: It is an error of the agent, or no chunk.
    """
    try:
        chunk = json.loads(data)
        if "error" in chunk:
            raise error_of(chunk)
        choice = chunk["choices"][0] if chunk["choices"] else {}
        text = choice["delta"].get("content") if "delta" in choice else choice.get("text")
        usage = chunk.get("usage")
        finish = _text(choice.get("finish_reason"))
        return Piece(text=_text(text) or "", finish=finish, usage=usage and _usage(usage))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise AgentError(
            "the stream is none of OpenAI's API", expected="a chunk with `choices`", found=data[:80]
        ) from None


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def _usage(found: dict[str, object]) -> Usage:
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=_count(found["prompt_tokens"]),
        cached_tokens=_count(cached or 0),
        completion_tokens=_count(found["completion_tokens"]),
    )


def _count(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def error_of(body: object, status: int | None = None) -> AgentError:
    """The error in a body of OpenAI's form, `{"error": {"message", "param", "code"}}`; others are shown as they are.

    Args:
        body: The parsed body.
        status: Status of the response; None: the error came inside a stream.
    """
    found = None if status is None else f"status {status}"
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return AgentError("the agent refuses the request", found=" ".join(filter(None, (found, str(body)[:200]))))
    message, where = error["message"], error.get("param")
    if not isinstance(where, str):
        return AgentError(message, found=found)
    return AgentError(message.removeprefix(f"{where}: "), where=where, found=found)  # an agent names it in both places
