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
TIMES = st.floats(min_value=0, max_value=1e10)
REASONS = st.text(max_size=20)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(RELEASES)),
        st.tuples(st.just("step"), st.integers(0, 10)),
        st.tuples(st.just("block"), st.sampled_from(RELEASES)),
        st.tuples(st.just("revert"), st.just(None)),
        st.tuples(st.just("pin"), st.sampled_from((None, "1.0"))),
    ),
    max_size=40,
)


def after(state: SlotState, event: tuple[str, object]) -> SlotState:
    """The state after an event; the same one if the event cannot happen now."""
    kind, what = event
    if kind == "begin" and isinstance(what, Installed) and state.running is None:
        return begin(state, what, tries=3, now=1.0)
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


@settings(max_examples=150)
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
            entered = state.running is not None and state.running.state is AttemptState.PROBATION
            assert (entered and state.running.release == state.active) or state.active == before.previous
        if state.running is not None and state.running.state is AttemptState.PROBATION:
            assert state.active == state.running.release
        assert len({each.contents for each in state.blocked}) == len(state.blocked)
        assert SlotState.from_bytes(state.to_bytes()) == state


@settings(max_examples=50)
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
    version=st.from_regex(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,12}", fullmatch=True),
    contents=st.integers(0, (1 << 256) - 1).map(lambda number: f"{number:064x}"),
)
STATES = st.builds(
    SlotState,
    model=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True),
    active=st.none() | INSTALLED,
    previous=st.none() | INSTALLED,
    attempt=st.none()
    | st.builds(
        Attempt,
        release=INSTALLED,
        state=st.sampled_from(AttemptState),
        tries_left=st.integers(0, 100),
        reason=REASONS,
        since=TIMES,
    ),
    blocked=st.lists(
        st.builds(
            Blocked, contents=INSTALLED.map(lambda each: each.contents), version=st.just("1"), reason=REASONS, at=TIMES
        ),
        max_size=3,
    ).map(tuple),
    pin=st.none() | st.text(max_size=8),
    sequence=st.integers(0, 1 << 40),
)


@settings(max_examples=100)
@given(STATES)
def test_the_file_gives_every_state_back(state: SlotState) -> None:
    assert SlotState.from_bytes(state.to_bytes()) == state


@settings(max_examples=100)
@given(STATES, st.data())
def test_a_bit_that_flips_is_noticed(state: SlotState, data: st.DataObject) -> None:
    file = bytearray(state.to_bytes())
    place = data.draw(st.integers(0, len(file) - 1))
    file[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = SlotState.from_bytes(bytes(file))
    except EdgeOnnxError:
        return
    assert found == state, "white space, at most, may change"


@settings(max_examples=100)
@given(STATES, st.data())
def test_a_file_that_is_cut_or_filled_with_zeros_is_noticed(state: SlotState, data: st.DataObject) -> None:
    file = state.to_bytes()
    kept = data.draw(st.integers(0, len(file) - 2))
    for torn in (file[:kept], file[:kept].ljust(len(file), b"\0"), file[:kept] + file):
        if torn == file:
            continue
        with pytest.raises(EdgeOnnxError):
            SlotState.from_bytes(torn)


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_file_parses_or_gives_our_error(data: bytes) -> None:
    with pytest.raises(EdgeOnnxError):
        SlotState.from_bytes(data)


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
