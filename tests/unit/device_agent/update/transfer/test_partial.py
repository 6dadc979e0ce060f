"""The part of a download: what of it is believed after a crash, a power cut, a full disk."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path

import pytest

from device_agent.slots.disk import Disk
from device_agent.update.transfer import partial
from device_agent.update.transfer.partial import NOTE_BYTES, NOTE_SECONDS, Note, PartialFile, note_of
from edgeonnx.errors import NoSpaceError, StateError
from tests.support.crash_model import Crash, Model, build, crashes, signature
from tests.support.recording import RecordingDisk

PATH = "blobs/sha256/ab/x.zst"
TAG = '"v1"'


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "x.part"


def leave(part: Path, data: bytes, *, path: str = PATH, validator: str = TAG, synced: int | None = None) -> None:
    """What an earlier run left."""
    part.write_bytes(data)
    note = Note(path=path, validator=validator, synced=len(data) if synced is None else synced)
    note_of(part).write_bytes(note.to_bytes())


def position_after_opening(part: Path, path: str = PATH) -> int:
    with PartialFile(part, path, Disk()) as file:
        assert part.stat().st_size == file.position
        return file.position


def broken_off(part: Path, data: bytes, validator: str | None = TAG) -> None:
    """A download that ends in an error."""
    with PartialFile(part, PATH, Disk()) as file:
        file.begin(validator=validator, offset=0)
        file.write(data, now=0.0)
        raise RuntimeError


def test_what_was_noted_is_gone_on_with(part: Path) -> None:
    with pytest.raises(RuntimeError):
        broken_off(part, b"abc")
    with PartialFile(part, PATH, Disk()) as file:
        assert (file.position, file.validator) == (3, TAG)
        file.begin(validator=TAG, offset=3)
        file.write(b"def", now=0.0)
        file.finish()
    assert part.read_bytes() == b"abcdef"


def test_bytes_behind_the_noted_ones_are_dropped(part: Path) -> None:
    """After a power cut they may be zeros, whatever the file's size says."""
    leave(part, b"good" + bytes(100), synced=4)
    with PartialFile(part, PATH, Disk()) as file:
        assert file.position == 4
    assert part.read_bytes() == b"good"


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{",
        b"\0" * 100,
        b"[]",
        Note(path=PATH, validator=TAG, synced=4).to_bytes()[:-5],
        Note(path="blobs/sha256/cd/y.zst", validator=TAG, synced=4).to_bytes(),
        Note(path=PATH, validator="", synced=4).to_bytes(),
        Note(path=PATH, validator=TAG, synced=5).to_bytes(),
        Note(path=PATH, validator=TAG, synced=0).to_bytes(),
        json.dumps({"schema_version": "2.0", "path": PATH, "validator": TAG, "synced": 4}).encode(),
        json.dumps({"schema_version": "1.0", "path": PATH, "validator": TAG, "synced": -4}).encode(),
        json.dumps({"schema_version": "1.0", "path": PATH, "validator": TAG, "synced": "4"}).encode(),
        b" " * 100_000 + Note(path=PATH, validator=TAG, synced=4).to_bytes(),
    ],
    ids=range(13),
)
def test_a_torn_or_foreign_note_means_starting_anew(part: Path, note: bytes) -> None:
    leave(part, b"good")
    note_of(part).write_bytes(note)
    assert position_after_opening(part) == 0
    assert not note_of(part).exists()


def test_a_part_without_a_note_means_starting_anew(part: Path) -> None:
    part.write_bytes(b"who knows")
    assert position_after_opening(part) == 0


@pytest.mark.parametrize("which", ["part", "note"])
def test_links_are_not_followed(part: Path, tmp_path: Path, which: str) -> None:
    leave(part, b"good")
    path = part if which == "part" else note_of(part)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert position_after_opening(part) == 0
    assert elsewhere.read_bytes() == before
    assert not part.is_symlink()


def test_a_folder_in_the_place_of_the_part_or_its_note_is_removed(part: Path) -> None:
    (part / "sub").mkdir(parents=True)
    note_of(part).mkdir()
    assert position_after_opening(part) == 0


OLD, NEW = bytes(range(1, 200)) * 6, bytes(range(200, 0, -1)) * 6
STATES = {'"old"': OLD, '"new"': NEW}


def download(disk: Disk, part: Path, validator: str, end: int) -> None:
    """One run of a download up to a byte, in pieces of 150, as the downloader drives it."""
    data = STATES[validator]
    with PartialFile(part, PATH, disk) as file:
        offset = file.position if file.validator == validator else 0
        file.begin(validator=validator, offset=offset)
        for at in range(offset, end, 150):
            file.write(data[at : min(end, at + 150)], now=0.0)
        if end == len(data):
            file.finish()
        else:
            file.keep()


