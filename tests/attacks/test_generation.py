"""Hostile requests for generated text, against a real agent: each is refused in the API's form; nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support import decoders
from tests.support.agent import Agent

NO_POISON = {str(decoders.POISON_ID): -100}
# A template that a client may drive: it refuses, it fails, it loops, it grows.
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.content == 'raise' %}{{ raise_exception('no, thank you') }}{% endif %}"
    "{% if m.content == 'fail' %}{{ m.nothing.more }}{% endif %}"
    "{% if m.content == 'loop' %}{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    "{% endif %}"
    "{% if m.content == 'grow' %}{% set s = namespace(x='aa') %}"
    "{% for a in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("hostile")
    with Agent(bundle=decoders.make_decoder_bundle(folder, chat_template=TEMPLATE)) as running:
        yield running
    assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def connection(agent: Agent) -> Iterator[tuple[httpx.Client, list[str]]]:
    """A client, and what an honest stream gets."""
    with httpx.Client(base_url=agent.url, timeout=20) as client:
        yield client, honest(client)


@pytest.fixture
def client(agent: Agent, connection: tuple[httpx.Client, list[str]]) -> Iterator[httpx.Client]:
    """Checks, after a test, that an honest stream still gets what it got before."""
    client, before = connection
    yield client
    assert honest(client) == before
    assert agent.process.poll() is None


def honest(client: httpx.Client) -> list[str]:
    body = {"model": "tiny-lm", "prompt": "in the", "max_tokens": 12, "logit_bias": NO_POISON, "stream": True}
    found = client.post("/v1/completions", json=body)
    assert found.status_code == 200
    chunks = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: {")]
    return [chunk["choices"][0]["text"] for chunk in chunks]


def refused(response: httpx.Response, *statuses: int) -> str:
    assert response.status_code in (statuses or (400, 413)), response.text[:200]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 2000
    return str(error["message"])


def chat(client: httpx.Client, content: object, **fields: object) -> httpx.Response:
    body = {"model": "tiny-lm", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}
    return client.post("/v1/chat/completions", json={"logit_bias": NO_POISON, **body})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("raise", "no, thank you"),
        ("fail", "refuses the conversation"),
        ("loop", "too long"),
        ("grow", "too long"),
    ],
)
def test_a_conversation_that_a_template_does_not_bear(client: httpx.Client, content: str, words: str) -> None:
    assert words in refused(chat(client, content, stream=True))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'"model"',
        b'{"model": "tiny-lm", "temperature": NaN}',
        b'{"model": "tiny-lm", "prompt": "\xff"}',
        b'{"model": "tiny-lm", "prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"model": "tiny-lm", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "tiny-lm", "messages": [{"role": "user", "content": ' + b'[{"type": ' * 900 + b"0",
        b'{"model": "tiny-lm", "prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"model": "tiny-lm", "prompt": [' + b"1," * 300 + b"1]}",
        b'{"model": "tiny-lm", "prompt": "a", "messages": []}',
        b'{"model": "' + b"x" * 100_000 + b'", "prompt": "a"}',
        b'{"model": "tiny-lm", "' + b"x" * 100_000 + b'": 1}',
    ],
    ids=range(14),
)
def test_bodies_that_are_no_request(client: httpx.Client, path: str, data: bytes) -> None:
    refused(client.post(path, content=data), 400, 404, 413)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["x"] * 1000},
        {"n": 10**9},
        {"max_tokens": -(10**30)},
        {"seed": 10**30},
        {"logit_bias": {str(index): 1 for index in range(5000)}},
        {"logprobs": True, "top_logprobs": 10**6},
        {"temperature": 1e300},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "string", "pattern": "(a*)*" * 99}},
            }
        },
        {"chat_template_kwargs": {"messages": "x"}},
        {"chat_template_kwargs": {"__class__": "x"}},
    ],
    ids=range(11),
)
def test_fields_out_of_all_bounds(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = chat(client, "hello", **fields)
    if response.status_code != 200:  # a schema that is merely odd may have an answer
        refused(response)
    else:
        assert "response_format" in fields or "chat_template_kwargs" in fields


def test_long_conversations(client: httpx.Client) -> None:
    refused(chat(client, "cat " * 250_000))
    messages = [{"role": "user", "content": "x"}] * 2048
    body = {"model": "tiny-lm", "messages": messages}
    assert "longer than the model's context" in refused(client.post("/v1/chat/completions", json=body))
    body["messages"] = messages * 2
    refused(client.post("/v1/chat/completions", json=body))


def test_messages_that_spell_special_tokens(client: httpx.Client) -> None:
    """They cost what their characters cost, and begin no turn of their own."""
    honest_tokens = chat(client, "hello").json()["usage"]["prompt_tokens"]
    for forged in decoders.SPECIAL:
        usage = chat(client, "hello" + forged * 3).json()["usage"]
        assert usage["prompt_tokens"] >= honest_tokens + 3 * 8


def test_bytes_that_are_no_text(client: httpx.Client) -> None:
    """An answer that ends inside a character, or is none, is still text."""
    half = str(decoders.VOCABULARY["â"])  # the first byte of €
    bias = {half: 100, **NO_POISON}
    body = {"model": "tiny-lm", "prompt": "in", "max_tokens": 5, "logit_bias": bias, "logprobs": 0}
    whole = client.post("/v1/completions", json=body)
    assert whole.json()["choices"][0]["text"] == "\ufffd" * 5
    assert whole.json()["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xe2"] * 5
    streamed = client.post("/v1/completions", json={**body, "stream": True})
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "\ufffd" * 5


def test_text_that_looks_like_an_event_stays_in_its_own(client: httpx.Client) -> None:
    """Line feeds of an answer are escaped by JSON, so no client can be told of an end that is none."""
    feed = str(decoders.VOCABULARY["Ċ"])
    body = {"model": "tiny-lm", "prompt": "in", "max_tokens": 6, "stream": True}
    response = client.post("/v1/completions", json={**body, "logit_bias": {feed: 100, **NO_POISON}})
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert sum("\\n" in line for line in lines) == 6
