"""Answers in OpenAI's shapes: whole, and as the chunks of a stream. Pure: events in, plain objects out.

`ChatAnswers` and `TextAnswers` differ in the names of things. A choice's text and log probabilities are those of its
events; a request's usage counts each prompt once, whatever the number of its choices, and each generated token, also
the one that ended an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from device_agent.inference.generation.request import Delta, Finished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.inference.generation.request import TokenLogprob
    from device_agent.inference.generation.text import TextDecoder

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every object of an answer says.

    Attributes:
        identity: Its id.
        created: Seconds since 1970.
        model: The model's name.
        fingerprint: What generates: the bundle's digest.
    """

    identity: str
    created: int
    model: str
    fingerprint: str

    def to_dict(self, kind: str) -> Object:
        """The first members of an object."""
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(kw_only=True)
class Choice:
    """One answer, as far as it has come.

    Attributes:
        keeps: Its pieces are kept for a whole answer; a stream has told them and needs only the end.
        text: Its text.
        tokens: Its tokens, where log probabilities are asked for.
        finished: How it ended; None: it has not.
    """

    keeps: bool = True
    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    finished: Finished | None = None

    def take(self, event: Delta | Finished) -> None:
        """Take note of an event."""
        if isinstance(event, Finished):
            self.finished = event
        elif self.keeps:
            self.text += event.text
            self.tokens += event.tokens


def usage(ends: Sequence[Finished], choices_per_prompt: int) -> Object:
    """What a request cost.

    Args:
        ends: The end of each choice; those of one prompt stand together.
        choices_per_prompt: How many that are.
    """
    prompts = ends[::choices_per_prompt]
    read, generated = (sum(end.prompt_tokens for end in prompts), sum(end.completion_tokens for end in ends))
    return {
        "prompt_tokens": read,
        "completion_tokens": generated,
        "total_tokens": read + generated,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in prompts)},
    }


@dataclass(frozen=True, kw_only=True)
class Answers(ABC):
    """The answer to one request.

    Attributes:
        head: What every object of it says.
        decoder: Ids to text.
        logprobs: Whether log probabilities are asked for.
        choices_per_prompt: Choices of each prompt; those of one prompt stand together.
        include_usage: A stream ends with its usage, and its other chunks say that they have none.
    """

    head: Head
    decoder: TextDecoder
    logprobs: bool
    choices_per_prompt: int = 1
    include_usage: bool = False

    def whole(self, choices: Sequence[Choice]) -> Object:
        """The answer in one piece; every choice has finished."""
        ends = [choice.finished for choice in choices if choice.finished is not None]
        return {
            **self.head.to_dict(self._kind),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage(ends, self.choices_per_prompt),
        }

    def opening(self, index: int) -> Object | None:
        """The chunk that comes before a choice's first piece; None where there is none."""
        found = self._opening(index)
        return None if found is None else self._chunk(found)

    def piece(self, index: int, delta: Delta) -> Object:
        """The chunk of one piece."""
        return self._chunk(self._piece(index, delta))

    def closing(self, index: int, finished: Finished) -> Object:
        """The chunk that ends a choice."""
        return self._chunk(self._closing(index, finished.reason))

    def bill(self, choices: Sequence[Choice]) -> Object:
        """The last chunk of a stream that includes its usage."""
        ends = [choice.finished for choice in choices if choice.finished is not None]
        found = usage(ends, self.choices_per_prompt)
        return {**self.head.to_dict(self._chunk_kind), "choices": [], "usage": found}

    def _chunk(self, choice: Object) -> Object:
        chunk = {**self.head.to_dict(self._chunk_kind), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _bytes(self, token: int) -> bytes:
        return self.decoder.token_bytes(token)

    @property
    @abstractmethod
    def _kind(self) -> str: ...

    @property
    @abstractmethod
    def _chunk_kind(self) -> str: ...

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> Object: ...

    @abstractmethod
    def _opening(self, index: int) -> Object | None: ...

    @abstractmethod
    def _piece(self, index: int, delta: Delta) -> Object: ...

    @abstractmethod
    def _closing(self, index: int, reason: str) -> Object: ...


class ChatAnswers(Answers):
    """Answers of `/v1/chat/completions`."""

    _kind = "chat.completion"
    _chunk_kind = "chat.completion.chunk"

    def _choice(self, index: int, choice: Choice) -> Object:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": None if choice.finished is None else choice.finished.reason,
        }

    def _opening(self, index: int) -> Object:
        return self._delta(index, {"role": "assistant", "content": "", "refusal": None})

    def _piece(self, index: int, delta: Delta) -> Object:
        return {**self._delta(index, {"content": delta.text}), "logprobs": self._logprobs(delta.tokens)}

    def _closing(self, index: int, reason: str) -> Object:
        return {**self._delta(index, {}), "finish_reason": reason}

    def _delta(self, index: int, delta: Object) -> Object:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Object | None:
        if not self.logprobs:
            return None
        entries = [
            {
                **self._entry(each.token, each.logprob),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in each.top],
            }
            for each in tokens
        ]
        return {"content": entries, "refusal": None}

    def _entry(self, token: int, logprob: float) -> Object:
        data = self._bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


@dataclass(frozen=True, kw_only=True)
class TextAnswers(Answers):
    """Answers of `/v1/completions`.

    Attributes:
        echoes: The prompt of each choice, where it comes back.
    """

    echoes: Sequence[str] = ()

    _kind = "text_completion"
    _chunk_kind = "text_completion"

    def _choice(self, index: int, choice: Choice) -> Object:
        reason = None if choice.finished is None else choice.finished.reason
        echo = self.echoes[index] if self.echoes else ""
        return self._text(index, echo + choice.text, choice.tokens, reason)

    def _opening(self, index: int) -> Object | None:
        return self._text(index, self.echoes[index], (), None) if self.echoes else None

    def _piece(self, index: int, delta: Delta) -> Object:
        return self._text(index, delta.text, delta.tokens, None)

    def _closing(self, index: int, reason: str) -> Object:
        return self._text(index, "", (), reason)

    def _text(self, index: int, text: str, tokens: Sequence[TokenLogprob], reason: str | None) -> Object:
        logprobs = self._logprobs(tokens) if self.logprobs else None
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Object:
        return {
            "tokens": [self._name(each.token) for each in tokens],
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": [self._most_probable(each) for each in tokens],
            "text_offset": [each.offset for each in tokens],
        }

    def _most_probable(self, place: TokenLogprob) -> dict[str, float]:
        """The most probable tokens, and the one that came if it is none of them."""
        found = {self._name(token): logprob for token, logprob in place.top}
        found.setdefault(self._name(place.token), place.logprob)
        return found

    def _name(self, token: int) -> str:
        """A token's text; its bytes where they are a part of a character only, as OpenAI writes them."""
        data = self._bytes(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
