from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from device_agent.api.monitoring.generation import Generated
from device_agent.supervision.probation import Baseline
from device_agent.supervision.watch import KEPT, Progress, Requests, Watch
from device_agent.systemd import Work


def loaded(digest: str) -> Any:
    return SimpleNamespace(bundle=SimpleNamespace(digest=digest))


def test_the_median_is_of_the_last_answers_alone() -> None:
    requests = Requests()
    for _ in range(KEPT):
        requests.answered(9.0)
    for _ in range(KEPT):
        requests.answered(1.0)
    assert requests.seen(seconds=1.0, last=5, idle_seconds=0.0).median == 1.0
    assert requests.requests == 2 * KEPT


def test_faults_are_counted_as_a_whole_and_lately() -> None:
    requests = Requests()
    for _ in range(3):
        requests.faulted()
    for _ in range(4):
        requests.answered(0.5)
    requests.faulted()
    assert (requests.requests, requests.faults) == (8, 4)
    assert [requests.recent_faults(last) for last in (1, 2, 5, 8, 100)] == [1, 1, 1, 4, 4]
    seen = requests.seen(seconds=2.0, last=5, idle_seconds=1.5)
    assert (seen.seconds, seen.requests, seen.faults, seen.recent_faults) == (2.0, 8, 4, 1)
    assert (seen.median, seen.idle_seconds) == (0.5, 1.5)


def test_a_baseline_needs_enough_requests() -> None:
    requests = Requests()
    for _ in range(8):
        requests.answered(0.2)
    for _ in range(2):
        requests.faulted()
    assert requests.baseline(11) == Baseline()
    assert requests.baseline(10) == Baseline(faults=0.2)
    assert requests.baseline(8) == Baseline(faults=0.2, median=0.2)


def test_versions_are_apart_and_those_that_are_gone_are_forgotten() -> None:
    watch = Watch()
    watch.answered(loaded("a"), 1.0)
    watch.faulted(loaded("b"))
    assert (watch.of("a").requests, watch.of("a").faults) == (1, 0)
    assert (watch.of("b").requests, watch.of("b").faults) == (1, 1)
    watch.begin("b")
    assert watch.of("b").requests == 0
    watch.keep({"b"})
    assert watch.of("a").requests == 0


def test_progress() -> None:
    work = Work(busy=False, finished=0)
    model: Any = SimpleNamespace(work=lambda: work)
    progress = Progress(0.0)
    assert progress.look(model, 5.0) == 0.0  # idle
    work = Work(busy=True, finished=0)
    assert progress.look(model, 7.0) == pytest.approx(2.0)
    assert progress.look(model, 9.0) == pytest.approx(4.0)
    work = Work(busy=True, finished=1)
    assert progress.look(model, 10.0) == 0.0
    assert progress.look(model, 30.0) == pytest.approx(20.0)


def sequence(first: float | None, tokens: int = 11) -> Generated:
    return Generated(prompt_tokens=5, completion_tokens=tokens, queue=0.5, first=first, total=(first or 0.0) + 1.0)


def test_of_generated_text_the_first_token_and_each_further_one_are_timed() -> None:
    watch = Watch()
    for _ in range(3):
        watch.generated(loaded("a"), sequence(0.7))
    watch.generated(loaded("a"), sequence(0.9, tokens=1))
    watch.generated(loaded("a"), sequence(None, tokens=0))
    seen = watch.of("a").seen(seconds=1.0, last=5, idle_seconds=0.0)
    assert (seen.requests, seen.faults, seen.median) == (5, 0, None)
    assert seen.first_token == pytest.approx(0.2)  # without the wait for a place
    assert seen.each_token == pytest.approx(0.1)
    baseline = watch.of("a").baseline(4)
    assert baseline.first_token == pytest.approx(0.2)
    assert baseline.each_token is None  # only three of the five had a second token
    watch.faulted(loaded("a"))
    assert watch.of("a").baseline(4).faults == pytest.approx(1 / 6)
