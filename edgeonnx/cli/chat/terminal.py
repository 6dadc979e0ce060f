"""Questions from a person or a pipe, answers as they come.

Answers go to stdout, everything else to stderr: a script gets the answers alone, a terminal shows both.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from edgeonnx.cli.output import print_error, stderr
from edgeonnx.errors import UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgeonnx.errors import EdgeOnnxError

PROMPT = "> "
LAYOUT = "\n\t"  # control characters that stay as they are


class Terminal:
    """The streams of a conversation."""

    def __init__(self) -> None:
        self.person = sys.stdin.isatty()
        self._raw = not sys.stdout.isatty()
        self._console = stderr()
        self._column = 0
        if self.person and sys.stdout.isatty():
            with contextlib.suppress(ImportError):  # a Python without it still reads lines
                import readline  # noqa: F401 - it makes `input` edit lines and remember them

    def ask(self) -> str | None:
        """The next question; None: there are no more.

        Raises:
            UsageError: The bytes are no text.
        """
        try:
            question = input(PROMPT) if self.person and sys.stdout.isatty() else self._line()
            question.encode()
        except EOFError:
            return None
        except UnicodeError:
            raise UsageError("the question is no text", expected=f"{sys.stdin.encoding}", found="other bytes") from None
        return question

    def _line(self) -> str:
        if self.person:
            self._console.print(PROMPT, end="")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        question = line.rstrip("\n")
        if not self.person:  # nobody saw it being typed
            self._console.print(Text.assemble((PROMPT, "dim"), (printable(question), "bold")))
        return question

    def write(self, text: str) -> None:
        """Show the next piece of an answer at once. On a terminal nothing but text gets through, no escape sequence."""
        shown = text if self._raw else "".join(each if each in LAYOUT else printable(each) for each in text)
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(shown.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()
        if shown:
            self._column = 0 if shown.endswith("\n") else 1

    def end_line(self) -> None:
        """Begin a new line, unless one was just begun."""
        if self._column:
            self.write("\n")

    def note(self, text: str) -> None:
        """A line beside the conversation."""
        self._console.print(Text(printable(text), style="dim"))

    def error(self, error: EdgeOnnxError) -> None:
        """An error, as every verb shows it."""
        print_error(error, as_json=False)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show that something takes a moment."""
        if not sys.stderr.isatty():
            yield
            return
        with self._console.status(Text(printable(what))):
            yield


@contextmanager
def interruptible(active: bool) -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, which stops an answer, where the command's own handler would end it all."""
    if not active:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
