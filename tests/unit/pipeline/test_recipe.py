"""A request is checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.pipeline.progress import Silent, StageTimer
from edgeonnx.pipeline.recipe import STAGES, PackageRequest, stage_of


def request(**changes: str) -> PackageRequest:
    return PackageRequest(**{"source": "m", "name": "a", "version": "1", "out": Path("out"), **changes})  # type: ignore[arg-type]


def test_the_target_is_name_and_version() -> None:
    assert request(name="minilm", version="1.0.0").target == Path("out/minilm-1.0.0")


@pytest.mark.parametrize(("field", "value"), [("name", "../x"), ("name", "A"), ("version", ""), ("version", "1/2")])
def test_names_that_cannot_be_folders_are_refused(field: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(**{field: value})
    assert caught.value.where == f"--{field}"


@pytest.mark.parametrize("name", [name for name, _ in STAGES])
def test_every_stage_is_described(name: str) -> None:
    assert stage_of(name)[0] == name
    assert len(stage_of(name)[1]) > 20


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def started(self, stage: str, about: str) -> None:
        self.events.append(("started", stage))

    def advanced(self, done: int, total: int) -> None:
        self.events.append(("advanced", f"{done}/{total}"))

    def finished(self, stage: str, result: str, seconds: float) -> None:
        self.events.append(("finished", stage, result))


def test_stages_are_told_in_order_and_timed() -> None:
    timer = StageTimer(progress=Recorder())
    with timer.stage("load", "about") as stage:
        timer.progress.advanced(1, 2)
        stage.result = "done"
    assert timer.progress.events == [("started", "load"), ("advanced", "1/2"), ("finished", "load", "done")]  # type: ignore[attr-defined]
    assert list(timer.seconds) == ["load"]


def test_a_stage_that_fails_is_not_finished() -> None:
    timer = StageTimer(progress=Recorder())
    with pytest.raises(RuntimeError), timer.stage("load", "about"):
        raise RuntimeError
    assert timer.progress.events == [("started", "load")]  # type: ignore[attr-defined]
    assert timer.seconds == {}


def test_silence_takes_every_event() -> None:
    timer = StageTimer(progress=Silent())
    with timer.stage("load", "about"):
        timer.progress.advanced(1, 1)
