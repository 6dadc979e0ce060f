"""Histograms: counts of values between fixed bounds, as Prometheus takes them; and those of the last minute."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Histogram:
    """How many values fell between fixed bounds. Not locked: each belongs to one thread, or to its owner's lock.

    Args:
        bounds: Upper bounds, inclusive, ascending; what is above the last has a place of its own.

    Attributes:
        bounds: The same.
        counts: Values in each place; one more than bounds.
        total: Sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Prometheus' buckets: each upper bound as text with the number of values up to it, `+Inf` last."""
        found, number = [], 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            number += count
            found.append(("+Inf" if bound is None else repr(float(bound)), number))
        return found


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which a share of the values lies, as exactly as the bounds tell.

    Values are taken as spread evenly between two bounds, as Prometheus' `histogram_quantile` takes them.

    Args:
        bounds: Upper bounds, ascending, the first above 0.
        counts: Values in each place; one more than bounds.
        share: 0.0 to 1.0.

    Returns:
        The value; the last bound if it lies above that; None without values.
    """
    wanted = share * sum(counts)
    if not any(counts):
        return None
    below, low = 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * max(0.0, wanted - below) / count
        below, low = below + count, bound
    return bounds[-1]


class RecentValues:
    """What happened in the last minute: values in a histogram, and two sums, second by second.

    Attributes:
        bounds: Upper bounds of the histogram.
    """

    SECONDS = 60

    __slots__ = ("_seconds", "_slots", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._seconds = [-1] * self.SECONDS
        # Of each second the counts of the histogram, and behind them rows and tokens.
        self._slots = [[0] * (len(self.bounds) + 3) for _ in range(self.SECONDS)]

    def add(self, now: float, value: float, rows: int, tokens: int) -> None:
        """Count an event.

        Args:
            now: When, in seconds of a clock that never goes back.
            value: Its value, for the histogram.
            rows: Its rows.
            tokens: Its tokens.
        """
        second = int(now)
        place = second % self.SECONDS
        slot = self._slots[place]
        if self._seconds[place] != second:
            self._seconds[place] = second
            slot[:] = [0] * len(slot)
        slot[bisect_left(self.bounds, value)] += 1
        slot[-2] += rows
        slot[-1] += tokens

    def counts(self, now: float) -> list[int]:
        """The histogram of the last minute, the running second included."""
        places = len(self.bounds) + 1
        return [sum(column) for column in zip(*(slot[:places] for slot in self._recent(now)), strict=True)] or [
            0
        ] * places

    def per_second(self, now: float) -> list[int]:
        """Events in each of the last 60 complete seconds, the oldest first."""
        last = int(now)
        found = []
        for second in range(last - self.SECONDS, last):
            place = second % self.SECONDS
            found.append(sum(self._slots[place][:-2]) if self._seconds[place] == second else 0)
        return found

    def rates(self, now: float, seconds: int) -> tuple[float, float, float]:
        """Events, rows and tokens a second, over the last complete `seconds` (fewer than 60)."""
        last = int(now)
        slots = [
            self._slots[second % self.SECONDS]
            for second in range(last - seconds, last)
            if self._seconds[second % self.SECONDS] == second
        ]
        events = sum(sum(slot[:-2]) for slot in slots)
        return (
            events / seconds,
            sum(slot[-2] for slot in slots) / seconds,
            sum(slot[-1] for slot in slots) / seconds,
        )

    def _recent(self, now: float) -> Iterable[list[int]]:
        oldest = int(now) - self.SECONDS
        return [slot for second, slot in zip(self._seconds, self._slots, strict=True) if second > oldest]
