"""A signal that a library swallowed still ends the run, at its next step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeonnx.cli import exits, interrupt
from edgeonnx.cli.main import app
from edgeonnx.cli.output import Stages
from edgeonnx.errors import ExportError
from edgeonnx.pipeline import run
from edgeonnx.pipeline.progress import StageTimer


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # nohup and background shells ignore some, and so would the program
    yield
    interrupt._received.clear()
    for number, handler in before.items():
        signal.signal(number, handler)


def swallow(number: signal.Signals) -> None:
    with pytest.raises(interrupt.Interrupted):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("quiet", [True, False])
def test_a_swallowed_signal_is_raised_at_the_end_of_the_stage(
    handlers: None, number: signal.Signals, quiet: bool
) -> None:
    interrupt.install()
    timer = StageTimer(progress=Stages(quiet=quiet))
    with pytest.raises(interrupt.Interrupted), timer.stage("export", "trace"):
        swallow(number)


def test_it_is_raised_within_a_stage_that_counts(handlers: None) -> None:
    interrupt.install()
    stages = Stages(quiet=True)
    stages.started("parity", "compare")
    stages.advanced(1, 2)
    swallow(signal.SIGTERM)
    with pytest.raises(interrupt.Interrupted):
        stages.advanced(2, 2)


def test_an_ignored_signal_stays_ignored(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt.install()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.raise_signal(signal.SIGHUP)
    interrupt.check()


def test_an_error_over_a_swallowed_signal_is_told_as_the_interrupt(
    handlers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        swallow(signal.SIGINT)
        raise ExportError("torch could not export the model")

    monkeypatch.setattr(run, "package", fail)
    interrupt.install()
    done = CliRunner().invoke(app, ["package", "x", "--name", "n", "--version", "1", "--out", str(tmp_path)])
    assert done.exit_code == exits.INTERRUPTED
    assert done.stderr == "interrupted; what was there before is unchanged\n"
