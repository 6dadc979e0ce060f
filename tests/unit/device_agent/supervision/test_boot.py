from __future__ import annotations

from dataclasses import replace

import pytest

from device_agent.slots.state import Attempt, Installed, SlotState
from device_agent.slots.states import AttemptState
from device_agent.supervision.boot import (
    Turn,
    after_failed_load,
    at_start,
    enter_probation,
    give_try_back,
    next_choice,
    next_turn,
    on_probation,
    wait_for_start,
)

OLD = Installed(version="1", contents="1" * 64)
NEW = Installed(version="2", contents="2" * 64)
OLDER = Installed(version="0", contents="0" * 64)
S = AttemptState


def state_of(where: AttemptState | None, *, tries: int = 3, active: Installed | None = OLD) -> SlotState:
    """A model of which the old version is active, with an attempt to install the new one."""
    found = SlotState(model="tiny", active=active)
    if where is None:
        return found
    attempt = Attempt(release=NEW, state=where, tries_left=tries, since=1.0)
    if where is S.PROBATION or where is S.COMMITTED:
        found = replace(found, active=NEW, previous=active)
    return replace(found, attempt=attempt)


def test_what_was_proven_serves_from_the_next_start_on() -> None:
    state = at_start(state_of(S.PROVEN), now=5.0)
    assert (state.active, state.previous) == (NEW, OLD)
    assert state.attempt == Attempt(release=NEW, state=S.PROBATION, tries_left=2, since=5.0)


def test_each_start_on_probation_uses_up_a_try_and_the_one_after_the_last_goes_back() -> None:
    state = at_start(state_of(S.PROVEN, tries=3), now=5.0)
    for left in (1, 0):
        state = at_start(state, now=6.0)
        assert state.attempt is not None
        assert (state.attempt.state, state.attempt.tries_left) == (S.PROBATION, left)
        assert state.active == NEW
    state = at_start(state, now=7.0)
    assert state.attempt is not None
    assert state.attempt.state is S.ROLLED_BACK
    assert "never lasted" in state.attempt.reason
    assert (state.active, state.previous) == (OLD, None)
    assert state.is_blocked(NEW.contents)


@pytest.mark.parametrize("where", [None, S.DOWNLOADING, S.STAGED, S.CANDIDATE, S.COMMITTED, S.REJECTED, S.ABANDONED])
def test_a_start_writes_nothing_else(where: AttemptState | None) -> None:
    state = state_of(where)
    assert at_start(state, now=5.0) is state


def test_a_release_that_does_not_load_on_probation_is_rolled_back() -> None:
    state = after_failed_load(state_of(S.PROBATION), NEW.contents, "no golden answers", damaged=False, now=9.0)
    assert state.active == OLD
    assert state.attempt is not None
    assert state.attempt.state is S.ROLLED_BACK
    assert state.attempt.reason == "it does not load: no golden answers"
    assert state.is_blocked(NEW.contents)


def test_a_first_release_that_does_not_load_leaves_nothing() -> None:
    state = after_failed_load(state_of(S.PROBATION, active=None), NEW.contents, "no", damaged=False, now=9.0)
    assert state.active is None
    assert state.is_blocked(NEW.contents)


def test_a_damaged_bundle_counts_as_not_installed_and_is_not_blocked() -> None:
    before = state_of(S.COMMITTED)
    state = after_failed_load(before, NEW.contents, "a file differs", damaged=True, now=9.0)
    assert (state.active, state.previous) == (OLD, None)
    assert not state.blocked
    last = after_failed_load(state, OLD.contents, "a file differs", damaged=True, now=9.0)
    assert last.active is None
    of_previous = after_failed_load(before, OLD.contents, "a file differs", damaged=True, now=9.0)
    assert (of_previous.active, of_previous.previous) == (NEW, None)


def test_what_does_not_load_for_other_reasons_stays_installed() -> None:
    for state in (state_of(S.COMMITTED), state_of(None), state_of(S.PROBATION)):
        assert after_failed_load(state, OLD.contents, "no memory", damaged=False, now=9.0) is state
    assert after_failed_load(state_of(None), "9" * 64, "gone", damaged=True, now=9.0) == state_of(None)


