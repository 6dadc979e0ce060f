"""Server-sent events: the framing, and what the chunks of OpenAI's API say."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeonnx.cli.chat.events import MAX_EVENT_BYTES, EventParser, Piece, Usage, error_of, pieces, read_piece
from edgeonnx.errors import AgentError
from tests.support.scripted_agent import delta, event, stream_of


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"data: a\n\ndata:b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\rdata: b\r\rx", ["a\nb"]),
        (b": a comment\n\nevent: chunk\ndata: a\nid: 4\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b"data: not whole\n", []),
        (b"\n\n\n", []),
        ("data: grün\n\n".encode(), ["grün"]),
        (b"data: \xff\n\n", ["�"]),
    ],
    ids=range(10),
)
def test_the_framing(stream: bytes, found: list[str]) -> None:
    assert EventParser().feed(stream) == found


LINES = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=9), min_size=1, max_size=3)


@given(st.lists(LINES), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_pieces_of_any_size_make_the_same_events(events: list[list[str]], end: bytes, data: st.DataObject) -> None:
    wire = [b"".join(b"data: " + line.encode() + end for line in lines) + end for lines in events]
    stream = b"".join(wire) + b":"
    parser, found, at = EventParser(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 9))
        found += parser.feed(stream[at : at + size])
        at += size
    assert found == ["\n".join(lines) for lines in events]


def test_an_endless_event_is_refused() -> None:
    parser = EventParser()
    line = b"data: " + b"x" * (MAX_EVENT_BYTES // 2 + 1) + b"\n"
    assert parser.feed(line) == []
    with pytest.raises(AgentError, match="too long"):
        parser.feed(line)


def test_an_answer() -> None:
    found = list(pieces(stream_of("Pa", "ris")))
    assert "".join(piece.text for piece in found) == "Paris"
    assert [piece.finish for piece in found if piece.finish] == ["stop"]
    assert [piece.usage for piece in found if piece.usage] == [
        Usage(prompt_tokens=21, cached_tokens=8, completion_tokens=3)
    ]


def test_what_follows_the_end_is_not_read() -> None:
    assert list(pieces([*stream_of("a"), b"data: {}\n\n"]))


def test_an_answer_that_breaks_off() -> None:
    received = []
    with pytest.raises(AgentError, match="broke off"):
        received.extend(pieces([delta("half")]))
    assert [piece.text for piece in received] == ["half"]


def test_a_chunk_of_a_completion() -> None:
    assert read_piece('{"choices": [{"text": " Paris", "finish_reason": "length"}]}') == Piece(
        text=" Paris", finish="length"
    )


@pytest.mark.parametrize(
    "data",
    [
        "",
        "null",
        "[]",
        "{}",
        '"text"',
        '{"choices": 1}',
        '{"choices": [1]}',
        '{"choices": [{"delta": {"content": 7}}]}',
        '{"choices": [{"delta": {}, "finish_reason": 1}]}',
        '{"choices": [], "usage": {"prompt_tokens": 1}}',
        '{"choices": [], "usage": {"prompt_tokens": "1", "completion_tokens": 2}}',
        "[" * 100_000,
    ],
    ids=range(12),
)
def test_what_is_no_chunk_is_refused(data: str) -> None:
    with pytest.raises(AgentError, match="OpenAI"):
        read_piece(data)


NAMES = st.sampled_from(["choices", "delta", "content", "text", "usage", "finish_reason", "error", "message"])
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8
)


@settings(max_examples=50)
@given(DOCUMENTS)
def test_any_document_is_a_chunk_or_our_error(document: object) -> None:
    with contextlib.suppress(AgentError):
        read_piece(json.dumps(document))


def test_an_error_inside_a_stream() -> None:
    broken = event({"error": {"message": "the answer took too long", "type": "timeout", "param": None}})
    with pytest.raises(AgentError, match="took too long"):
        list(pieces([delta("a"), broken]))


def test_errors_of_the_api() -> None:
    body = {"error": {"message": "temperature: is out of range", "param": "temperature", "code": None}}
    error = error_of(body, 400)
    assert (error.message, error.where, error.found) == ("is out of range", "temperature", "status 400")
    other = error_of("<html>Bad Gateway</html>", 502)
    assert other.found == "status 502 <html>Bad Gateway</html>"
