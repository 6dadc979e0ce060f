"""Requests to an agent: addresses, answers, refusals, silence."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from edgeonnx.cli.chat.client import Client, parse_url
from edgeonnx.errors import AgentError, UsageError
from tests.support.scripted_agent import Body, delta, scripted, stream_of


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://box.local/v1", "https://box.local"),
        ("https://box.local/models/v1/", "https://box.local/models"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "box",
        "box:8080",
        "ftp://box",
        "http://",
        "http://box:port",
        "http://box:99999",
        "http://[::1",
        "http://a?b=c",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        parse_url(text)


def test_the_bytes_come_as_they_are() -> None:
    with scripted(lambda _: stream_of("a", "b")) as agent:
        client = Client(url=agent.url, token="secret")
        assert client.models() == ["tiny"]
        with client.stream("/v1/chat/completions", {"messages": []}) as stream:
            assert b"".join(stream) == b"".join(stream_of("a", "b"))
    assert agent.requests == [("/v1/chat/completions", {"messages": []})]
    assert agent.tokens == ["Bearer secret"] * 2
    assert "secret" not in repr(client)


def test_a_refusal() -> None:
    refusal: tuple[int, Body] = (400, {"error": {"message": "is too long", "param": "messages"}})
    with scripted(lambda _: refusal) as agent:
        answer = Client(url=agent.url).stream("/v1/chat/completions", {})
        with pytest.raises(AgentError) as caught:
            answer.__enter__()
    assert (caught.value.message, caught.value.where, caught.value.found) == ("is too long", "messages", "status 400")


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AgentError, match="does not answer") as caught:
            Client(url=url).models()
    assert (caught.value.where, caught.value.found) == (url, "Connection refused")


def test_a_server_that_is_no_agent() -> None:
    with scripted(models=None) as agent, pytest.raises(AgentError, match="no agent"):
        Client(url=agent.url).models()


def test_an_error_of_the_reader_is_its_own() -> None:
    """Not taken for one of the network, although both can be an OSError; and the agent sees that nobody reads."""

    def endless(_: Body) -> Iterator[bytes]:
        while True:
            yield delta("x")

    with scripted(endless) as agent:
        with pytest.raises(BrokenPipeError), Client(url=agent.url).stream("/", {}) as stream:
            raise BrokenPipeError(next(stream))
        assert agent.left.wait(5)
