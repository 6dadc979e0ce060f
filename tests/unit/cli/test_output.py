"""What is printed: plain when piped, one line stays one line, and no file's text reaches the terminal raw."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

from edgeonnx.cli import output, tables
from edgeonnx.cli.output import Stages, megabytes, print_error, print_json
from edgeonnx.errors import ManifestError, printable
from tests.support.cli import ESCAPE

HOSTILE = "a\x1b[31m\x07\nb\u202e\ud800"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_text_from_files_becomes_printable() -> None:
    assert printable(HOSTILE) == "a\\x1b[31m\\x07\\nb\\u202e\\ud800"
    assert printable("Zürich 東京 😀 ") == "Zürich 東京 😀 "
    assert printable(3) == "3"


def test_an_error_shows_every_part_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(
        ManifestError("m" * 300, where="w", expected="e", found="f", hint="h", details=("d1", "d2")), as_json=False
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: w: {'m' * 300}\n  expected: e\n  found: f\n  - d1\n  - d2\n  hint: h\n"


def test_an_error_with_hostile_parts_is_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(
        ManifestError(HOSTILE, where=HOSTILE, expected=HOSTILE, found=HOSTILE, hint=HOSTILE, details=(HOSTILE,)),
        as_json=False,
    )
    err = capsys.readouterr().err
    assert ESCAPE not in err
    assert len(err.splitlines()) == 5


def test_brackets_in_a_message_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ManifestError("[red]x[/red] [/]", where="files[3].sha256"), as_json=False)
    assert capsys.readouterr().err == "error: files[3].sha256: [red]x[/red] [/]\n"


def test_a_json_error_is_one_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ManifestError("m", where="w"), as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": "ManifestError", "message": "m", "where": "w"}
    assert err == ""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_survives_any_text_on_any_terminal(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    print_json({"text": HOSTILE + "東"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue().decode(encoding)) == {"text": HOSTILE + "東"}


def test_a_piped_table_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    table = tables.table("name", "type")
    tables.row(table, "n" * 300, "t" * 300)
    output.stdout().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["n" * 300, "t" * 300]


def test_cells_and_facts_are_text_and_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = tables.table("name")
    tables.row(table, f"[bold]{HOSTILE}")
    output.stdout().print(table)
    output.stdout().print(tables.facts({"labels": f"[bold]{HOSTILE}"}.items()))
    out = capsys.readouterr().out
    assert ESCAPE not in out
    assert out.count("[bold]a\\x1b") == 2


def test_stages_leave_one_plain_line_each_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    with Stages() as stages:
        stages.started("load", "about")
        stages.advanced(1, 2)
        stages.finished("load", "12 files", 1.25)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "✓ load       12 files  1.2 s\n"


def test_quiet_stages_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Stages(quiet=True) as stages:
        stages.started("load", "about")
        stages.finished("load", "12 files", 1.25)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_live_line_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Stages() as stages:
        stages.started("load", "about it")
        stages.finished("load", "done", 0.1)
    assert ESCAPE in terminal.getvalue()
    assert "load" in terminal.getvalue()


def test_no_color_on_a_terminal_gives_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    print_error(ManifestError("m", hint="h"), as_json=False)
    assert not any(f"{ESCAPE}[{style}" in terminal.getvalue() for style in ("1;31m", "31m", "36m"))


def test_force_color_in_a_pipe_colours_but_does_not_move_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Stages() as stages:
        stages.started("load", "about it")
        stages.finished("load", "done", 0.1)
    err = capsys.readouterr().err
    assert f"{ESCAPE}[32m" in err
    assert not any(move in err for move in (f"{ESCAPE}[2K", f"{ESCAPE}[1A", f"{ESCAPE}[?25l", "\r"))
    assert "about it" not in err


def test_a_terminal_without_utf8_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    with Stages() as stages:
        stages.finished("load", "done", 0.1)
    assert raw.getvalue().decode("ascii").split() == ["ok", "load", "done", "0.1", "s"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0 kB"), (999_949, "999.9 kB"), (1_000_000, "1.0 MB"), (90_868_376, "90.9 MB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert megabytes(size) == text


def test_both_consoles_write_where_they_should(capsys: pytest.CaptureFixture[str]) -> None:
    for console in (output.stdout(), output.stderr()):
        assert isinstance(console, Console)
        console.print("x")
    assert capsys.readouterr() == ("x\n", "x\n")
