"""Updates, one after the other, for as long as the agent serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from device_agent.supervision.schedule import first_wait, next_wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.supervision.runs import UpdateRuns

ENROLMENT_SECONDS = 5.0
"""How often a device that is not enrolled looks whether it is by now."""

logger = logging.getLogger("edgeonnx.supervision")


class Rounds:
    """Begins an update again and again. It belongs to the event loop's thread.

    Args:
        runs: Begins one update.
        interval: `update.interval_seconds`; 0: something else begins updates.
        clock: Seconds of a clock that never jumps.
        chance: Random numbers from 0.0 to 1.0.

    Attributes:
        next: When the next update begins, by `clock`; None: none is planned.
    """

    def __init__(
        self, runs: UpdateRuns, interval: float, *, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self.next: float | None = None
        self._runs = runs
        self._interval = interval
        self._clock = clock
        self._chance = chance
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Let the next update begin now."""
        self._hurried.set()

    async def run(self, *, lacking: bool) -> None:
        """Begin updates until this is cancelled.

        Args:
            lacking: Something that should serve does not: the first update begins at once.
        """
        if self._interval == 0:
            return
        wait = first_wait(self._interval, self._chance(), installed=not lacking)
        failures = 0
        while True:
            self.next = self._clock() + wait
            await self._wait(wait)
            self.next = None
            if not self._runs.enrolled:
                wait = min(self._interval, ENROLMENT_SECONDS)
                continue
            try:
                failures = 0 if (await self._runs.once()).outcome == "ok" else failures + 1
            except Exception:  # whatever it is, the models are looked after all the same
                logger.exception("the update could not be begun")
                failures += 1
            wait = next_wait(self._interval, self._chance(), failures=failures)

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        self._hurried.clear()