@pytest.mark.parametrize("before", ["nothing", "part", "note", "part of another state", "short part", "torn note"])
def test_no_power_cut_makes_a_wrong_part_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Every prefix of a run's operations, with what was not synced lost, torn, zero or reordered."""
    monkeypatch.setattr(partial, "NOTE_BYTES", 400)
    root = tmp_path / "disk"
    root.mkdir()
    part = root / "x.part"
    if before in ("part", "torn note"):
        part.write_bytes(bytes(1000))
    if before in ("note", "short part"):
        note_of(part).write_bytes(Note(path=PATH, validator='"new"', synced=300).to_bytes())
    if before == "short part":
        part.write_bytes(NEW[:200])
    if before == "part of another state":
        leave(part, OLD[:700], validator='"old"')
    if before == "torn note":
        note_of(part).write_bytes(b"{")
    model, disk = Model(root), RecordingDisk(root)
    download(disk, part, '"new"', 700)
    download(disk, part, '"old"', 500)
    download(disk, part, '"new"', len(NEW))
    revived = Crash(
        name="what was removed is back, zeros",
        keeps=lambda number: disk.operations[number].kind != "unlink",
        data=lambda data: bytes(len(data)),
    )
    chance, tried = random.Random(5), set()
    for number, operation in enumerate([None, *disk.operations]):
        if operation is not None:
            model.apply(operation)
        for crash in [*crashes(chance, number, wild=2), revived]:
            left = model.after(crash)
            if (mark := signature(left)) in tried:
                continue
            tried.add(mark)
            folder = tmp_path / str(len(tried))
            build(left, folder)
            with PartialFile(folder / "x.part", PATH, Disk()) as file:
                found = (folder / "x.part").read_bytes()
                expected = STATES[file.validator][: file.position] if file.validator else b""
                assert found == expected, f"{crash.name} after {operation}"
    assert len(tried) > 80


class Recording(Disk):
    """Writes down what is done, with names instead of descriptors."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._names: dict[int, str] = {}

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        descriptor = super().open(path, flags, mode)
        self._names[descriptor] = ".new" if path.name.endswith(".new") else path.name
        return descriptor

    def sync(self, descriptor: int) -> None:
        self.done.append(f"sync {self._names[descriptor]}")
        super().sync(descriptor)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self.done.append(f"write {self._names[descriptor]}")
        return super().write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        self.done.append(f"truncate {self._names[descriptor]}")
        super().truncate(descriptor, size)

    def rename(self, source: Path, target: Path) -> None:
        self.done.append(f"name {target.name}")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.done.append(f"unlink {path.name}")
        super().unlink(path)


def test_the_part_is_synced_before_its_note_says_so(part: Path) -> None:
    disk = Recording()
    with PartialFile(part, PATH, disk) as file:
        file.begin(validator=TAG, offset=0)
        file.write(b"abc", now=0.0)
        file.keep()
    folder = part.parent.name
    assert disk.done == ["write x.part", "sync x.part", "write .new", "sync .new", "name x.part.json", f"sync {folder}"]


def test_the_note_goes_durably_before_the_bytes_that_it_vouches_for(part: Path) -> None:
    leave(part, b"old")
    disk = Recording()
    with PartialFile(part, PATH, disk) as file:
        disk.done.clear()
        file.begin(validator='"v2"', offset=0)
    assert disk.done == ["unlink x.part.json", f"sync {part.parent.name}", "truncate x.part"]


def test_notes_are_renewed_by_size_and_by_time(part: Path) -> None:
    def noted() -> int:
        return Note.from_bytes(note_of(part).read_bytes()).synced if note_of(part).exists() else 0

    with PartialFile(part, PATH, Disk()) as file:
        file.begin(validator=TAG, offset=0)
        file.write(b"a", now=100.0)
        assert noted() == 0
        file.write(b"b", now=100.0 + NOTE_SECONDS)
        assert noted() == 2
        file.write(b"c", now=101.0 + NOTE_SECONDS)
        assert noted() == 2
        file.write(bytes(NOTE_BYTES), now=102.0 + NOTE_SECONDS)
        assert noted() == NOTE_BYTES + 3


def test_without_a_validator_nothing_is_noted(part: Path) -> None:
    with pytest.raises(RuntimeError):
        broken_off(part, bytes(NOTE_BYTES + 1), validator=None)
    assert not note_of(part).exists()
    assert position_after_opening(part) == 0


def test_a_finished_small_file_is_synced_and_needs_no_note(part: Path) -> None:
    disk = Recording()
    with PartialFile(part, PATH, disk) as file:
        file.begin(validator=TAG, offset=0)
        file.write(b"abc", now=0.0)
        file.finish()
    assert disk.done == ["write x.part", "sync x.part"]


def test_a_small_file_that_was_gone_on_with_loses_its_note_when_it_is_finished(part: Path) -> None:
    leave(part, b"abc")
    with PartialFile(part, PATH, Disk()) as file:
        file.begin(validator=TAG, offset=3)
        file.write(b"def", now=0.0)
        file.finish()
    assert part.read_bytes() == b"abcdef"
    assert not note_of(part).exists()


def test_a_finished_large_file_keeps_a_note_of_all_of_it(part: Path) -> None:
    with PartialFile(part, PATH, Disk()) as file:
        file.begin(validator=TAG, offset=0)
        file.write(bytes(NOTE_BYTES), now=0.0)
        file.write(b"end", now=0.0)
        file.finish()
    assert position_after_opening(part) == NOTE_BYTES + 3


def test_what_was_discarded_leaves_nothing(part: Path) -> None:
    def discard() -> None:
        with PartialFile(part, PATH, Disk()) as file:
            file.discard()
            raise RuntimeError

    leave(part, b"abc")
    with pytest.raises(RuntimeError):
        discard()
    assert not part.exists()
    assert not note_of(part).exists()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, NoSpaceError), (errno.EDQUOT, NoSpaceError), (errno.EROFS, StateError)]
)
@pytest.mark.parametrize("call", ["open", "write", "sync", "rename"])
def test_a_disk_that_refuses_is_told_and_the_descriptor_is_closed(
    part: Path, call: str, number: int, kind: type[Exception]
) -> None:
    class Refusing(Disk):
        pass

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number), str(part))

    setattr(Refusing, call, refuse)

    def download() -> None:
        with PartialFile(part, PATH, Refusing()) as file:
            file.begin(validator=TAG, offset=0)
            file.write(b"abc", now=0.0)
            file.keep()

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(kind, match="cannot be kept"):
        download()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
