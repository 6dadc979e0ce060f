"""When to wait, when to try again and when to give up: numbers in, numbers out."""

from __future__ import annotations

import pytest

from device_agent.update.transfer.pacing import LONGEST_WAIT_SECONDS, Progress, Retries, TokenBucket, longest_wait


def retries(most: int = 3, deadline: float = 1000.0, longest_retry_after: float = 10.0) -> Retries:
    return Retries(most=most, deadline=deadline, longest_retry_after=longest_retry_after)


def test_the_bound_of_the_wait_doubles_up_to_a_minute() -> None:
    assert [longest_wait(failures) for failures in (1, 2, 3, 4, 7, 8, 10_000)] == [1, 2, 4, 8, 60, 60, 60]
    assert LONGEST_WAIT_SECONDS == 60


def test_waits_are_drawn_from_the_whole_range() -> None:
    """Full jitter: no device waits a fixed part, so a fleet that failed at one moment does not come back at one."""
    for chance in (0.0, 0.25, 1.0):
        plan = retries()
        assert [plan.after(0.0, progress=False, chance=chance) for _ in range(3)] == [chance, 2 * chance, 4 * chance]


def test_tries_without_progress_come_to_an_end() -> None:
    plan = retries(most=2)
    assert [plan.after(0.0, progress=False, chance=0.5) for _ in range(3)] == [0.5, 1.0, None]
    assert retries(most=0).after(0.0, progress=False, chance=0.5) is None


def test_progress_begins_the_count_anew() -> None:
    plan = retries(most=2)
    for _ in range(50):
        assert plan.after(0.0, progress=True, chance=1.0) == 1.0
    assert plan.after(0.0, progress=False, chance=1.0) == 2.0
    assert plan.after(0.0, progress=False, chance=1.0) is None


def test_without_retries_not_even_progress_gives_one() -> None:
    assert retries(most=0).after(0.0, progress=True, chance=0.0) is None


def test_no_retry_after_the_deadline() -> None:
    assert retries(deadline=10).after(9.5, progress=True, chance=0.4) == 0.4
    assert retries(deadline=10).after(9.5, progress=True, chance=0.6) is None
    assert retries(deadline=10).after(11.0, progress=True, chance=0.0) is None


def test_the_wish_of_a_server_is_followed_within_bounds() -> None:
    assert retries().after(0.0, progress=False, chance=0.5, retry_after=10) == 10.5
    assert retries().after(0.0, progress=False, chance=0.5, retry_after=11) is None
    assert retries().after(0.0, progress=False, chance=0.5, retry_after=0) == 0.5


def test_a_server_that_sends_now_and_then_is_noticed_within_two_windows() -> None:
    progress = Progress(seconds=30, least=1000)
    verdicts = [progress.add(10, 100) for _ in range(3)]
    assert verdicts == [True, True, False]


def test_only_what_came_in_the_window_counts() -> None:
    progress = Progress(seconds=30, least=1000)
    assert progress.add(0.1, 1_000_000)
    assert progress.add(29.9, 1)  # the window is over, and much came in it
    assert not progress.add(30, 999)


def test_a_window_with_just_enough_is_enough_and_the_next_one_starts_at_nothing() -> None:
    progress = Progress(seconds=10, least=10)
    for _ in range(20):
        assert progress.add(5, 5)
    assert progress.add(5, 5)
    assert not progress.add(5, 4)


def test_time_in_which_nobody_waited_for_the_server_does_not_count() -> None:
    progress = Progress(seconds=30, least=1000)
    assert all(progress.add(0.0, 1) for _ in range(1000))


def test_the_mean_rate_is_the_limit_after_the_burst() -> None:
    bucket = TokenBucket(rate=100_000)
    now, size, count = 50.0, 10_000, 100
    started = now
    for _ in range(count):
        now += bucket.take(now, size)
    assert now - started == pytest.approx((count * size - bucket.burst) / 100_000)


def test_a_pause_saves_up_one_burst_and_no_more() -> None:
    bucket = TokenBucket(rate=100_000)
    assert bucket.take(0.0, 100_000) == 0
    assert bucket.take(0.0, 50_000) == 0.5
    assert bucket.take(10_000.0, 100_000) == 0
    assert bucket.take(10_000.0, 100_000) == 1


def test_two_that_share_a_bucket_get_half_each() -> None:
    bucket = TokenBucket(rate=1000)
    bucket.take(0.0, int(bucket.burst))
    assert bucket.take(0.0, 500) == 0.5
    assert bucket.take(0.0, 500) == 1.0


def test_a_rate_below_one_piece_still_lets_a_piece_through_at_once() -> None:
    bucket = TokenBucket(rate=10)
    assert bucket.take(0.0, 64 << 10) == 0
    assert bucket.take(0.0, 10) == 1


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(rate=1000)
    bucket.take(100.0, int(bucket.burst))
    assert bucket.take(50.0, 1000) == 1.0
