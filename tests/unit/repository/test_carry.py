"""Carrying a repository to a bucket, or a part of it on a stick."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from tuf.api.exceptions import DownloadHTTPError

from edgeonnx.errors import RepositoryError, UsageError
from edgeonnx.repository import Repository
from edgeonnx.repository.signing.ceremony import rotate_key
from edgeonnx.repository.upkeep.carry import export, upload_order
from edgeonnx.repository.upkeep.verify import verify
from edgeonnx.spec.release import Release, blob_path
from tests.support.repository import Reader, TestRepository


def copy(made: TestRepository, paths: list[str], bucket: Path) -> None:
    for path in paths:
        (bucket / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made.path / path, bucket / path)


def test_blobs_go_first_and_the_timestamp_last(repository: TestRepository, tmp_path: Path) -> None:
    found = upload_order(repository.repository)
    kinds = [each.path.split("/")[0] for each in found]
    assert [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind] == [
        "blobs",
        "deltas",
        "targets",
        "metadata",
    ]
    assert found[-1].path == "metadata/timestamp.json"
    assert found[-1].cache_control == "no-cache"
    assert {each.cache_control for each in found[:-1]} == {"public, max-age=31536000, immutable"}
    copy(repository, [each.path for each in found], tmp_path / "bucket")
    assert verify(Repository(tmp_path / "bucket")).faults == []


def test_only_what_is_new_is_copied_again(repository: TestRepository, bundles: dict[str, Path], tmp_path: Path) -> None:
    before = [each.path for each in upload_order(repository.repository)]
    copy(repository, before, tmp_path / "bucket")
    repository.publish(bundles["second"])
    further = [each.path for each in upload_order(repository.repository, before)]
    assert set(further) & set(before) == {"metadata/timestamp.json"}
    reader = Reader(tmp_path / "bucket", tmp_path / "reader", repository.root_bytes)
    for path in further:  # whatever is copied: the old state, or the new one
        assert reader.target("releases/second/2.0.0.json") is None
        copy(repository, [path], tmp_path / "bucket")
    assert reader.target("releases/second/2.0.0.json") is not None
    assert verify(Repository(tmp_path / "bucket")).faults == []


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp", "releases", "rollout"])
def test_a_client_can_follow_at_every_moment_of_a_change_of_keys(
    repository: TestRepository, tmp_path: Path, role: str
) -> None:
    before = [each.path for each in upload_order(repository.repository)]
    copy(repository, before, tmp_path / "bucket")
    rotate_key(repository.repository, repository.keys, role, repository.keys.generate)
    for number, path in enumerate([each.path for each in upload_order(repository.repository, before)]):
        copy(repository, [path], tmp_path / "bucket")
        Reader(tmp_path / "bucket", tmp_path / f"reader{number}", repository.root_bytes).refresh()
    assert verify(Repository(tmp_path / "bucket")).faults == []


def test_a_lost_timestamp_key_puts_the_root_before_the_timestamp(repository: TestRepository) -> None:
    del repository.keys.signers[repository.role_keys["timestamp"][0].keyid]
    rotate_key(repository.repository, repository.keys, "timestamp", repository.keys.generate)
    paths = [each.path for each in upload_order(repository.repository)]
    assert paths.index("metadata/2.root.json") < paths.index("metadata/timestamp.json") == len(paths) - 1


@pytest.mark.parametrize("name", ["stick", "stick.tar"])
def test_a_stick_has_what_a_device_needs_and_no_more(
    repository: TestRepository, bundles: dict[str, Path], tmp_path: Path, name: str
) -> None:
    repository.publish(bundles["second"])
    out = tmp_path / "out" / name
    paths = export(repository.repository, [("tiny", "1.1.0")], out)
    folder = out
    if name.endswith(".tar"):
        folder = tmp_path / "unpacked"
        with tarfile.open(out) as archive:
            archive.extractall(folder, filter="data")
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == sorted(paths)
    reader = Reader(folder, tmp_path / "reader", repository.root_bytes)
    release = Release.from_bytes(reader.target("releases/tiny/1.1.0.json") or b"")
    assert (folder / blob_path(release.contents)).is_file()
    assert reader.target("channels/stable.json") is not None
    with pytest.raises(DownloadHTTPError):  # signed, but not on the stick
        reader.target("releases/second/2.0.0.json")
    assert not (folder / "deltas").exists()
    with pytest.raises(UsageError, match="exists already"):
        export(repository.repository, [("tiny", "1.1.0")], out)


def test_an_archive_of_one_state_has_the_same_bytes(repository: TestRepository, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        export(repository.repository, [("tiny", "1.1.0")], tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


@pytest.mark.parametrize("name", ["stick", "stick.tar"])
def test_what_fails_leaves_nothing(repository: TestRepository, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out" / name
    with pytest.raises(UsageError, match="no such release") as caught:
        export(repository.repository, [("tiny", "3.0.0")], out)
    assert caught.value.expected == "tiny/1.0.0, tiny/1.1.0"
    contents = verify(repository.repository).releases[0].contents
    for path in (repository.path / "blobs").rglob("*.zst"):
        if path.stem != contents:
            path.unlink()
    with pytest.raises(RepositoryError, match="cannot be read"):
        export(repository.repository, [("tiny", "1.0.0")], out)
    assert list(out.parent.iterdir()) == []
