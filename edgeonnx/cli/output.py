"""What the command line prints: results on stdout, progress and errors on stderr.

On a terminal there are colours and live progress; piped, the same lines come plain. `NO_COLOR` and `FORCE_COLOR` are
honoured by Rich.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from edgeonnx.cli import interrupt
from edgeonnx.errors import printable

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from edgeonnx.errors import EdgeOnnxError

NAME_WIDTH = 10


PIPE_WIDTH = 1 << 16


def stdout() -> Console:
    """The console for results."""
    return _console(sys.stdout.isatty(), stderr=False)


def stderr() -> Console:
    """The console for progress and errors."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, *, stderr: bool) -> Console:
    """Piped output is not wrapped, in tables neither: one line stays one line for grep."""
    width = None if terminal else PIPE_WIDTH
    return Console(stderr=stderr, soft_wrap=not terminal, width=width, highlight=False, markup=False)


def print_json(value: object) -> None:
    """One JSON document on stdout, readable and stable in its order of keys."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # half a surrogate pair (a file name can have one), or a terminal without UTF-8
        text = json.dumps(value, indent=2, ensure_ascii=True)
    sys.stdout.write(text + "\n")


def print_error(error: EdgeOnnxError, *, as_json: bool) -> None:
    """An error without a traceback: where and what, expected, found, details, what to do."""
    if as_json:
        print_json(error.to_dict())
        return
    console = stderr()
    place = "" if error.where is None else f"{printable(error.where)}: "
    console.print(Text.assemble(("error", "bold red"), ": ", place, printable(error.message)))
    for label, value in (("expected", error.expected), ("found", error.found)):
        if value is not None:
            console.print(Text.assemble((f"  {label}: ", "dim"), printable(value)))
    for line in error.details:
        console.print(Text.assemble("  - ", printable(line)))
    if error.hint is not None:
        console.print(Text.assemble(("  hint: ", "cyan"), printable(error.hint)))


class Stages:
    """Draws the stages of a run: a live line while one runs, a finished line when it is done.

    Each event also looks whether the run was interrupted meanwhile.

    Args:
        quiet: Draw nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = stderr()
        self._quiet = quiet
        self._mark = "✓" if (self._console.encoding or "").startswith("utf") else "ok"
        # A pipe gets no moving line, also where FORCE_COLOR makes Rich take it for a terminal.
        live = self._console.is_terminal and sys.stderr.isatty() and not quiet
        self._live = _live_line(self._console) if live else None
        self._task = None if self._live is None else self._live.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, stage: str, about: str) -> None:
        """Show that a stage runs."""
        interrupt.check()
        if self._live is not None and self._task is not None:
            self._live.reset(self._task, description=f"{stage:<{NAME_WIDTH}} {about}", total=None, visible=True)

    def advanced(self, done: int, total: int) -> None:
        """Show how far it is."""
        interrupt.check()
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=done, total=total)

    def stepped(self, step: str, done: int, total: int) -> None:
        """Show a step of the stage: its progress on the live line, its result as a line that stays."""
        interrupt.check()
        if total == 0 and not self._quiet:
            self._console.print(Text.assemble(f"  {'':<{NAME_WIDTH}}", (printable(step), "dim")))
        elif self._live is not None and self._task is not None:
            self._live.update(
                self._task, description=f"{'':<{NAME_WIDTH}} {printable(step)}", completed=done, total=total
            )

    def finished(self, stage: str, result: str, seconds: float) -> None:
        """Leave a line about what came out of it."""
        interrupt.check()
        if self._live is not None and self._task is not None:
            self._live.update(self._task, visible=False)
        if not self._quiet:
            mark = Text.assemble(
                (f"{self._mark} ", "green"),
                (f"{stage:<{NAME_WIDTH}}", "bold"),
                f" {printable(result)}  ",
                (f"{seconds:.1f} s", "dim"),
            )
            self._console.print(mark)


def _live_line(console: Console) -> RichProgress:
    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def megabytes(size: int) -> str:
    """A size for people: decimal megabytes, or kilobytes below one."""
    return f"{size / 1e6:,.1f} MB" if size >= 1_000_000 else f"{size / 1e3:,.1f} kB"
