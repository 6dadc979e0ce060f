"""Writing durably: in which order, and what a failure leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agent.slots.disk import TEMPORARY, Disk, beside_of, entries_of, read_file
from tests.support.installed import names


class Calls(Disk):
    """Notes the system calls; the one that is named fails."""

    def __init__(self, fails: str = "", error: int = errno.EIO) -> None:
        self.calls: list[str] = []
        self.fails = fails
        self.error = error

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise OSError(self.error, os.strerror(self.error))

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        self._note("open folder" if flags & os.O_DIRECTORY else "open")
        return super().open(path, flags, mode)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._note("write")
        return super().write(descriptor, data[:3])  # a short write each time

    def sync(self, descriptor: int) -> None:
        self._note("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename")
        super().rename(source, target)

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        self._note("mkdir")
        super().mkdir(path, mode)


def test_a_file_is_whole_and_durable_before_it_takes_its_name(tmp_path: Path) -> None:
    disk = Calls()
    disk.replace(tmp_path / "name", b"12345678")
    assert disk.calls == ["open", "write", "write", "write", "sync", "rename", "open folder", "sync"]
    assert (tmp_path / "name").read_bytes() == b"12345678"
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("call", ["open", "write", "sync", "rename"])
def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path, call: str) -> None:
    (tmp_path / "name").write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        Calls(call, errno.ENOSPC).replace(tmp_path / "name", b"new")
    assert (tmp_path / "name").read_bytes() == b"old"
    assert names(tmp_path) == ["name"]


def test_a_disk_that_takes_no_byte_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    class Stuck(Disk):
        def write(self, descriptor: int, data: bytes | memoryview) -> int:
            return 0

    with pytest.raises(OSError, match="takes no more"):
        Stuck().replace(tmp_path / "name", b"new")
    assert names(tmp_path) == []


def test_pieces_that_fail_leave_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise ValueError("the rest is wrong")

    with pytest.raises(ValueError, match="the rest"):
        Disk().create(tmp_path / "name", pieces())
    assert names(tmp_path) == []


def test_a_file_that_is_there_is_not_overwritten_by_create(tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        Disk().create(tmp_path / "name", [b"new"])
    assert (tmp_path / "name").read_bytes() == b"old"


def test_both_folders_of_a_move_are_synced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x")
    disk = Calls()
    disk.move(tmp_path / "a" / "file", tmp_path / "b" / "file")
    assert disk.calls == ["rename", "open folder", "sync", "open folder", "sync"]


def test_folders_are_made_from_the_top_and_each_name_is_synced(tmp_path: Path) -> None:
    disk = Calls()
    disk.make_folder(tmp_path / "a" / "b")
    assert disk.calls == ["mkdir", "open folder", "sync"] * 2
    disk.make_folder(tmp_path / "a" / "b")
    assert len(disk.calls) == 6
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught:
        Disk().make_folder(tmp_path / "a")
    assert caught.value.filename == str(tmp_path / "a")


def test_a_link_is_neither_opened_nor_followed_when_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"x")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept" / "file")
    with pytest.raises(OSError, match="symbolic links"):
        Disk().open(tmp_path / "link", os.O_WRONLY)
    for name in ("gone", "link", "not there"):
        Disk().remove(tmp_path / name)
    assert names(tmp_path) == ["kept"]
    assert (tmp_path / "kept" / "file").read_bytes() == b"x"


def test_a_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    disk = Calls()
    disk.replace_link(tmp_path / "link", "one")
    disk.replace_link(tmp_path / "link", "two")
    assert str((tmp_path / "link").readlink()) == "two"
    assert disk.calls[:3] == ["rename", "open folder", "sync"]


def test_a_small_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4"):
        read_file(tmp_path / "file", limit=4)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "missing"])
def test_what_is_no_file_is_not_read_and_does_not_block(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    (tmp_path / "other").write_bytes(b"x")
    makers = {"link": lambda: path.symlink_to("other"), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}
    makers.get(kind, lambda: None)()
    before = names(Path("/proc/self/fd"))
    with pytest.raises(OSError, match=r"no regular file|symbolic links|No such file"):
        read_file(path, limit=10)
    assert len(names(Path("/proc/self/fd"))) == len(before)


def test_a_link_to_a_folder_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").touch()
    (tmp_path / "folder" / "a").touch()
    (tmp_path / "link").symlink_to("folder")
    assert [path.name for path in entries_of(tmp_path / "folder")] == ["a", "b"]
    assert entries_of(tmp_path / "link") == entries_of(tmp_path / "none") == entries_of(tmp_path / "folder" / "a") == []


def test_temporary_names_are_hidden_and_differ(tmp_path: Path) -> None:
    made = {beside_of(tmp_path / "state.json").name for _ in range(10)}
    assert len(made) == 10
    assert all(name.startswith(".state.json.") and name.endswith(TEMPORARY) for name in made)
