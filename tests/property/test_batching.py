from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from device_agent.inference.queue.admission import Pace, decide, predict
from device_agent.inference.queue.batching import WaitingRows

REQUESTS = st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=6), min_size=1, max_size=20)
BUDGETS = st.integers(1, 1200)
CALLS = st.sampled_from([0, 1, 12, 100, 5000])
RUNNERS = st.integers(1, 4)


def filled(requests: list[list[int]], call_tokens: int) -> WaitingRows:
    waiting = WaitingRows(call_tokens=call_tokens)
    for key, lengths in enumerate(requests):
        waiting.add(key, np.array(lengths, dtype=np.int64))
    return waiting


@given(REQUESTS, BUDGETS, CALLS, RUNNERS)
def test_every_row_comes_exactly_once_and_batches_keep_the_budget(
    requests: list[list[int]], budget: int, call_tokens: int, runners: int
) -> None:
    waiting = filled(requests, call_tokens)
    came: list[tuple[int, int]] = []
    while pieces := waiting.take(budget, runners=runners, least=16):
        rows = [(piece.key, row) for piece in pieces for row in piece.rows]
        lengths = [requests[key][row] for key, row in rows]
        assert len(rows) == 1 or max(lengths) * len(rows) <= budget
        for piece in pieces:
            own = [requests[piece.key][row] for row in piece.rows]
            assert (piece.width, piece.tokens, piece.rows) == (max(own), sum(own), sorted(piece.rows))
        came += rows
        left = [requests[key][row] for key, row in set(_all(requests)) - set(came)]
        assert (waiting.rows, waiting.tokens) == (len(left), sum(left))
    assert sorted(came) == sorted(_all(requests))
    assert len(waiting) == 0


def _all(requests: list[list[int]]) -> list[tuple[int, int]]:
    return [(key, row) for key, lengths in enumerate(requests) for row in range(len(lengths))]


@given(REQUESTS, REQUESTS, BUDGETS, CALLS, RUNNERS)
def test_a_row_comes_after_at_most_as_many_batches_as_there_were_older_rows(
    requests: list[list[int]], later: list[list[int]], budget: int, call_tokens: int, runners: int
) -> None:
    waiting = filled(requests, call_tokens)
    # Older first: by request, and within a request the longest first.
    age = sorted(_all(requests), key=lambda row: (row[0], -requests[row[0]][row[1]]))
    came_in: dict[tuple[int, int], int] = {}
    batch = 0
    while not came_in.keys() >= set(age):
        for piece in waiting.take(budget, runners=runners, least=16):
            for row in piece.rows:
                came_in[piece.key, row] = batch
        # Whatever comes meanwhile is younger, and changes nothing.
        if batch < len(later):
            waiting.add(1000 + batch, np.array(later[batch], dtype=np.int64))
        batch += 1
    # Rows of one request and one length are of one age; so look at the last of them.
    for key, row in age:
        length = requests[key][row]
        older = sum(1 for other, at in age if (other, -requests[other][at]) <= (key, -length))
        assert came_in[key, row] < older


@given(REQUESTS, st.data(), BUDGETS)
def test_removed_requests_leave_no_trace(requests: list[list[int]], data: st.DataObject, budget: int) -> None:
    waiting = filled(requests, 12)
    waiting.take(budget)
    removed = data.draw(st.sets(st.integers(0, len(requests) - 1)))
    for key in removed:
        waiting.remove(key)
    while pieces := waiting.take(budget):
        assert not removed & {piece.key for piece in pieces}
    assert (waiting.rows, waiting.tokens, len(waiting)) == (0, 0, 0)


TOKENS = st.integers(1, 5000)
SECONDS = st.floats(0.001, 60)


