from __future__ import annotations

from device_agent.inference.queue.counts import Counts, Histogram
from device_agent.inference.queue.execution import Call


def test_a_bound_is_part_of_its_bucket_and_buckets_add_up_as_prometheus_wants_them() -> None:
    histogram = Histogram(bounds=(1, 4))
    for value in (1, 2, 4, 5, 100):
        histogram.add(value)
    assert histogram.buckets == [1, 2, 2]
    assert histogram.cumulative() == [("1", 1), ("4", 3), ("+Inf", 5)]
    assert (histogram.count, histogram.total) == (5, 112)


def test_a_copy_does_not_change() -> None:
    counts = Counts()
    before = counts.copy()
    counts.ran(Call(rows=2, tokens=5, padded=6, seconds=0.5))
    counts.ran(Call(rows=1, tokens=1, padded=1, seconds=0.5, alone=True))
    counts.refused("full", early=False)
    counts.refused("late", early=True)
    assert before == Counts()
    assert (counts.runs, counts.runs_alone, counts.rows_run, counts.tokens_run, counts.run_seconds) == (2, 1, 3, 6, 1.0)
    assert (counts.batch_rows.total, counts.batch_tokens.total) == (3, 7)
    assert (counts.refused_full, counts.refused_late, counts.refused_early) == (1, 1, 1)
