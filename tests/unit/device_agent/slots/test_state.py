"""What a device knows of one model: the steps of an attempt, and the file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from device_agent.slots.state import (
    MAX_BLOCKED,
    MAX_REASON,
    Attempt,
    Blocked,
    Installed,
    SlotState,
    begin,
    block,
    checksum,
    revert,
    step,
)
from device_agent.slots.states import FINAL, TRANSITIONS, AttemptState, check_transition
from edgeonnx.errors import ManifestError, SchemaVersionError
from edgeonnx.spec.contents import canonical_json

OLD = Installed(version="1.0.0", contents="a" * 64)
NEW = Installed(version="1.1.0", contents="b" * 64)
FRESH = SlotState(model="tiny", active=OLD)
TO_PROVEN = (AttemptState.STAGED, AttemptState.CANDIDATE, AttemptState.PROVEN)
TO_PROBATION = (*TO_PROVEN, AttemptState.PROBATION)


def walk(state: SlotState, *path: AttemptState, reason: str = "") -> SlotState:
    for to in path:
        state = step(state, to, now=5.0, reason=reason)
    return state


def started(state: SlotState = FRESH) -> SlotState:
    return begin(state, NEW, tries=3, now=4.0)


def test_a_release_serves_from_its_probation_on() -> None:
    proven = walk(started(), *TO_PROVEN)
    assert (proven.active, proven.previous) == (OLD, None)
    assert proven.in_use() == {OLD.contents, NEW.contents}
    probation = walk(proven, AttemptState.PROBATION)
    assert (probation.active, probation.previous) == (NEW, OLD)
    again = step(probation, AttemptState.PROBATION, now=9.0, tries_left=1)
    assert (again.active, again.previous) == (NEW, OLD)
    assert again.attempt == Attempt(release=NEW, state=AttemptState.PROBATION, tries_left=1, since=5.0)
    done = walk(again, AttemptState.COMMITTED)
    assert (done.active, done.previous, done.running, done.blocked) == (NEW, OLD, None, ())


def test_what_is_rolled_back_is_blocked_and_the_previous_version_serves() -> None:
    state = walk(walk(started(), *TO_PROBATION), AttemptState.ROLLED_BACK, reason="half of it failed")
    assert (state.active, state.previous, state.running) == (OLD, None, None)
    assert state.is_blocked(NEW.contents)
    assert state.blocked[0] == Blocked(contents=NEW.contents, version="1.1.0", reason="half of it failed", at=5.0)
    assert state.in_use() == {OLD.contents}


def test_after_the_first_release_of_all_there_is_nothing_to_go_back_to() -> None:
    state = walk(started(SlotState(model="tiny")), *TO_PROBATION, AttemptState.ROLLED_BACK)
    assert state.active is None
    assert state.is_blocked(NEW.contents)


def test_what_cannot_be_loaded_beside_the_other_waits_and_the_other_serves() -> None:
    state = walk(walk(started(), *TO_PROBATION), AttemptState.PROVEN)
    assert (state.active, state.previous, state.blocked) == (OLD, None, ())
    assert state.running is not None
    assert walk(state, AttemptState.PROBATION).active == NEW


@pytest.mark.parametrize("before", [AttemptState.DOWNLOADING, *TO_PROVEN])
def test_what_is_rejected_is_blocked_and_nothing_changes_otherwise(before: AttemptState) -> None:
    path = (*TO_PROVEN[: (*TO_PROVEN,).index(before) + 1],) if before in TO_PROVEN else ()
    state = walk(walk(started(), *path), AttemptState.REJECTED)
    assert (state.active, state.previous, state.running) == (OLD, None, None)
    assert state.is_blocked(NEW.contents)


def test_what_is_abandoned_is_not_blocked() -> None:
    state = walk(started(), AttemptState.ABANDONED)
    assert (state.active, state.blocked, state.running) == (OLD, (), None)


def test_a_release_that_is_installed_again_does_not_push_out_the_previous_one() -> None:
    state = SlotState(model="tiny", active=NEW, previous=OLD)
    state = walk(started(state), *TO_PROBATION)
    assert (state.active, state.previous) == (NEW, OLD)


def test_one_attempt_at_a_time() -> None:
    with pytest.raises(RuntimeError, match="not over"):
        started(started())
    with pytest.raises(RuntimeError, match="no attempt"):
        walk(FRESH, AttemptState.STAGED)


@pytest.mark.parametrize("before", AttemptState)
@pytest.mark.parametrize("after", AttemptState)
def test_only_the_table_allows_a_step(before: AttemptState, after: AttemptState) -> None:
    state = replace(FRESH, attempt=Attempt(release=NEW, state=before, tries_left=1))
    if after in TRANSITIONS[before]:
        check_transition(before, after)
        assert walk(state, after).attempt == Attempt(
            release=NEW, state=after, tries_left=1, since=0.0 if before is after else 5.0
        )
    else:
        with pytest.raises(RuntimeError, match="no transition" if before not in FINAL else "no attempt"):
            walk(state, after)


def test_every_state_is_reached_and_every_attempt_can_end() -> None:
    reached, edge = set(), {AttemptState.DOWNLOADING}
    while edge:
        reached |= edge
        edge = {each for state in edge for each in TRANSITIONS[state]} - reached
    assert reached == set(AttemptState)
    assert {state for state in AttemptState if state not in FINAL and not TRANSITIONS[state] & FINAL} == set()


def test_going_back_by_hand() -> None:
    state = revert(SlotState(model="tiny", active=NEW, previous=OLD), reason="by hand", now=7.0)
    assert (state.active, state.previous) == (OLD, None)
    assert state.blocked == (Blocked(contents=NEW.contents, version="1.1.0", reason="by hand", at=7.0),)


def test_going_back_by_hand_ends_the_attempt() -> None:
    probation = revert(walk(started(), *TO_PROBATION), reason="by hand", now=7.0)
    assert probation.attempt is not None
    assert (probation.active, probation.attempt.state) == (OLD, AttemptState.ROLLED_BACK)
    before = SlotState(model="tiny", active=OLD, previous=Installed(version="0.9.0", contents="c" * 64))
    proven = revert(walk(started(before), *TO_PROVEN), reason="by hand", now=7.0)
    assert proven.attempt is not None
    assert (proven.active, proven.attempt.state) == (before.previous, AttemptState.ABANDONED)
    assert [each.contents for each in proven.blocked] == [OLD.contents]
    with pytest.raises(RuntimeError, match="nothing to go back to"):
        revert(FRESH, reason="by hand", now=7.0)


def test_blocked_digests_are_kept_once_and_not_without_end() -> None:
    state = FRESH
    for number in range(MAX_BLOCKED + 5):
        release = Installed(version=f"1.{number}", contents=f"{number:064x}")
        state = block(block(state, release, reason="first", now=1.0), release, reason="second", now=2.0)
    assert len(state.blocked) == MAX_BLOCKED
    assert [each.version for each in (state.blocked[0], state.blocked[-1])] == ["1.5", f"1.{MAX_BLOCKED + 4}"]
    assert {each.reason for each in state.blocked} == {"second"}


def test_a_reason_is_cut_and_fit_for_a_file_and_a_terminal() -> None:
    state = walk(started(), AttemptState.REJECTED, reason="\udc80\x1b[2J" + "x" * 10_000)
    assert state.attempt is not None
    assert state.attempt.reason.startswith("\\udc80\\x1b[2Jxxx")
    assert len(state.attempt.reason) == len(state.blocked[0].reason) == MAX_REASON
    assert SlotState.from_bytes(state.to_bytes()) == state


FULL = replace(
    walk(started(block(FRESH, Installed(version="0.1", contents="d" * 64), reason="bad", now=1.5)), *TO_PROBATION),
    pin="1.1.0",
    sequence=17,
)


@pytest.mark.parametrize("state", [SlotState(model="tiny"), FRESH, FULL], ids=["empty", "fresh", "full"])
def test_the_file_gives_the_state_back(state: SlotState) -> None:
    assert SlotState.from_bytes(state.to_bytes()) == state
    assert SlotState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()


def resealed(**changes: object) -> bytes:
    """The full state's file with other members, and the checksum that fits them."""
    document = json.loads(FULL.to_bytes()) | changes
    document.pop("checksum")
    return canonical_json(document | {"checksum": checksum(document)})


