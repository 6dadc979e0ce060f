"""Power cuts and full disks at every write of an update: a verified bundle serves at once, and a later update finishes.

This is the short form, at points that chance chose; `bench/power_cuts.py` goes through all of them. Another seed
(EDGEONNX_CRASH_SEED) chooses others; a failure tells the seed and the point.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from device_agent.slots.disk import Disk
from device_agent.slots.store import Store
from edgeonnx.errors import NoSpaceError, StateError
from tests.support import crash
from tests.support.crash import STAGES, World, memory_folder, quiet
from tests.support.crash_model import Crash, File, Folder, Link, Model, build, crash_states, signature
from tests.support.faulty import CountingDisk, FaultyDisk
from tests.support.installed import QuickDisk, tree
from tests.support.kills import spread
from tests.support.recording import Operation, RecordingDisk, promised

SEED = int(os.environ.get("EDGEONNX_CRASH_SEED", "20261130"))
NOTHING = Crash(name="nothing", keeps=lambda _: False, data=lambda _: None)
NAMES = Crash(name="names", keeps=lambda _: True, data=lambda _: None)
EVERYTHING = Crash(name="everything", keeps=lambda _: True, data=lambda data: data)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with quiet(), memory_folder() as folder:
        yield World(folder)


# The model of the disk.


def left(folder: Path, work: Callable[[Disk], None], crash: Crash) -> dict[str, bytes | str]:
    """What a crash after some work leaves, as names and contents."""
    model, disk = Model(folder), RecordingDisk(folder)
    work(disk)
    for operation in disk.operations:
        model.apply(operation)
    build(model.after(crash), folder / "after")
    return tree(folder / "after")


def test_what_was_not_synced_may_be_lost_or_torn(tmp_path: Path) -> None:
    def work(disk: Disk) -> None:
        descriptor = disk.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        disk.write_all(descriptor, b"synced")
        disk.sync(descriptor)
        disk.sync_folder(tmp_path)
        disk.write_all(descriptor, b" and not")
        disk.close(descriptor)

    torn = Crash(name="torn", keeps=lambda _: False, data=lambda data: data[:3])
    for crash_, content in ((NOTHING, b"synced"), (EVERYTHING, b"synced and not"), (torn, b"synced an")):
        assert left(tmp_path, work, crash_) == {"file": content}
        shutil.rmtree(tmp_path / "after")
        (tmp_path / "file").unlink()


def test_a_synced_file_in_a_folder_that_is_not_synced_may_have_no_name(tmp_path: Path) -> None:
    assert left(tmp_path, lambda disk: disk.create(tmp_path / "file", [b"x"]), NOTHING) == {}
    shutil.rmtree(tmp_path / "after")
    (tmp_path / "file").unlink()
    assert left(tmp_path, lambda disk: disk.replace(tmp_path / "file", b"x"), NOTHING) == {"file": b"x"}


def test_a_rename_without_data_shows_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "name").write_bytes(b"old")

    def work(disk: Disk) -> None:
        descriptor = disk.open(tmp_path / "beside", os.O_WRONLY | os.O_CREAT)
        disk.write_all(descriptor, b"new")
        disk.close(descriptor)
        disk.rename(tmp_path / "beside", tmp_path / "name")

    assert left(tmp_path, work, NAMES) == {"name": b""}


def test_a_rename_between_folders_may_lose_both_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x")
    only_loss = Crash(name="loss", keeps=lambda number: False, data=lambda _: None)

    def work(disk: Disk) -> None:
        disk.rename(tmp_path / "a" / "file", tmp_path / "b" / "file")
        disk.sync_folder(tmp_path / "a")

    assert left(tmp_path, work, only_loss) == {"a": "/", "b": "/"}


def test_folders_links_and_hard_links(tmp_path: Path) -> None:
    def work(disk: Disk) -> None:
        disk.make_folder(tmp_path / "one")
        disk.create(tmp_path / "one" / "file", [b"x"])
        disk.link(tmp_path / "one" / "file", tmp_path / "second")
        disk.symlink("one", tmp_path / "link")
        disk.mkdir(tmp_path / "gone")
        disk.rmdir(tmp_path / "gone")

    assert left(tmp_path, work, EVERYTHING) == {"one": "/", "one/file": b"x", "second": b"x", "link": "-> one"}
    assert (tmp_path / "after" / "one" / "file").samefile(tmp_path / "after" / "second")
    shutil.rmtree(tmp_path / "after")
    for name in ("second", "link"):
        (tmp_path / name).unlink()
    shutil.rmtree(tmp_path / "one")
    assert left(tmp_path, work, NOTHING) == {"one": "/"}


def test_equal_trees_have_one_signature() -> None:
    file = File(data=b"x")
    one = Folder(names={"a": file, "b": file, "c": Link("a")})
    assert signature(one) == signature(Folder(names={"c": Link("a"), "b": file, "a": file}))
    assert signature(one) != signature(Folder(names={"a": file, "b": File(data=b"x"), "c": Link("a")}))


# Power cuts.


def recorded(world: World, number: int, kind: type[RecordingDisk] = RecordingDisk) -> list[Operation]:
    device = world.device(number)
    disk = kind(device)
    world.run(STAGES[number], device, disk)
    shutil.rmtree(device)
    return disk.operations


def cut(world: World, number: int, left_over: Folder, least: int) -> None:
    """Start a device from what a crash left."""
    device = world.place()
    build(left_over, device)
    try:
        world.recover(number, device, promised=least)
    finally:
        shutil.rmtree(device)


@pytest.mark.parametrize("number", range(len(STAGES)), ids=[stage.name for stage in STAGES])
def test_what_any_power_cut_leaves_serves_and_is_updated(world: World, number: int) -> None:
    rng = random.Random(SEED + number)
    operations = recorded(world, number)
    states = list(crash_states(world.before[number], operations, rng))
    assert len(states) > 20
    for place, name, left_over in spread(states, 6, rng):
        try:
            cut(world, number, left_over, promised(operations, place))
        except Exception as error:
            error.add_note(f"seed {SEED}, stage {STAGES[number].name}, after {place} operations: {name}")
            raise


def is_folder(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


class ForgetsFiles(RecordingDisk):
    """A disk whose programmer forgot to sync files before they are renamed."""

    def sync(self, descriptor: int) -> None:
        if is_folder(descriptor):
            super().sync(descriptor)


class ForgetsFolders(RecordingDisk):
    """A disk whose programmer forgot to sync folders after a rename."""

    def sync(self, descriptor: int) -> None:
        if not is_folder(descriptor):
            super().sync(descriptor)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ForgetsFiles, "not what its name says|went back|damaged"),
        (ForgetsFolders, "went back|nothing serves|is missing|is damaged"),
    ],
    ids=["files", "folders"],
)
def test_a_disk_that_forgets_to_sync_is_found_out(world: World, kind: type[RecordingDisk], said: str) -> None:
    operations = recorded(world, 1, kind)
    states = list(crash_states(world.before[1], operations, random.Random(SEED)))

    def start_all() -> None:
        for place, _, left_over in reversed(states):
            device = world.place()
            build(left_over, device)
            world.start(1, device, promised=promised(operations, place))
            shutil.rmtree(device)

    with pytest.raises(AssertionError, match=said):
        start_all()


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What `tests.support.kills` tells of each way to kill; in one process of its own, because it forks."""
    ways = ["disk=8", *(["strace=5", "command=1", "around"] if shutil.which("strace") else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kills", str(SEED), *ways],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"seed {SEED}: {done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_process_that_is_killed_at_an_operation_leaves_a_device_that_serves_and_is_updated(
    told: dict[str, Any],
) -> None:
    assert told["disk"] == 8


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@needs_strace
def test_a_process_that_is_killed_at_a_system_call_leaves_a_device_that_serves_and_is_updated(
    told: dict[str, Any],
) -> None:
    assert told["strace"] >= 3


@needs_strace
def test_the_command_itself_may_be_killed_while_it_updates(told: dict[str, Any]) -> None:
    assert told["command"] == 1


@needs_strace
def test_nothing_is_written_around_the_disk(told: dict[str, Any]) -> None:
    assert told["around"] == []


# Full and failing disks.


def operations_of(world: World, number: int) -> int:
    device, disk = world.device(number), CountingDisk()
    world.run(STAGES[number], device, disk)
    shutil.rmtree(device)
    return disk.count


FAULTS = (
    {"number": errno.ENOSPC, "lasting": True},
    {"number": errno.ENOSPC, "short": True},
    {"number": errno.EDQUOT, "lasting": True},
    {"number": errno.EIO},
    {"number": errno.EROFS, "lasting": True},
)


def test_an_update_on_a_disk_that_fails_at_some_operation_refuses_and_a_later_one_finishes(world: World) -> None:
    rng, refused = random.Random(SEED), 0
    points = [(number, at) for number in range(len(STAGES)) for at in range(1, operations_of(world, number) + 1)]
    for index, (number, at) in enumerate(spread(points, 10, rng)):
        fault = FAULTS[index % len(FAULTS)]
        try:
            device, said = world.faulty(number, FaultyDisk(at, **fault))  # type: ignore[arg-type]
            full = fault["number"] in (errno.ENOSPC, errno.EDQUOT)
            assert said is None or isinstance(said, NoSpaceError if full else StateError)
            refused += said is not None
            world.recover(number, device)
        except Exception as error:
            error.add_note(f"seed {SEED}, stage {STAGES[number].name}, operation {at}: {fault}")
            raise
        shutil.rmtree(device)
    assert refused > 3


def test_a_disk_that_is_full_from_the_start_refuses_and_the_active_version_serves(world: World) -> None:
    device, said = world.faulty(1, FaultyDisk(1, lasting=True))
    assert isinstance(said, NoSpaceError)
    assert "make room" in str(said)
    assert (
        Store(device / "state").read_state(crash.MODEL).active
        == Store(world.before[1] / "state").read_state(crash.MODEL).active
    )
    shutil.rmtree(device)


class PlainDisk(QuickDisk):
    """A file system that has no hard links, or does not allow them."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))


def test_a_file_system_without_hard_links_has_copies(world: World) -> None:
    device = world.place()
    device.mkdir()
    for stage in (STAGES[0], STAGES[1]):
        world.run(stage, device, PlainDisk())
    store = Store(device / "state", PlainDisk())
    state = store.read_state(crash.MODEL)
    assert state.active is not None
    assert state.active.version == STAGES[1].version
    assert store.slot_fault(crash.MODEL, state.active.contents, hashed=True) is None
    assert {path.stat().st_nlink for path in store.root.rglob("*") if path.is_file()} == {1}
    assert store.damage(crash.MODEL) is None
    assert store.collect() == 0, "the contents are what the next update is a difference to"
    shutil.rmtree(device)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with little room."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "none", tmp_path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_real_file_system_that_is_full(world: World, small_disk: Path) -> None:
    world.run(STAGES[0], small_disk)
    ballast = small_disk / "ballast"
    refused = 0
    for spare in (0, 1, 2, 3, 4, 6, 8, 12):
        status = os.statvfs(small_disk)
        ballast.write_bytes(bytes(max(0, status.f_bavail - spare) * status.f_frsize))
        try:
            world.run(STAGES[1], small_disk, Disk())
        except (NoSpaceError, StateError):
            refused += 1
        ballast.unlink()
        world.start(1, small_disk)
    assert refused >= 2
    world.recover(1, small_disk)
