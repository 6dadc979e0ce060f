"""The turns of a conversation: a question is read, its answer streams, until there are no more questions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edgeonnx.cli.chat.conversation import Answer, describe
from edgeonnx.cli.chat.events import pieces
from edgeonnx.cli.chat.terminal import interruptible
from edgeonnx.errors import EdgeOnnxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeonnx.cli.chat.client import Client
    from edgeonnx.cli.chat.conversation import Conversation
    from edgeonnx.cli.chat.terminal import Terminal

HELP = """\
/reset   forget what was said
/stats   speed of the last answer
/help    this
/exit    end, as Ctrl-D does
Ctrl-C stops an answer; the conversation goes on"""


def answer(client: Client, conversation: Conversation, question: str, write: Callable[[str], None]) -> Answer:
    """Ask one question.

    Args:
        client: The agent.
        conversation: What was said before; the turn is added, as far as the answer came.
        question: The question.
        write: Takes each piece of the answer's text as it comes.

    Returns:
        The whole answer.

    Raises:
        AgentError: The agent does not answer, or refuses.
        KeyboardInterrupt: The person stops it; what came until then is remembered.
    """
    found = Answer()
    begun = time.perf_counter()
    try:
        with client.stream(conversation.path, conversation.request(question)) as stream:
            for piece in pieces(stream):
                if piece.text:
                    found.seconds = time.perf_counter() - begun
                    found.first_seconds = found.first_seconds or found.seconds
                    found.text += piece.text
                    write(piece.text)
                found.finish = piece.finish or found.finish
                found.usage = piece.usage or found.usage
        return found
    finally:
        conversation.remember(question, found.text)


class Talk:
    """A conversation in the terminal.

    Args:
        client: The agent.
        conversation: Where it begins.
        terminal: Where questions come from and answers go.
        stats: Tell the speed after each answer.
    """

    def __init__(self, client: Client, conversation: Conversation, terminal: Terminal, *, stats: bool) -> None:
        self._client = client
        self._conversation = conversation
        self._terminal = terminal
        self._stats = stats
        self._last: Answer | None = None
        self._commands: dict[str, Callable[[], None]] = {
            "/reset": self._reset,
            "/stats": self._show_stats,
            "/help": self._help,
        }

    def run(self) -> EdgeOnnxError | None:
        """Talk until there are no more questions.

        Returns:
            The error of the last question that failed, where the questions come from a pipe; None: all is well.
        """
        failed = None
        with interruptible(self._terminal.person):
            while True:
                try:
                    if not self._turn():
                        return failed
                except KeyboardInterrupt:
                    self._terminal.end_line()
                    self._terminal.note("stopped; Ctrl-D or /exit ends the conversation")
                except EdgeOnnxError as error:
                    self._terminal.end_line()
                    self._terminal.error(error)
                    failed = None if self._terminal.person else error

    def _turn(self) -> bool:
        """One question; whether there may be more."""
        question = self._terminal.ask()
        if question is None or question.strip() == "/exit":
            return False
        if question.strip() in self._commands:
            self._commands[question.strip()]()
        elif question.startswith("/") and " " not in question:
            self._terminal.note(f"there is no {question}; /help tells what there is")
        elif question.strip():
            self._answer(question)
        return True

    def _answer(self, question: str) -> None:
        self._last = None
        self._last = answer(self._client, self._conversation, question, self._terminal.write)
        self._terminal.end_line()
        if self._stats or self._last.finish == "length":
            self._terminal.note(describe(self._last))

    def _help(self) -> None:
        for line in HELP.splitlines():
            self._terminal.note(line)

    def _reset(self) -> None:
        self._conversation.reset()
        self._terminal.note("forgotten")

    def _show_stats(self) -> None:
        self._terminal.note("no answer yet" if self._last is None else describe(self._last))
