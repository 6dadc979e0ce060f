"""Removing what nothing names any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.repository.publish import publish
from edgeonnx.repository.upkeep.gc import collect
from edgeonnx.repository.upkeep.retire import retire
from edgeonnx.repository.upkeep.verify import unnamed_files, verify
from edgeonnx.spec.rollout import WHOLE, OfferState
from tests.support.repository import Reader, TestRepository


def files(made: TestRepository) -> set[str]:
    return set(made.repository.files.walk("metadata", "targets", "blobs", "deltas"))


def test_without_older_states_only_the_present_one_stays(repository: TestRepository, tmp_path: Path) -> None:
    before = files(repository)
    would = collect(repository.repository, keep=0, dry_run=True)
    assert files(repository) == before
    done = collect(repository.repository, keep=0)
    assert done == would
    assert files(repository) == before - set(done.paths)
    assert "metadata/1.snapshot.json" in done.paths
    found = verify(repository.repository)
    assert found.faults == []
    assert unnamed_files(repository.repository.files, found) == []
    assert Reader(repository.path, tmp_path / "r", repository.root_bytes).target("channels/stable.json") is not None


def test_recent_states_stay_with_all_that_they_name(repository: TestRepository) -> None:
    for share in range(200_000, 900_000, 100_000):
        repository.rollout("tiny", "1.1.0", share=share)
    newest = repository.repository.state().snapshot.version
    collect(repository.repository, keep=3)
    left = files(repository)
    snapshots = sorted(int(path.split("/")[1].split(".")[0]) for path in left if path.endswith(".snapshot.json"))
    assert snapshots == list(range(newest - 3, newest + 1))
    assert len([path for path in left if path.startswith("targets/channels/")]) == 4
    assert len([path for path in left if path.endswith(".rollout.json")]) == 4
    assert "metadata/1.root.json" in left


def test_a_release_that_devices_may_take_is_not_retired(repository: TestRepository) -> None:
    with pytest.raises(UsageError, match="may still take"):
        retire(repository.repository, repository.keys, "tiny", "1.0.0")
    with pytest.raises(UsageError, match="no such release"):
        retire(repository.repository, repository.keys, "tiny", "9.0.0")


@pytest.mark.parametrize("way", ["superseded", "withdrawn"])
def test_a_retired_release_goes_with_its_blobs_and_no_other(
    repository: TestRepository, bundles: dict[str, Path], way: str
) -> None:
    if way == "superseded":
        repository.rollout("tiny", "1.1.0", share=WHOLE)
    else:
        repository.rollout("tiny", "1.0.0", state=OfferState.WITHDRAWN)
    blobs = {path for path in files(repository) if path.startswith("blobs/")}
    assert retire(repository.repository, repository.keys, "tiny", "1.0.0") == ()
    found = verify(repository.repository)
    assert [each.version for each in found.releases] == ["1.1.0"]
    assert [offer.version for offer in found.channels[0].models["tiny"].offers] == ["1.1.0"]
    collect(repository.repository)
    assert {path for path in files(repository) if path.startswith("blobs/")} == blobs  # recent states name them
    collect(repository.repository, keep=0)
    left = {path for path in files(repository) if path.startswith("blobs/")}
    assert left < blobs
    assert verify(repository.repository).faults == []
    assert repository.publish(bundles["1.1.0"], share=WHOLE).written.blobs == 0


def test_what_waits_for_signatures_stays(repository: TestRepository, bundles: dict[str, Path]) -> None:
    releases = repository.keys.only(repository.role_keys["releases"][0])
    publish(repository.repository, bundles["second"], releases, channel="stable", share=5)
    waiting = files(repository)
    collect(repository.repository, keep=0)
    gone = waiting - files(repository)
    assert not [path for path in gone if path.startswith("blobs/") or "second" in path]


def test_leftovers_of_a_publisher_that_was_stopped_go_but_keep_their_numbers(
    repository: TestRepository, bundles: dict[str, Path]
) -> None:
    timestamp = (repository.path / "metadata" / "timestamp.json").read_bytes()
    repository.publish(bundles["second"])
    left = repository.repository.state().snapshot.version
    (repository.path / "metadata" / "timestamp.json").write_bytes(timestamp)
    done = collect(repository.repository, keep=0)
    assert any(path.startswith("blobs/") for path in done.paths)
    assert f"metadata/{left}.snapshot.json" in files(repository)
    repository.rollout("tiny", "1.1.0", share=500_000)
    assert repository.repository.state().snapshot.version == left + 1
    assert verify(repository.repository).faults == []
