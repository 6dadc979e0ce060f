"""What is seen of the requests of each installed version: counted as they are answered, kept in little memory.

It belongs to the event loop's thread, as the metrics do. A version is known by its bundle's digest.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING

from device_agent.supervision.probation import Baseline, Seen

if TYPE_CHECKING:
    from collections.abc import Collection

    from device_agent.api.monitoring.generation import Generated
    from device_agent.models.loaded import LoadedModel

KEPT = 512
"""Last requests of a version that are kept: enough for a median, and recent."""


class Requests:
    """The requests of one version.

    Attributes:
        requests: Requests that were answered, or were faults.
        faults: Those that were faults.
    """

    __slots__ = ("_each", "_faulty", "_first", "_seconds", "faults", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.faults = 0
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._first: deque[float] = deque(maxlen=KEPT)
        self._each: deque[float] = deque(maxlen=KEPT)
        self._faulty: deque[bool] = deque(maxlen=KEPT)

    def answered(self, seconds: float) -> None:
        """Count an answer that took so long, without the wait for a runner."""
        self.requests += 1
        self._seconds.append(seconds)
        self._faulty.append(False)

    def generated(self, first_token: float | None, each_token: float | None) -> None:
        """Count a sequence: the seconds to its first token without the wait for a place, and of each further one."""
        self.requests += 1
        self._faulty.append(False)
        if first_token is not None:
            self._first.append(first_token)
        if each_token is not None:
            self._each.append(each_token)

    def faulted(self) -> None:
        """Count a fault."""
        self.requests += 1
        self.faults += 1
        self._faulty.append(True)

    def recent_faults(self, last: int) -> int:
        """Faults among the last requests (at most `KEPT`)."""
        return sum(list(self._faulty)[-last:])

    def baseline(self, least: int) -> Baseline:
        """What the next version is measured against.

        Args:
            least: Answers below which the times are not judged.
        """
        known = len(self._faulty)
        return Baseline(
            faults=sum(self._faulty) / known if known >= least else 0.0,
            median=_median(self._seconds, least),
            first_token=_median(self._first, least),
            each_token=_median(self._each, least),
        )

    def seen(self, *, seconds: float, last: int, idle_seconds: float) -> Seen:
        """What the verdict over this version needs."""
        return Seen(
            seconds=seconds,
            requests=self.requests,
            faults=self.faults,
            recent_faults=self.recent_faults(last),
            median=_median(self._seconds),
            first_token=_median(self._first),
            each_token=_median(self._each),
            idle_seconds=idle_seconds,
        )


def _median(times: deque[float], least: int = 1) -> float | None:
    """The median; None of fewer than `least` times."""
    return statistics.median(times) if len(times) >= max(1, least) else None


class Watch:
    """The requests of all versions, told by the metrics."""

    def __init__(self) -> None:
        self._versions: dict[str, Requests] = {}

    def of(self, contents: str) -> Requests:
        """The requests of a version; they begin at 0."""
        found = self._versions.get(contents)
        if found is None:
            found = self._versions[contents] = Requests()
        return found

    def begin(self, contents: str) -> None:
        """Count a version anew: its probation begins."""
        self._versions[contents] = Requests()

    def keep(self, contents: Collection[str]) -> None:
        """Forget all other versions."""
        self._versions = {key: value for key, value in self._versions.items() if key in contents}

    def answered(self, loaded: LoadedModel, seconds: float) -> None:
        """Count an answered request."""
        self.of(loaded.bundle.digest).answered(seconds)

    def generated(self, loaded: LoadedModel, sequence: Generated) -> None:
        """Count a sequence that came to its end."""
        self.of(loaded.bundle.digest).generated(sequence.prompt_seconds, sequence.token_seconds)

    def faulted(self, loaded: LoadedModel) -> None:
        """Count a request that failed for a reason of the agent's own."""
        self.of(loaded.bundle.digest).faulted()


class Progress:
    """Whether a model that has work finishes runs.

    Args:
        now: Seconds of a clock that never jumps.
    """

    def __init__(self, now: float) -> None:
        self._finished = -1
        self._since = now

    def look(self, loaded: LoadedModel, now: float) -> float:
        """Seconds for which it has had work without finishing a run."""
        work = loaded.work()
        if work.finished != self._finished or not work.busy:
            self._finished, self._since = work.finished, now
        return now - self._since
