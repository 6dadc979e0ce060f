"""What an agent that did not become ready is reported as."""

from __future__ import annotations

import pytest

from edgeonnx.cli.chat import child
from edgeonnx.errors import AgentError, RuntimeUnavailableError

READY = "ready: http://127.0.0.1:4242 serves tiny 1.0.0, variant cpu-fp32 (fp32) on CPUExecutionProvider, after 0.41 s"


def test_the_ready_line() -> None:
    found = child.READY.match(READY)
    assert found is not None
    assert found[1] == "http://127.0.0.1:4242"
    assert found[2].startswith("tiny 1.0.0, variant cpu-fp32")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "it said nothing"),
        ("WARNING a\nsomething else\n", "something else"),
        ("error: first\nINFO b\nerror: no variant fits\nINFO c\n", "no variant fits"),
    ],
    ids=["silent", "no error", "the last error"],
)
def test_the_last_words(log: str, said: str) -> None:
    error = child.failed(6, "", log)
    assert isinstance(error, AgentError)
    assert (error.found, error.details) == ("exit code 6", (said,))


def test_a_missing_library() -> None:
    error = child.failed(7, "", "error: the library fastapi is missing; pip install 'edgeonnx[agent]'\n")
    assert isinstance(error, RuntimeUnavailableError)
    assert "edgeonnx[agent]" in error.message


def test_another_first_line() -> None:
    assert child.failed(None, "hello\n", "").found == "hello\n"