@st.composite
def paces(draw: st.DrawFn) -> tuple[Pace, float]:
    """A pace after some batches, and the time on its clock."""
    pace = Pace(runners=draw(st.integers(1, 4)), call_tokens=12, budget=512)
    now = 0.0
    for _ in range(draw(st.integers(0, 6))):
        runner = draw(st.integers(0, pace.runners - 1))
        padded = draw(st.integers(1, 600))
        pace.begin(runner, padded=padded, now=now)
        now += draw(st.floats(0.0001, 2))
        tokens = draw(st.integers(1, padded))
        pace.end(runner, tokens=tokens, now=now, full=draw(st.booleans()), failed=draw(st.booleans()))
    for runner in range(draw(st.integers(0, pace.runners))):
        pace.begin(runner, padded=draw(st.integers(1, 600)), now=now)
    return pace, now + draw(st.floats(0, 5))


@given(paces(), TOKENS, SECONDS)
def test_an_idle_model_takes_every_request(state: tuple[Pace, float], tokens: int, seconds: float) -> None:
    pace, now = state
    for runner in range(pace.runners):
        pace.end(runner, tokens=1, now=now, full=False, failed=True)
    assert decide(tokens, seconds=seconds, waiting=0, max_tokens=1, pace=pace, now=now) is None


@given(paces(), TOKENS, st.integers(0, 5000))
def test_an_empty_queue_is_never_full_and_an_endless_time_is_never_short(
    state: tuple[Pace, float], tokens: int, waiting: int
) -> None:
    pace, now = state
    assert decide(tokens, seconds=None, waiting=0, max_tokens=1, pace=pace, now=now) is None
    refusal = decide(tokens, seconds=None, waiting=waiting, max_tokens=3000, pace=pace, now=now)
    assert (refusal is not None) == (waiting > 0 and waiting + tokens > 3000)


@given(paces(), TOKENS, TOKENS, SECONDS, st.integers(0, 5000), st.integers(0, 5000))
def test_more_ahead_never_helps(
    state: tuple[Pace, float], tokens: int, more: int, seconds: float, waiting: int, ahead: int
) -> None:
    pace, now = state
    least = decide(tokens, seconds=seconds, waiting=waiting, max_tokens=6000, pace=pace, now=now)
    if least is not None:
        assert least.retry_after >= 0
        assert decide(tokens, seconds=seconds, waiting=waiting + ahead, max_tokens=6000, pace=pace, now=now)
        if least.reason == "full":
            assert decide(tokens + more, seconds=seconds, waiting=waiting, max_tokens=6000, pace=pace, now=now)
    wait, run = predict(tokens, waiting=waiting, pace=pace, now=now)
    later, longer = predict(tokens + more, waiting=waiting + ahead, pace=pace, now=now)
    assert later + longer >= (wait + run) * (1 - 1e-9)


@given(paces(), TOKENS, SECONDS, st.integers(1, 5000))
def test_a_longer_deadline_never_hurts(state: tuple[Pace, float], tokens: int, seconds: float, waiting: int) -> None:
    pace, now = state

    def refused(time: float) -> bool:
        return decide(tokens, seconds=time, waiting=waiting, max_tokens=1 << 30, pace=pace, now=now) is not None

    assert not refused(2 * seconds) or refused(seconds)


@given(paces(), TOKENS, st.floats(0.001, 1), st.integers(1, 5000))
def test_after_the_time_to_retry_the_request_may_join(
    state: tuple[Pace, float], tokens: int, seconds: float, waiting: int
) -> None:
    pace, now = state
    refusal = decide(tokens, seconds=seconds, waiting=waiting, max_tokens=1 << 30, pace=pace, now=now)
    if refusal is None:
        return
    # What the runners do in that time, at the measured pace, and nothing else has come.
    done = refusal.retry_after * pace.speed(now)
    left = max(0.0, waiting * pace.work_per_token + pace.running_work(now) - done) / pace.work_per_token
    idle = replace(pace)
    idle._runners = [replace(runner, running=0.0) for runner in pace._runners]
    idle._useful, idle._spent = pace._useful, pace._spent
    if idle.speed(now) < pace.speed(now):
        return
    assert decide(tokens, seconds=seconds * 1.000001, waiting=int(left), max_tokens=1 << 30, pace=idle, now=now) is None
