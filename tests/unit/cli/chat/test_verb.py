"""The verb in this process, against an agent that answers from a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from tests.support.bundles import make_bundle
from tests.support.scripted_agent import Body, ScriptedAgent, delta, scripted, stream_of

RUNNER = CliRunner()


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with scripted() as running:
        yield running


def test_one_question(agent: ScriptedAgent) -> None:
    line = ["chat", "--url", agent.url, "--prompt", "héllo", "--system", "s", "--temperature", "0", "--seed", "3"]
    done = RUNNER.invoke(app, [*line, "--max-tokens", "5"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "2:héllo\n", "")
    [(path, body)] = agent.requests
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == ("tiny", 0, 3, 5)
    assert agent.tokens == [None, None]


def test_the_question_of_a_pipe_and_its_speed(agent: ScriptedAgent) -> None:
    done = RUNNER.invoke(app, ["chat", "--url", agent.url, "-p", "-", "--stats"], input="two\nlines")
    assert (done.exit_code, done.stdout) == (0, "1:two\nlines\n")
    assert done.stderr.startswith("21 tokens in (8 cached), 3 out, first token after ")


def test_json_is_one_document(agent: ScriptedAgent) -> None:
    done = RUNNER.invoke(app, ["chat", "--url", agent.url, "-p", "a", "--json"])
    found = json.loads(done.stdout)
    assert (found["answer"], found["finish_reason"], found["model"]) == ("1:a", "stop", "tiny")
    assert (found["prompt_tokens"], found["cached_tokens"], found["completion_tokens"]) == (21, 8, 3)
    assert 0 < found["first_token_seconds"] <= found["seconds"]


def test_a_conversation_from_a_pipe(agent: ScriptedAgent) -> None:
    lines = "one\n\ntwo\n/nothing\n/reset\nthree\n/help\n/exit\nfour\n"
    done = RUNNER.invoke(app, ["chat", "--url", agent.url], input=lines)
    assert done.exit_code == 0
    assert done.stdout == "1:one\n3:two\n1:three\n", "answers alone; the third is asked without what was before"
    for text in ("> one\n", "there is no /nothing", "forgotten", "/stats"):
        assert text in done.stderr
    assert len(agent.requests) == 3


def test_texts_to_continue() -> None:
    with scripted(lambda body: stream_of(body["prompt"])) as agent:
        done = RUNNER.invoke(app, ["chat", "--url", agent.url, "--complete"], input="once\nupon\n")
    assert (done.exit_code, done.stdout) == (0, "once\nupon\n")
    assert {path for path, _ in agent.requests} == {"/v1/completions"}


def test_a_question_that_fails_does_not_end_the_conversation() -> None:
    def script(body: Body) -> list[bytes] | tuple[int, Body]:
        if body["messages"][-1]["content"] == "long":
            return 400, {"error": {"message": "the prompt is too long", "param": "messages"}}
        if body["messages"][-1]["content"] == "half":
            return [delta("ha")]
        return stream_of(f"{len(body['messages'])}")

    with scripted(script) as agent:
        done = RUNNER.invoke(app, ["chat", "--url", agent.url], input="long\nhalf\nlast\n")
    assert done.exit_code == 12, "a script must learn of it"
    assert done.stdout == "ha\n3\n", "what came of an answer that broke off is remembered"
    assert done.stderr.count("error: ") == 2
    assert "error: messages: the prompt is too long\n  found: status 400" in done.stderr


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_one_question_that_fails(as_json: bool) -> None:
    with scripted(lambda _: (429, {"error": {"message": "the agent is busy"}})) as agent:
        line = ["chat", "--url", agent.url, "-p", "a"] + (["--json"] if as_json else [])
        done = RUNNER.invoke(app, line)
    assert done.exit_code == 12
    if as_json:
        assert json.loads(done.stdout)["message"] == "the agent is busy"
    else:
        assert (done.stdout, done.stderr) == ("", "error: the agent is busy\n  found: status 429\n")


def test_an_answer_on_a_pipe_is_not_changed() -> None:
    with scripted(lambda _: stream_of("\x1b[2J", "\tend\n")) as agent:
        done = RUNNER.invoke(app, ["chat", "--url", agent.url, "-p", "a"])
    assert done.stdout == "\x1b[2J\tend\n"


def test_which_model() -> None:
    with scripted(models=("first", "second")) as agent:
        assert RUNNER.invoke(app, ["chat", "--url", agent.url, "-p", "a", "-m", "second"]).exit_code == 0
        done = RUNNER.invoke(app, ["chat", "--url", agent.url, "-p", "a", "-m", "third"])
    assert agent.requests[0][1]["model"] == "second"
    assert done.exit_code == 2
    assert "expected: first or second" in done.stderr


def test_an_agent_without_a_model() -> None:
    with scripted(models=()) as agent:
        done = RUNNER.invoke(app, ["chat", "--url", agent.url, "-p", "a"])
    assert done.exit_code == 2
    assert "serves none yet" in done.stderr


def test_the_token_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with scripted() as agent:
        line = ["chat", "--url", agent.url, "-p", "a", "--token-file"]
        assert RUNNER.invoke(app, [*line, str(tmp_path / "token")]).exit_code == 0
        done = RUNNER.invoke(app, [*line, str(tmp_path / "none")])
    assert agent.tokens == ["Bearer secret"] * 2
    assert (done.exit_code, done.stdout) == (2, "")
    assert "No such file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which agent?"),
        (["{bundle}", "--url", "http://a"], "which agent?"),
        (["--url", "http://a", "--variant", "cpu-int8"], "--variant cannot be used with --url"),
        (["{bundle}", "--model", "tiny"], "--model cannot be used with a bundle"),
        (["{bundle}", "--token-file", "x"], "--token-file cannot be used with a bundle"),
        (["{bundle}", "--json"], "--json needs --prompt"),
        (["{bundle}", "--temperature", "inf"], "no number"),
        (["{bundle}", "--temperature", "nan"], "--temperature"),
        (["{bundle}", "-p", "a"], "does not generate text"),
        (["--url", "box"], "no agent's address"),
    ],
    ids=["none", "both", "variant", "model", "token", "json", "inf", "nan", "an encoder", "url"],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str], message: str) -> None:
    bundle = make_bundle(tmp_path)
    done = RUNNER.invoke(app, ["chat", *(part.format(bundle=bundle) for part in arguments)])
    assert done.exit_code == 2
    assert message in (done.stdout if "--json" in arguments else done.stderr)
