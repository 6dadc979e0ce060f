"""`edgeonnx chat` as a person uses it: in a terminal, with Ctrl-C; and with an agent of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from tests.support.agent import Agent
from tests.support.cli import command, edgeonnx, environment
from tests.support.decoders import make_decoder_bundle
from tests.support.scripted_agent import Body, delta, echo, scripted

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "chat_client.py"
CTRL_C, CTRL_D = b"\x03", b"\x04"
STYLES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder_bundle(tmp_path_factory.mktemp("chat"))


class Person:
    """Someone at a terminal.

    Args:
        arguments: Of `edgeonnx chat`.
        variables: Of the environment.
    """

    def __init__(self, *arguments: str, **variables: str | None) -> None:
        self.terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command("chat", *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm", **variables),
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(theirs)
        self.seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.terminal)

    def types(self, data: bytes) -> None:
        os.write(self.terminal, data)

    def sees(self, text: str, seconds: float = 20) -> str:
        """Wait until a text was shown after what was waited for before; what was shown until then, without styles."""
        limit = time.monotonic() + seconds
        while True:
            plain = STYLES.sub(b"", self.seen).decode(errors="replace")
            if text in plain:
                before, _, after = plain.partition(text)
                self.seen = after.encode()
                return before + text
            over = time.monotonic() > limit or self.process.poll() is not None
            assert not over, f"{text!r} is not in {plain!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # the other side was closed
                    self.seen += os.read(self.terminal, 1 << 16)

    def leaves(self) -> None:
        """Type the end of input at a prompt; before there is one, the terminal is in another mode and may lose it."""
        self.sees("> ")
        time.sleep(0.3)  # readline shows its prompt a moment before it reads
        self.types(CTRL_D)

    def ends(self) -> int:
        return self.process.wait(10)


def take_terminal() -> None:
    """In the child: the terminal that is its stdin gets to send it the signals of its keys."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def endless_at_first(body: Body) -> Iterator[bytes]:
    """Text without end where the question is `long`; the clock is that of the reader."""
    if body["messages"][-1]["content"] != "long":
        yield from echo(body)
        return
    for number in itertools.count():
        yield delta(f" word{number}")
        time.sleep(0.01)


def test_ctrl_c_stops_an_answer_and_nothing_else() -> None:
    with scripted(endless_at_first) as agent, Person("--url", agent.url) as person:
        person.sees("tiny at http://")
        person.sees("> ")
        time.sleep(0.3)  # readline shows its prompt a moment before it looks for signals
        person.types(CTRL_C)
        person.sees("stopped; Ctrl-D or /exit ends the conversation")
        person.sees("> ")
        person.types(b"long\r")
        person.sees("word20")
        person.types(CTRL_C)
        assert agent.left.wait(10), "the agent learns that nobody reads"
        person.sees("stopped")
        person.sees("> ")
        person.types(b"again\r")
        person.sees("3:again")
        assert agent.requests[-1][1]["messages"][1]["content"].startswith(" word0 word1")
        person.types(b"/stats\r")
        person.sees("21 tokens in (8 cached), 3 out, first token after ")
        person.leaves()
        assert person.ends() == 0


@pytest.mark.parametrize("variables", [{"COLUMNS": "20"}, {"NO_COLOR": "1"}], ids=["narrow", "no colour"])
def test_a_terminal_gets_text_and_no_commands(variables: dict[str, str]) -> None:
    """A model cannot clear the screen of its user, nor write to the clipboard."""

    def hostile(_: Body) -> list[bytes]:
        from tests.support.scripted_agent import stream_of

        return stream_of("\x1b]52;c;AA==\x07", "fine\n", "\x1b[2J")

    with scripted(hostile) as agent, Person("--url", agent.url, **variables) as person:
        person.sees("> ")
        person.types(b"a\r")
        shown = person.sees("fine")
        assert "\\x1b]52;c;AA==\\x07" in shown
        person.types(b"/exit\r")
        assert person.ends() == 0


def test_a_question_to_an_agent_of_its_own(bundle: Path) -> None:
    before = children(os.getpid())
    line = ["chat", str(bundle), "--max-tokens", "6", "--temperature", "0", "--prompt", "hello", "--stats"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip()
    assert re.match(r"\d+ tokens in, [1-6] out, first token after ", done.stderr)
    assert children(os.getpid()) == before, "the agent is gone"


def test_the_agent_ends_with_the_conversation(bundle: Path) -> None:
    with Person(str(bundle), "--max-tokens", "6", "--stats") as person:
        person.sees("tiny-lm 1.0.0, variant")
        person.sees("> ")
        [child] = children(person.process.pid)
        time.sleep(0.3)
        person.types(CTRL_C)  # the terminal's signal is not for the agent
        person.sees("stopped")
        person.types(b"hello\r")
        person.sees(" tokens in, ")
        person.leaves()
        assert person.ends() == 0
    assert gone(child)


def test_a_model_without_a_chat_template_and_a_killed_conversation(tmp_path: Path) -> None:
    with Person(str(make_decoder_bundle(tmp_path, chat_template=None)), "--max-tokens", "6") as person:
        person.sees("no chat template, so it takes no conversation")
        person.sees("> ")
        person.types(b"hello\r/stats\r")
        person.sees(" tokens in, ")
        [child] = children(person.process.pid)
        person.process.send_signal(signal.SIGKILL)
        assert gone(child), "no agent is left behind"


def test_a_bundle_that_is_refused(bundle: Path) -> None:
    done = edgeonnx("chat", str(bundle), "--prompt", "a", "--variant", "cuda-fp16")
    assert done.returncode == 12
    assert "error: the agent did not start\n  found: exit code " in done.stderr
    assert "cuda-fp16" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_with_openai_s_client(bundle: Path) -> None:
    with Agent(bundle=bundle) as agent:
        asked = [sys.executable, str(EXAMPLE), agent.url, "hello"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ tokens in, \d+ out", done.stdout.splitlines()[-1])


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def gone(process: int) -> bool:
    """Whether a process ends within some seconds; one that nobody waited for counts as ended."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
