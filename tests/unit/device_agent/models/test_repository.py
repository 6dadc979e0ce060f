from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from device_agent.models.repository import Found, candidates, choose, look
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import BundleError, ModelNotFoundError, NotABundleError
from tests.support import bundles


def found(name: str, version: str, digest: str = "") -> Found:
    return Found(path=Path(f"/models/{name}-{version}"), name=name, version=version, digest=digest or version)


ALL = (found("tiny", "1.9.0"), found("tiny", "1.10.0"), found("other", "3"))


@pytest.mark.parametrize(("version", "chosen"), [(None, "1.10.0"), ("", "1.10.0"), ("1.9.0", "1.9.0")])
def test_the_newest_version_or_the_one_asked_for(version: str | None, chosen: str) -> None:
    assert choose(ALL, "tiny", version).version == chosen


def test_a_name_or_version_that_is_not_there() -> None:
    with pytest.raises(ModelNotFoundError, match=r"expected 'tiny' or 'other'; found '\.\./etc'"):
        choose(ALL, "../etc")
    with pytest.raises(ModelNotFoundError, match=r"expected '1\.9\.0' or '1\.10\.0'; found '2'"):
        choose(ALL, "tiny", "2")


def test_two_bundles_of_one_name_and_version() -> None:
    with pytest.raises(BundleError, match="several folders"):
        choose([found("tiny", "1", "a"), found("tiny", "1", "b")], "tiny")
    assert choose([found("tiny", "1", "a"), found("tiny", "1", "a")], "tiny").version == "1"


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    path = bundles.make_bundle(tmp_path, version="1.2.3")
    seen = look(path)
    assert (seen.name, seen.version, seen.error) == ("tiny", "1.2.3", None)
    assert seen.digest == open_bundle(path).digest


def test_a_broken_folder_says_why(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    seen = look(tmp_path / "odd")
    assert (seen.name, seen.version) == ("odd", "")
    assert isinstance(seen.error, NotABundleError)
    with pytest.raises(NotABundleError):
        choose([seen], "odd")


def test_candidates_are_the_bundles_of_the_start_and_the_folders_that_are_complete(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    start = bundles.make_bundle(tmp_path, name="start")
    first = bundles.make_bundle(repository, name="b")
    shutil.copytree(first, repository / ".b-2.partial")
    (repository / "a-file").write_text("no folder")
    (repository / "current").symlink_to(first)
    (repository / "junk").mkdir()
    names = [(each.name, each.error is None) for each in candidates((start,), repository)]
    assert names == [("start", True), ("b", True), ("junk", False)]


def test_no_repository(tmp_path: Path) -> None:
    assert candidates((), tmp_path / "nothing") == []
