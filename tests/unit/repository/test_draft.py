"""What every change of the signed state keeps to."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from edgeonnx.errors import RepositoryError, UsageError
from edgeonnx.repository import Files, Settings
from edgeonnx.repository.create import read_settings
from edgeonnx.repository.repository import MAX_SKEW, signing_time
from edgeonnx.repository.signing.roles import EXPIRES, LISTED, ROLES
from edgeonnx.repository.state import read_state, signed_at
from edgeonnx.repository.upkeep.verify import verify
from edgeonnx.spec.signing import SIGNED_AT, stamp
from tests.support.repository import TestRepository
from tests.unit.repository.conftest import BEGIN, Time


def test_all_metadata_says_when_it_was_signed_and_until_when_it_holds(made: TestRepository) -> None:
    state = made.repository.state()
    assert set(state.metadata) == set(ROLES)
    for role, metadata in state.metadata.items():
        assert metadata.signed.unrecognized_fields[SIGNED_AT] == "2026-03-01T12:00:00Z", role
        assert metadata.signed.expires == BEGIN + EXPIRES[role], role
        assert metadata.signed.version == 1, role


def test_the_snapshot_and_the_timestamp_state_lengths_and_digests(made: TestRepository) -> None:
    state = made.repository.state()
    listed = [state.snapshot.meta[f"{role}.json"] for role in LISTED] + [state.timestamp.snapshot_meta]
    assert all(each.length and each.hashes and set(each.hashes) == {"sha256"} for each in listed)
    assert set(state.snapshot.meta) == {f"{role}.json" for role in LISTED}


def test_only_what_changes_gets_a_new_version(made: TestRepository, bundles: dict[str, Path], time: Time) -> None:
    made.publish(bundles["1.0.0"], share=5)
    time.now += timedelta(hours=5)
    made.rollout("tiny", "1.0.0", share=10)
    state = made.repository.state()
    versions = {role: metadata.signed.version for role, metadata in state.metadata.items()}
    assert versions == {"root": 1, "targets": 1, "releases": 2, "rollout": 3, "snapshot": 3, "timestamp": 3}
    assert signed_at(state.metadata["rollout"]) == time.now
    assert signed_at(state.metadata["releases"]) == BEGIN


def test_the_time_of_signatures_never_goes_back(made: TestRepository, bundles: dict[str, Path], time: Time) -> None:
    time.now = BEGIN - timedelta(minutes=59)
    made.publish(bundles["1.0.0"])
    assert made.repository.state().metadata["timestamp"].signed.unrecognized_fields[SIGNED_AT] == stamp(BEGIN)
    time.now = BEGIN - timedelta(minutes=61)
    with pytest.raises(RepositoryError, match="clock of this machine is behind"):
        made.publish(bundles["1.1.0"])


def test_the_signing_time_is_now_or_the_last_signature(made: TestRepository) -> None:
    state = made.repository.state()
    assert signing_time(state, BEGIN + timedelta(days=9)) == BEGIN + timedelta(days=9)
    assert signing_time(state, BEGIN - MAX_SKEW) == BEGIN


def test_periods_of_expiry_are_remembered(tmp_path: Path, time: Time, bundles: dict[str, Path]) -> None:
    settings = Settings(expires={**EXPIRES, "timestamp": timedelta(hours=6)})
    made = TestRepository.create(tmp_path / "repo", settings=settings, now=time)
    assert read_settings(made.repository.files) == settings
    time.now += timedelta(hours=1)
    made.publish(bundles["1.0.0"])
    assert made.repository.state().timestamp.expires == BEGIN + timedelta(hours=7)


def test_a_repository_is_not_made_twice(made: TestRepository) -> None:
    with pytest.raises(UsageError, match="a repository already"):
        TestRepository.create(made.path)


def test_a_repository_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    class Stopped(Files):
        left = 3  # settings, root, targets

        def rename(self, source: Path, target: Path) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().rename(source, target)

    with pytest.raises(KeyboardInterrupt):
        TestRepository.create(tmp_path / "repo", files=Stopped(tmp_path / "repo"))
    assert (tmp_path / "repo" / "metadata" / "1.targets.json").exists()
    assert verify(TestRepository.create(tmp_path / "repo").repository).faults == []


def test_a_repository_that_lost_its_timestamp_is_not_made_again(repository: TestRepository) -> None:
    (repository.path / "metadata" / "timestamp.json").unlink()
    with pytest.raises(UsageError, match="a repository already"):
        TestRepository.create(repository.path)


def test_an_expired_repository_can_be_changed(made: TestRepository, time: Time, bundles: dict[str, Path]) -> None:
    time.now += timedelta(days=300)
    assert len(verify(made.repository).faults) == 3  # rollout, snapshot, timestamp
    made.publish(bundles["1.0.0"])
    assert verify(made.repository).faults == []


def test_a_state_that_leads_nowhere_is_told(made: TestRepository) -> None:
    (made.path / "metadata" / "1.rollout.json").unlink()
    with pytest.raises(RepositoryError, match="cannot be read"):
        read_state(made.repository.files)
