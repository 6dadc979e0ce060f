"""The verdict over a version on probation, for whatever was seen."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from device_agent.config import UpdateConfig
from device_agent.supervision.probation import HUNG_SECONDS, Baseline, Outcome, Seen, judge
from device_agent.supervision.watch import Requests

limits = st.builds(
    UpdateConfig,
    probation_seconds=st.floats(0, 3600),
    probation_requests=st.integers(1, 200),
    probation_errors=st.floats(0, 1),
    probation_latency=st.floats(1, 100),
)
times = st.floats(0.0001, 10)
baselines = st.builds(Baseline, faults=st.floats(0, 1), median=st.none() | times)
histories = st.lists(st.none() | times, max_size=300)
"""Each request in turn: None: a fault, else the seconds of its answer."""


def seen_of(history: list[float | None], seconds: float, limit: UpdateConfig, idle: float = 0.0) -> Seen:
    requests = Requests()
    for each in history:
        if each is None:
            requests.faulted()
        else:
            requests.answered(each)
    return requests.seen(seconds=seconds, last=limit.probation_requests, idle_seconds=idle)


@given(limits, baselines, st.lists(times, max_size=50), st.floats(0, 7200))
def test_a_version_that_is_no_worse_than_the_one_before_stays(
    limit: UpdateConfig, before: Baseline, history: list[float], seconds: float
) -> None:
    no_slower: list[float | None] = [each if before.median is None else min(each, before.median) for each in history]
    outcome = judge(limit, before, seen_of(no_slower, seconds, limit)).outcome
    assert outcome is (Outcome.COMMIT if seconds >= limit.probation_seconds else Outcome.WAIT)


@given(limits, baselines, histories, st.floats(0, 7200), st.floats(0, 100))
def test_a_verdict_is_commit_only_at_the_end_and_has_a_reason_if_it_goes_back(
    limit: UpdateConfig, before: Baseline, history: list[float | None], seconds: float, idle: float
) -> None:
    verdict = judge(limit, before, seen_of(history, seconds, limit, idle))
    assert bool(verdict.reason) == (verdict.outcome is Outcome.ROLL_BACK)
    if verdict.outcome is Outcome.COMMIT:
        assert seconds >= limit.probation_seconds
    if idle >= HUNG_SECONDS:
        assert verdict.outcome is Outcome.ROLL_BACK


@given(limits, histories, st.integers(1, 200), st.floats(0, 100))
def test_a_version_that_fails_every_request_goes_back_after_so_many(
    limit: UpdateConfig, history: list[float | None], extra: int, seconds: float
) -> None:
    strict = replace(limit, probation_errors=min(limit.probation_errors, 0.4))
    # However well it did before, as many faults in a row as requests are judged are enough.
    failing = [*history, *[None] * (strict.probation_requests + extra)]
    assert judge(strict, Baseline(), seen_of(failing, seconds, strict)).outcome is Outcome.ROLL_BACK


@given(limits, baselines, histories, st.floats(0, 7200))
def test_one_more_fault_never_saves_a_version_that_fails_too_often(
    limit: UpdateConfig, before: Baseline, history: list[float | None], seconds: float
) -> None:
    # Times are left out: they are not judged while too few requests are answered.
    unknown = replace(before, median=None)
    if judge(limit, unknown, seen_of(history, seconds, limit)).outcome is Outcome.ROLL_BACK:
        assert judge(limit, unknown, seen_of([*history, None], seconds, limit)).outcome is Outcome.ROLL_BACK
