from __future__ import annotations

import pytest

from device_agent.api.monitoring.histogram import Histogram, RecentValues, quantile


def test_bounds_are_inclusive_and_the_last_place_has_none() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 5):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.total == 12
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 3), ("4.0", 4), ("+Inf", 5)]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([10, 0, 0, 0], 0.5, 0.5),
        ([0, 10, 0, 0], 0.5, 1.5),
        ([0, 0, 10, 0], 1.0, 4.0),
        ([5, 0, 5, 0], 0.5, 1.0),
        ([5, 0, 5, 0], 0.75, 3.0),
        ([1, 0, 0, 9], 0.99, 4.0),
        ([0, 0, 0, 1], 0.5, 4.0),
    ],
)
def test_quantiles_lie_between_the_bounds(counts: list[int], share: float, value: float | None) -> None:
    assert quantile((1.0, 2.0, 4.0), counts, share) == value


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    recent = RecentValues((1.0,))
    assert recent.counts(0.0) == [0, 0]
    recent.add(100.2, 0.5, 2, 10)
    recent.add(100.9, 3.0, 1, 5)
    recent.add(130.0, 0.5, 1, 5)
    assert recent.counts(130.5) == [2, 1]
    assert recent.counts(159.9) == [2, 1]
    assert recent.counts(160.0) == [1, 0]
    assert recent.counts(189.9) == [1, 0]
    assert recent.counts(190.0) == [0, 0]


def test_a_second_that_comes_again_begins_at_nothing() -> None:
    recent = RecentValues((1.0,))
    recent.add(5.0, 0.5, 1, 1)
    recent.add(65.0, 0.5, 7, 70)
    assert recent.counts(65.0) == [1, 0]
    assert recent.rates(66.0, 10) == (0.1, 0.7, 7.0)


def test_rates_and_history_leave_the_running_second_out() -> None:
    recent = RecentValues((1.0,))
    for at in (10.0, 11.0, 11.5, 12.9):
        recent.add(at, 0.1, 2, 20)
    assert recent.rates(12.95, 2) == (1.5, 3.0, 30.0)
    assert recent.per_second(12.95)[-3:] == [0, 1, 2]
    assert recent.per_second(13.0)[-3:] == [1, 2, 1]
    assert sum(recent.per_second(500.0)) == 0
