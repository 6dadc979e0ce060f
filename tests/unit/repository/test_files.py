"""Every write is whole and durable, in one order."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from edgeonnx.errors import RepositoryError
from edgeonnx.repository import Files
from edgeonnx.repository.files import BLOBS_LOCK


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the disk, in order."""
    found: list[str] = []

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        found.append(f"sync {kind} {name}" if kind == "folder" else f"sync {os.fstat(descriptor).st_size} bytes")

    rename = Path.rename

    def renamed(self: Path, target: Path) -> Path:
        found.append(f"rename to {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    return found


def test_a_content_is_synced_before_it_has_its_name_and_the_name_after(tmp_path: Path, calls: list[str]) -> None:
    files = Files(tmp_path / "repo")
    files.write("blobs/sha256/ab/x.zst", b"content")
    assert calls == [
        f"sync folder {tmp_path.name}",
        "sync folder repo",
        "sync folder blobs",
        "sync folder sha256",
        "sync 7 bytes",
        "rename to x.zst",
        "sync folder ab",
    ]
    calls.clear()
    files.write("blobs/sha256/ab/x.zst", b"other")
    assert calls == ["sync 5 bytes", "rename to x.zst", "sync folder ab"]
    assert files.read("blobs/sha256/ab/x.zst") == b"other"


def test_a_write_that_fails_leaves_the_name_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    files.write("metadata/timestamp.json", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RepositoryError, match="cannot be written") as caught:
        files.write("metadata/timestamp.json", b"new")
    assert caught.value.where == str(tmp_path / "metadata" / "timestamp.json")
    assert files.read("metadata/timestamp.json") == b"old"
    assert [path.name for path in (tmp_path / "metadata").iterdir()] == ["timestamp.json"]


def test_a_read_only_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "repo").write_bytes(b"a file")
    with pytest.raises(RepositoryError, match="cannot be written"), Files(tmp_path / "repo").lock():
        pass


def test_whoever_has_the_lock_clears_half_written_files(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write("blobs/x.zst", b"whole")
    (tmp_path / "blobs" / ".y.zst.0123abcd.new").write_bytes(b"half")
    assert list(files.walk("blobs")) == ["blobs/x.zst"]
    with files.lock():
        assert (tmp_path / "blobs" / ".y.zst.0123abcd.new").exists()  # another one may be writing it
    with files.lock(BLOBS_LOCK):
        assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["x.zst"]


def test_served_files_may_be_read_by_a_web_server(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Files(tmp_path).write("metadata/1.root.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "metadata" / "1.root.json").stat().st_mode & 0o777 == 0o644
