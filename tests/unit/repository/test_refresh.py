"""Signing again before signatures run out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from edgeonnx.errors import KeyStoreError
from edgeonnx.repository.publish import publish
from edgeonnx.repository.signing.ceremony import rotate_key
from edgeonnx.repository.signing.roles import ONLINE, ROLES
from edgeonnx.repository.upkeep.refresh import refresh
from edgeonnx.repository.upkeep.verify import verify
from tests.support.repository import MemoryKeys, TestRepository
from tests.unit.repository.conftest import BEGIN, Time


@pytest.fixture
def online(made: TestRepository) -> MemoryKeys:
    return made.keys.only(*(made.role_keys[role][0] for role in ONLINE))


@pytest.mark.parametrize(
    ("days", "renewed", "due"),
    [
        (1, ["timestamp"], []),
        (6.9, ["timestamp"], []),
        (7.1, ["snapshot", "timestamp"], []),
        (46, ["rollout", "snapshot", "timestamp"], []),
        (274, ["rollout", "snapshot", "timestamp"], ["root", "targets", "releases"]),
        (400, ["rollout", "snapshot", "timestamp"], ["root", "targets", "releases"]),
    ],
)
def test_what_is_due_is_signed_by_the_keys_that_are_here(
    made: TestRepository, online: MemoryKeys, time: Time, days: float, renewed: list[str], due: list[str]
) -> None:
    time.now = BEGIN + timedelta(days=days)
    done = refresh(made.repository, online)
    assert (list(done.renewed), list(done.due)) == (renewed, due)
    assert done.expires["timestamp"] == time.now + timedelta(days=3)
    faults = [fault for fault in verify(made.repository).faults if "expired" not in fault]
    assert faults == []


def test_with_the_offline_keys_they_are_signed_too(made: TestRepository, time: Time) -> None:
    time.now = BEGIN + timedelta(days=300)
    done = refresh(made.repository, made.keys)
    assert (list(done.renewed), done.due) == (list(ROLES), ())
    assert made.repository.state().root.version == 2
    assert verify(made.repository).faults == []


def test_a_change_that_waits_keeps_its_versions(made: TestRepository, time: Time, bundles: dict[str, Path]) -> None:
    releases = made.keys.only(made.role_keys["releases"][0])
    publish(made.repository, bundles["1.0.0"], releases, channel="stable", share=5)
    time.now = BEGIN + timedelta(days=300)
    assert refresh(made.repository, made.keys).due == ("root", "targets", "releases")


def test_without_the_timestamp_key_nothing_is_signed(made: TestRepository, online: MemoryKeys, time: Time) -> None:
    before = made.repository.state()
    time.now = BEGIN + timedelta(days=10)
    del online.signers[made.role_keys["timestamp"][0].keyid]
    with pytest.raises(KeyStoreError, match="signatures are missing"):
        refresh(made.repository, online)
    assert made.repository.state() == before


def test_a_rollout_key_that_is_kept_elsewhere_does_not_stop_the_others(
    made: TestRepository, online: MemoryKeys, time: Time
) -> None:
    del online.signers[made.role_keys["rollout"][0].keyid]
    time.now = BEGIN + timedelta(days=50)
    done = refresh(made.repository, online)
    assert (done.renewed, done.due) == (("snapshot", "timestamp"), ("rollout",))


def test_days_of_refreshing_stay_valid(made: TestRepository, online: MemoryKeys, time: Time) -> None:
    for _ in range(8):
        time.now += timedelta(days=2)
        refresh(made.repository, online)
    assert verify(made.repository).faults == []
    state = made.repository.state()
    assert (state.timestamp.version, state.snapshot.version) == (9, 3)


def test_it_signs_what_a_change_of_keys_left_behind(made: TestRepository, time: Time) -> None:
    """The timestamp's new key is there, the root that names it too, and the timestamp has the old signature."""
    old = (made.path / "metadata" / "timestamp.json").read_bytes()
    rotate_key(made.repository, made.keys, "timestamp", made.keys.generate)
    (made.path / "metadata" / "timestamp.json").write_bytes(old)
    assert verify(made.repository).faults
    refresh(made.repository, made.keys)
    assert verify(made.repository).faults == []
