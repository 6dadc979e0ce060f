"""Turns, requests, and the speed of answers: without a network or a clock."""

from __future__ import annotations

import pytest

from edgeonnx.cli.chat.conversation import COMPLETION_TOKENS, Answer, Conversation, Sampling, describe
from edgeonnx.cli.chat.events import Usage

USAGE = Usage(prompt_tokens=21, cached_tokens=8, completion_tokens=11)


def test_a_request_holds_the_turns_in_order() -> None:
    talk = Conversation(model="m", sampling=Sampling(temperature=0.0, seed=4, max_tokens=9), system="Be brief.")
    talk.remember("a", "b")
    body = talk.request("c")
    assert [(each["role"], each["content"]) for each in body["messages"]] == [  # type: ignore[attr-defined]
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]
    assert {name: body[name] for name in ("model", "temperature", "seed", "max_tokens", "stream")} == {
        "model": "m",
        "temperature": 0.0,
        "seed": 4,
        "max_tokens": 9,
        "stream": True,
    }
    assert len(talk.turns) == 2, "asking remembers nothing"


def test_what_nobody_asked_for_is_left_to_the_agent() -> None:
    body = Conversation(model="m", sampling=Sampling()).request("a")
    assert set(body) == {"model", "messages", "stream", "stream_options"}


def test_a_question_without_an_answer_is_forgotten() -> None:
    talk = Conversation(model="m", sampling=Sampling())
    talk.remember("a", "")
    assert talk.turns == []


def test_reset_keeps_the_instruction() -> None:
    talk = Conversation(model="m", sampling=Sampling(), system="s")
    talk.remember("a", "b")
    talk.reset()
    assert [each["role"] for each in talk.request("c")["messages"]] == ["system", "user"]  # type: ignore[attr-defined]


def test_texts_are_continued_each_by_itself() -> None:
    talk = Conversation(model="m", sampling=Sampling(), chats=False, system="s")
    talk.remember("a", "b")
    assert talk.path == "/v1/completions"
    assert talk.request("c")["prompt"] == "c"
    assert talk.request("c")["max_tokens"] == COMPLETION_TOKENS
    talk.sampling = Sampling(max_tokens=3)
    assert talk.request("c")["max_tokens"] == 3


def test_the_speed_is_that_of_the_tokens_after_the_first() -> None:
    answer = Answer(text="t", finish="stop", usage=USAGE, first_seconds=1.0, seconds=3.0)
    assert answer.tokens_per_second == 5.0
    assert describe(answer) == "21 tokens in (8 cached), 11 out, first token after 1000 ms, 5.0 tokens/s"
    assert answer.to_dict("m")["tokens_per_second"] == 5.0


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (Answer(), "stopped"),
        (Answer(text="a", first_seconds=0.5, seconds=1.0), "first token after 500 ms, stopped"),
        (
            Answer(
                finish="length", usage=Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=1), first_seconds=0.1
            ),
            "1 tokens in, 1 out, first token after 100 ms, cut at the limit",
        ),
    ],
    ids=["nothing", "stopped", "one token"],
)
def test_what_is_not_known_is_not_told(answer: Answer, line: str) -> None:
    assert answer.tokens_per_second is None
    assert describe(answer) == line