def test_the_checksum_is_that_of_the_other_members() -> None:
    assert resealed() == FULL.to_bytes()
    for key, value in (("pin", None), ("sequence", 18), ("model", "other")):
        changed = json.loads(FULL.to_bytes()) | {key: value}
        with pytest.raises(ManifestError, match="is not that of the file"):
            SlotState.from_bytes(json.dumps(changed).encode())


ATTEMPT = json.loads(FULL.to_bytes())["attempt"]


@pytest.mark.parametrize(
    "changes",
    [
        {"active": {"version": "1.0.0", "contents": "A" * 64}},
        {"active": {"version": "1.0.0", "contents": "../../etc"}},
        {"active": {"version": "1.0.0", "contents": "a" * 64, "more": 1}},
        {"attempt": ATTEMPT | {"state": "unheard of"}},
        {"attempt": ATTEMPT | {"tries_left": -1}},
        {"attempt": ATTEMPT | {"since": "yesterday"}},
        {"attempt": ATTEMPT | {"more": 1}},
        {"blocked": [{"contents": "x", "version": "1", "reason": "", "at": 0.0}]},
        {"blocked": None},
        {"sequence": -1},
        {"sequence": 1.5},
        {"more": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_file_that_says_what_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(ManifestError):
        SlotState.from_bytes(resealed(**changes))


def test_a_file_of_a_later_agent() -> None:
    assert SlotState.from_bytes(resealed(schema_version="1.7", more={"x": 1})) == FULL
    with pytest.raises(SchemaVersionError):
        SlotState.from_bytes(resealed(schema_version="2.0"))


def test_a_file_that_nests_too_deep() -> None:
    deep = b'{"schema_version": "1.9", "checksum": "", "more": ' + b"[" * 800 + b"]" * 800 + b"}"
    with pytest.raises(ManifestError):
        SlotState.from_bytes(deep)
