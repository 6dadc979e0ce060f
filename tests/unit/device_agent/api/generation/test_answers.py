"""The shapes are those of OpenAI's client, whose own models read them here, without a member left over."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from device_agent.api.generation.answers import Answers, ChatAnswers, Choice, Head, TextAnswers, usage
from device_agent.inference.generation.request import Delta, Finished, Reason, TokenLogprob


class TextChunkChoice(CompletionChoice):
    """The client's type forbids null, which OpenAI's own streams have."""

    finish_reason: str | None  # type: ignore[assignment]


class TextChunk(Completion):
    choices: list[TextChunkChoice]  # type: ignore[assignment]


HEAD = Head(identity="id-1", created=1_700_000_000, model="tiny", fingerprint="ab12")
EURO = "€".encode()


class Bytes:
    """Tokens 0 to 255 are bytes."""

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def chat(**fields: Any) -> ChatAnswers:
    return ChatAnswers(head=HEAD, decoder=Bytes(), **{"logprobs": False, **fields})


def text(**fields: Any) -> TextAnswers:
    return TextAnswers(head=HEAD, decoder=Bytes(), **{"logprobs": False, **fields})


def logprob(token: int, offset: int = 0, *top: int) -> TokenLogprob:
    return TokenLogprob(token=token, logprob=-0.5, top=tuple((each, -0.25) for each in top), offset=offset)


def end(reason: Reason = "stop", prompt: int = 5, completion: int = 2, cached: int = 3) -> Finished:
    return Finished(
        reason=reason,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        queue_seconds=0.0,
        prompt_seconds=0.0,
        decode_seconds=0.0,
    )


def choice(*events: Delta | Finished) -> Choice:
    found = Choice()
    for event in events:
        found.take(event)
    return found


def read(model: type[BaseModel], data: dict[str, Any]) -> Any:
    """The client's own view of an object, which must know every member of it."""
    found = model.model_validate(data, strict=True)

    def check(each: Any) -> None:
        if isinstance(each, BaseModel):
            assert not each.model_extra
            for name in each.model_fields_set:
                check(getattr(each, name))
        elif isinstance(each, list):
            for item in each:
                check(item)

    check(found)
    return found


DELTAS = (
    Delta(text="a", tokens=(logprob(97, 0, 97, 98),)),
    Delta(text="€", tokens=tuple(map(logprob, EURO, (1, 1, 1)))),
)


def test_a_whole_chat_answer() -> None:
    found = read(ChatCompletion, chat().whole([choice(*DELTAS, end("length"))]))
    assert (found.object, found.choices[0].message.content, found.choices[0].finish_reason) == (
        "chat.completion",
        "a€",
        "length",
    )
    assert found.choices[0].logprobs is None
    assert found.system_fingerprint == "ab12"
    assert found.usage.prompt_tokens_details.cached_tokens == 3
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (5, 2, 7)


def test_chat_log_probabilities() -> None:
    found = read(ChatCompletion, chat(logprobs=True).whole([choice(*DELTAS, end())]))
    entries = found.choices[0].logprobs.content
    assert [entry.token for entry in entries] == ["a", "\ufffd", "\ufffd", "\ufffd"]
    assert bytes(byte for entry in entries for byte in entry.bytes) == "a€".encode()
    assert [(each.token, each.logprob) for each in entries[0].top_logprobs] == [("a", -0.25), ("b", -0.25)]


def test_a_whole_text_answer() -> None:
    found = read(Completion, text(logprobs=True, echoes=("so: ",)).whole([choice(*DELTAS, end())]))
    first = found.choices[0]
    assert (found.object, first.text, first.finish_reason) == ("text_completion", "so: a€", "stop")
    assert first.logprobs.tokens == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert first.logprobs.token_logprobs == [-0.5] * 4
    assert first.logprobs.text_offset == [0, 1, 1, 1]
    assert first.logprobs.top_logprobs == [
        {"a": -0.25, "b": -0.25},
        *({name: -0.5} for name in first.logprobs.tokens[1:]),
    ]


def test_the_token_that_came_is_among_the_most_probable() -> None:
    found = text(logprobs=True).piece(0, Delta(text="c", tokens=(logprob(99, 0, 97),)))
    assert found["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -0.25, "c": -0.5}]


def chunk_of(answers: Answers, event: Delta | Finished) -> dict[str, Any]:
    return answers.piece(0, event) if isinstance(event, Delta) else answers.closing(0, event)


def chunks(answers: Answers, *events: Delta | Finished) -> list[dict[str, Any]]:
    opening = answers.opening(0)
    return [*([] if opening is None else [opening]), *(chunk_of(answers, event) for event in events)]


def test_the_chunks_of_a_chat_answer() -> None:
    found = [read(ChatCompletionChunk, chunk) for chunk in chunks(chat(logprobs=True), *DELTAS, end())]
    assert {each.object for each in found} == {"chat.completion.chunk"}
    deltas = [each.choices[0].delta for each in found]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert [delta.content for delta in deltas] == ["", "a", "€", None]
    assert [each.choices[0].finish_reason for each in found] == [None, None, None, "stop"]
    assert [len(each.choices[0].logprobs.content) for each in found[1:3]] == [1, 3]
    assert all("usage" not in each.model_fields_set for each in found)


def test_the_chunks_of_a_text_answer() -> None:
    found = [read(TextChunk, chunk) for chunk in chunks(text(echoes=("so: ",)), *DELTAS, end())]
    assert [each.choices[0].text for each in found] == ["so: ", "a", "€", ""]
    assert [each.choices[0].finish_reason for each in found] == [None, None, None, "stop"]
    assert len(chunks(text(), *DELTAS, end())) == 3


@pytest.mark.parametrize(("made", "model"), [(chat, ChatCompletionChunk), (text, TextChunk)])
def test_a_stream_that_includes_its_usage(made: Any, model: type[BaseModel]) -> None:
    answers = made(include_usage=True)
    assert all(read(model, chunk).usage is None and "usage" in chunk for chunk in chunks(answers, *DELTAS, end()))
    bill = read(model, answers.bill([choice(end())]))
    assert (bill.choices, bill.usage.total_tokens) == ([], 7)


def test_each_prompt_counts_once() -> None:
    ends = [end(prompt=5, completion=1, cached=2), end(prompt=5, completion=2, cached=4)] * 2
    assert usage(ends, 2) == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
