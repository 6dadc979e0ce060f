"""What a batcher did so far, in numbers that only grow: the material of metrics. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_agent.inference.queue.execution import Call

ROW_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKEN_BOUNDS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(kw_only=True)
class Histogram:
    """Counts of values by size, as Prometheus' histograms are built of.

    Attributes:
        bounds: Upper bounds of the buckets, each included in its bucket.
        buckets: Values in each bucket alone, not in those below it; the last one holds what exceeds every bound.
        total: Sum of all values.
    """

    bounds: tuple[int, ...]
    buckets: list[int] = field(default_factory=list)
    total: int = 0

    def __post_init__(self) -> None:
        self.buckets = self.buckets or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """Number of all values."""
        return sum(self.buckets)

    def add(self, value: int) -> None:
        """Count a value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound as Prometheus' label `le`, with the number of values up to it; the last is "+Inf"."""
        pairs = []
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.buckets, strict=True):
            seen += count
            pairs.append((bound, seen))
        return pairs

    def copy(self) -> Histogram:
        """A copy that nothing changes any more."""
        return replace(self, buckets=list(self.buckets))


@dataclass(kw_only=True)
class Counts:
    """What happened in a batcher since it was made.

    Attributes:
        accepted: Requests that joined the queue.
        answered: Requests that were answered with a result.
        failed: Requests of which a run failed.
        refused_full: Requests that were refused because too many tokens waited.
        refused_late: Requests that were refused because the answer could not come in time.
        refused_early: Those of them that were refused before their body was parsed.
        expired: Requests whose time was over before their answer was ready.
        cancelled: Requests whose client left before its answer was ready.
        rows_run: Rows that were run.
        rows_dropped: Rows that were never run, as nobody waited for them any more.
        runs: Calls of the runtime.
        runs_alone: Calls for one request each after a batch of several had failed.
        run_seconds: Time in the runtime, of all runners.
        tokens_run: Tokens that were run, without padding.
        batch_rows: Rows of each call.
        batch_tokens: Longest row x rows of each call.
    """

    accepted: int = 0
    answered: int = 0
    failed: int = 0
    refused_full: int = 0
    refused_late: int = 0
    refused_early: int = 0
    expired: int = 0
    cancelled: int = 0
    rows_run: int = 0
    rows_dropped: int = 0
    runs: int = 0
    runs_alone: int = 0
    run_seconds: float = 0.0
    tokens_run: int = 0
    batch_rows: Histogram = field(default_factory=lambda: Histogram(bounds=ROW_BOUNDS))
    batch_tokens: Histogram = field(default_factory=lambda: Histogram(bounds=TOKEN_BOUNDS))

    def refused(self, reason: str, *, early: bool) -> None:
        """Count a refusal, for the reason that `admission.Refusal` gives."""
        if reason == "full":
            self.refused_full += 1
        else:
            self.refused_late += 1
        self.refused_early += early

    def ran(self, call: Call) -> None:
        """Count a call of the runtime."""
        self.runs += 1
        self.runs_alone += call.alone
        self.run_seconds += call.seconds
        self.rows_run += call.rows
        self.tokens_run += call.tokens
        self.batch_rows.add(call.rows)
        self.batch_tokens.add(call.padded)

    def copy(self) -> Counts:
        """A copy that nothing changes any more."""
        return replace(self, batch_rows=self.batch_rows.copy(), batch_tokens=self.batch_tokens.copy())
