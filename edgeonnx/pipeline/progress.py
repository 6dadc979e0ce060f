"""How a pipeline tells what it is doing. The command line draws it; everyone else may ignore it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Progress(Protocol):
    """Receives the events of a run, in order."""

    def started(self, stage: str, about: str) -> None:
        """A stage begins; `about` says in a few words what it does."""

    def advanced(self, done: int, total: int) -> None:
        """The current stage has done `done` of `total` steps."""

    def stepped(self, step: str, done: int, total: int) -> None:
        """The current stage is at a step with a name of its own; `total` 0: it is a result worth a line."""

    def finished(self, stage: str, result: str, seconds: float) -> None:
        """The stage ended well; `result` says what came out of it."""


class Silent:
    """A progress that shows nothing."""

    def started(self, stage: str, about: str) -> None:
        """Ignore the event."""

    def advanced(self, done: int, total: int) -> None:
        """Ignore the event."""

    def stepped(self, step: str, done: int, total: int) -> None:
        """Ignore the event."""

    def finished(self, stage: str, result: str, seconds: float) -> None:
        """Ignore the event."""


@dataclass
class StageTimer:
    """Runs stages one after the other, reports them, and keeps how long each took."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def stage(self, name: str, about: str) -> Iterator[StageResult]:
        """One stage; set `result` on what is yielded. A stage that raises is not reported as finished."""
        self.progress.started(name, about)
        begin = time.perf_counter()
        outcome = StageResult()
        yield outcome
        self.seconds[name] = time.perf_counter() - begin
        self.progress.finished(name, outcome.result, self.seconds[name])


@dataclass
class StageResult:
    """What a stage says about its outcome."""

    result: str = ""