def test_an_orderly_stop_gives_the_try_back_and_never_more() -> None:
    state = enter_probation(state_of(S.PROVEN, tries=3), now=5.0)
    for _ in range(3):
        state = give_try_back(state, contents=NEW.contents, tries=3, now=6.0)
        assert state.attempt is not None
        assert state.attempt.tries_left == 3
        state = at_start(state, now=7.0)
        assert state.attempt is not None
        assert state.attempt.tries_left == 2
    state = give_try_back(state, contents=NEW.contents, tries=2, now=6.0)
    assert state.attempt is not None
    assert state.attempt.tries_left == 2
    committed = state_of(S.COMMITTED)
    assert give_try_back(committed, contents=NEW.contents, tries=3, now=6.0) is committed
    probation = state_of(S.PROBATION)
    assert give_try_back(probation, contents=OLD.contents, tries=3, now=6.0) is probation


def test_a_release_without_room_is_proven_again_and_nothing_is_blocked() -> None:
    state = wait_for_start(enter_probation(state_of(S.PROVEN), now=5.0), NEW.contents, "no room", now=6.0)
    assert state.active == OLD
    assert state.attempt == Attempt(release=NEW, state=S.PROVEN, tries_left=3, reason="no room", since=6.0)
    assert at_start(state, now=7.0).active == NEW
    other = state_of(S.COMMITTED)
    assert wait_for_start(other, NEW.contents, "no room", now=6.0) is other


TURNS = [
    (state_of(S.PROVEN), OLD, (), False, Turn(take=NEW)),
    (state_of(S.PROVEN), None, (), False, Turn(take=NEW)),
    # It waits for the next start: the old one goes on.
    (state_of(S.PROVEN), OLD, (), True, Turn()),
    (state_of(S.PROBATION), NEW, (), False, Turn()),
    (state_of(S.DOWNLOADING), OLD, (), False, Turn()),
    (state_of(None), OLD, (), False, Turn()),
    (state_of(None), None, (), False, Turn(serve=OLD)),
    # An operator's command made another version active.
    (replace(state_of(None), active=NEW), OLD, (), False, Turn(serve=NEW)),
    # What did not load is not tried again and again.
    (state_of(None), None, (OLD.contents,), False, Turn()),
    (state_of(S.COMMITTED), OLD, (NEW.contents,), False, Turn()),
    (state_of(S.COMMITTED), None, (NEW.contents,), False, Turn(serve=OLD)),
    # A rollback that could not be written down.
    (state_of(S.PROBATION), NEW, (NEW.contents,), False, Turn(serve=OLD)),
    # Nothing to go back to: it serves on rather than nothing, unless the state says otherwise.
    (state_of(S.PROBATION, active=None), NEW, (NEW.contents,), False, Turn()),
    (state_of(None, active=None), NEW, (), False, Turn(stop=True)),
    (state_of(None, active=None), None, (), False, Turn()),
]


@pytest.mark.parametrize(("state", "serving", "unfit", "waits", "wanted"), TURNS, ids=map(str, range(len(TURNS))))
def test_turns(state: SlotState, serving: Installed | None, unfit: tuple[str, ...], waits: bool, wanted: Turn) -> None:
    contents = None if serving is None else serving.contents
    found = next_turn(state, contents, unfit, waits=waits)
    assert found == wanted
    assert bool(found) == (wanted != Turn())


def test_the_previous_version_serves_where_the_active_one_cannot() -> None:
    state = replace(state_of(None), active=NEW, previous=OLDER)
    assert next_choice(state, ()) == NEW
    assert next_choice(state, (NEW.contents,)) == OLDER
    assert next_choice(state, (NEW.contents, OLDER.contents)) is None


def test_on_probation() -> None:
    assert on_probation(state_of(S.PROBATION)) == NEW
    assert on_probation(state_of(S.PROVEN)) is None
    assert on_probation(state_of(S.COMMITTED)) is None
    with pytest.raises(RuntimeError, match="no attempt"):
        enter_probation(state_of(None), now=1.0)
