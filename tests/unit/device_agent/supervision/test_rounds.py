"""When updates begin; time is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from device_agent.supervision.rounds import Rounds
from device_agent.supervision.runs import Run


class FakeRuns:
    """Enrolled from the third look on; then its updates end as `outcomes` says, an error being none that began."""

    def __init__(self, *outcomes: str | None) -> None:
        self.outcomes = list(outcomes)
        self.looks = 0

    @property
    def enrolled(self) -> bool:
        self.looks += 1
        return self.looks > 2

    async def once(self) -> Run:
        outcome = self.outcomes.pop(0)
        if outcome is None:
            raise OSError("no memory for a process")
        return Run(outcome=outcome, began=0.0, seconds=0.0)


def rounds_of(runs: Any, interval: float = 3600.0) -> Rounds:
    return Rounds(runs, interval, clock=lambda: 1000.0, chance=lambda: 0.5)


def test_updates_are_begun_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FakeRuns("ok", "unreachable", None, "ok")
    waits: list[float] = []

    async def scenario() -> None:
        rounds = rounds_of(runs)

        async def wait(seconds: float) -> None:
            waits.append(seconds)
            assert rounds.next == 1000.0 + seconds
            if not runs.outcomes:
                raise asyncio.CancelledError

        monkeypatch.setattr(rounds, "_wait", wait)
        with pytest.raises(asyncio.CancelledError):
            await rounds.run(lacking=False)

    asyncio.run(scenario())
    assert waits == [30.0, 5.0, 5.0, 3600.0, 30.0, 60.0, 3600.0]


def test_where_something_lacks_the_first_update_begins_at_once_and_a_hurried_one_does_not_wait() -> None:
    runs = FakeRuns("ok", "ok")
    runs.looks = 2

    async def scenario() -> None:
        rounds = rounds_of(runs)
        going = asyncio.ensure_future(rounds.run(lacking=True))
        for left in (1, 0):
            async with asyncio.timeout(5):
                while len(runs.outcomes) > left:
                    await asyncio.sleep(0)
            for _ in range(20):  # it waits for an hour now
                await asyncio.sleep(0)
            assert (len(runs.outcomes), rounds.next) == (left, 4600.0)
            if left:
                rounds.hurry()
        going.cancel()

    asyncio.run(scenario())


def test_where_something_else_begins_updates_nothing_is_begun() -> None:
    asyncio.run(rounds_of(FakeRuns(), 0.0).run(lacking=True))
