"""A model's state over every sequence of events, and its file under every small damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.slots.state import (
    MAX_BLOCKED,
    Attempt,
    Blocked,
    Installed,
    SlotState,
    begin,
    block,
    revert,
    step,
)
from device_agent.slots.states import FINAL, TRANSITIONS, AttemptState
from edgeonnx.errors import EdgeOnnxError

RELEASES = tuple(Installed(version=f"1.{number}", contents=f"{number:x}" * 64) for number in range(5))
TO_PROBATION = (AttemptState.STAGED, AttemptState.CANDIDATE, AttemptState.PROVEN, AttemptState.PROBATION)
TIMES = st.floats(min_value=0, max_value=1e10)
REASONS = st.text(max_size=20)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(RELEASES)),
        st.tuples(st.just("step"), st.integers(0, 10)),
        st.tuples(st.just("prove"), st.sampled_from(RELEASES)),
        st.tuples(st.just("block"), st.sampled_from(RELEASES)),
        st.tuples(st.just("revert"), st.just(None)),
        st.tuples(st.just("pin"), st.sampled_from((None, "1.0"))),
    ),
    max_size=40,
)


def after(state: SlotState, event: tuple[str, object]) -> SlotState:
    """The state after an event; the same one if the event cannot happen now."""
    kind, what = event
    if kind in ("begin", "prove") and isinstance(what, Installed) and state.running is None:
        if what == state.active:
            return state  # the policy keeps what is active
        state = begin(state, what, tries=3, now=1.0)
        for to in TO_PROBATION if kind == "prove" else ():
            state = step(state, to, now=1.0)
        return state
    if kind == "step" and isinstance(what, int) and state.running is not None:
        following = sorted(TRANSITIONS[state.running.state], key=lambda each: each.value)
        return step(state, following[what % len(following)], now=2.0, reason="why")
    if kind == "block" and isinstance(what, Installed):
        return block(state, what, reason="by hand", now=3.0)
    if kind == "revert" and state.active is not None and state.previous is not None:
        return revert(state, reason="by hand", now=4.0)
    if kind == "pin":
        return replace(state, pin=what if isinstance(what, str) else None)
    return state


@settings(max_examples=60)
@given(EVENTS)
def test_no_sequence_of_events_loses_what_serves(events: list[tuple[str, object]]) -> None:
    state = SlotState(model="tiny", active=RELEASES[0])
    for event in events:
        before, state = state, after(state, event)
        assert state.active is not None
        kept = {each.contents for each in (state.active, state.previous) if each}
        if state.running is not None:
            kept.add(state.running.release.contents)
        assert state.in_use() == kept
        if state.active != before.active:
            # What takes over was proven and begins its probation, or served before.
            running = state.running
            entered = running is not None and running.state is AttemptState.PROBATION
            assert (entered and running is not None and running.release == state.active) or (
                state.active == before.previous
            )
        if state.running is not None and state.running.state is AttemptState.PROBATION:
            assert state.active == state.running.release
        assert len({each.contents for each in state.blocked}) == len(state.blocked)
        assert SlotState.from_bytes(state.to_bytes()) == state


@settings(max_examples=30)
@given(EVENTS)
def test_from_nothing_only_a_first_release_that_failed_leaves_nothing(events: list[tuple[str, object]]) -> None:
    state = SlotState(model="tiny")
    for event in events:
        before, state = state, after(state, event)
        if before.active is not None and state.active is None:
            assert before.previous is None
            assert state.attempt is not None
            assert state.attempt.state is AttemptState.ROLLED_BACK


INSTALLED = st.builds(
    Installed,
    version=st.sampled_from(("1", "1.0.0", "2.0-rc.1+build.7")),
    contents=st.integers(0, (1 << 256) - 1).map(lambda number: f"{number:064x}"),
)
ATTEMPTS = st.builds(
    Attempt,
    release=INSTALLED,
    state=st.sampled_from(AttemptState),
    tries_left=st.integers(0, 100),
    reason=REASONS,
    since=TIMES,
)
STATES = st.builds(
    SlotState,
    model=st.sampled_from(("m", "mini-lm_6.v2")),
    active=st.none() | INSTALLED,
    previous=st.none() | INSTALLED,
    attempt=st.none() | ATTEMPTS,
    blocked=st.lists(
        st.builds(
            Blocked, contents=INSTALLED.map(lambda each: each.contents), version=st.just("1"), reason=REASONS, at=TIMES
        ),
        max_size=3,
    ).map(tuple),
    pin=st.none() | st.text(max_size=8),
    sequence=st.integers(0, 1 << 40),
)
FULL = block(
    step(
        begin(SlotState(model="tiny", active=RELEASES[0], previous=RELEASES[1]), RELEASES[2], tries=3, now=1.5),
        AttemptState.STAGED,
        now=2.5,
    ),
    RELEASES[3],
    reason="it gave other answers",
    now=3.5,
)


@settings(max_examples=50)
@given(STATES)
def test_the_file_gives_every_state_back(state: SlotState) -> None:
    assert SlotState.from_bytes(state.to_bytes()) == state


def test_every_bit_that_flips_is_noticed() -> None:
    file, unharmed = FULL.to_bytes(), 0
    for place in range(len(file)):
        for bit in (place % 8, (place + 3) % 8):
            flipped = bytearray(file)
            flipped[place] ^= 1 << bit
            try:
                found = SlotState.from_bytes(bytes(flipped))
            except EdgeOnnxError:
                continue
            assert found == FULL
            unharmed += 1  # white space that became other white space
    assert unharmed < 100


def test_a_file_that_is_cut_or_filled_with_zeros_is_noticed() -> None:
    file = FULL.to_bytes()
    for kept in range(len(file) - 1):
        for torn in (file[:kept], file[:kept].ljust(len(file), b"\0"), file[:kept] + file):
            if kept == 0 and torn == file:
                continue
            with pytest.raises(EdgeOnnxError):
                SlotState.from_bytes(torn)


@settings(max_examples=50)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_file_parses_or_gives_our_error(data: bytes) -> None:
    with pytest.raises(EdgeOnnxError):
        SlotState.from_bytes(data)


@settings(max_examples=10)
@given(st.lists(st.integers(0, 300), max_size=40))
def test_what_is_blocked_is_bounded_and_the_newest_stays(numbers: list[int]) -> None:
    state = SlotState(model="tiny")
    for number in (*range(MAX_BLOCKED), *numbers):
        release = Installed(version="1", contents=f"{number:064x}")
        state = block(state, release, reason="", now=0.0)
        assert state.is_blocked(release.contents)
        assert len(state.blocked) <= MAX_BLOCKED


def test_an_attempt_of_every_state_is_over_or_not() -> None:
    for each in AttemptState:
        state = SlotState(model="tiny", attempt=Attempt(release=RELEASES[1], state=each, tries_left=1))
        assert (state.running is None) == (each in FINAL)
        assert (RELEASES[1].contents in state.in_use()) == (each not in FINAL)
