from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from device_agent.slots.disk import TEMPORARY, Disk
from device_agent.update.trust import metadata as module
from device_agent.update.trust.metadata import read_root
from edgeonnx.errors import FetchError, NoSpaceError, StateError, UntrustedError
from tests.support.tuf_simulator import CHANNEL, EXPIRES, RELEASE, START, Device, Simulator, Times


class CountingDisk(Disk):
    """Counts what changes the disk, and can stop the process before one of those steps, or refuse it."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.stop_at: int | None = None
        self.error: BaseException = PowerCutError()

    def _step(self, name: str) -> None:
        if self.stop_at is not None and len(self.steps) >= self.stop_at:
            raise self.error
        self.steps.append(name)

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT:
            self._step("create")
        return super().open(path, flags, mode)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._step("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._step("sync")

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def symlink(self, text: str, target: Path) -> None:
        self._step("symlink")
        super().symlink(text, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)

    def mkdir(self, path: Path, mode: int = 0o700) -> None:
        self._step("mkdir")
        super().mkdir(path, mode)


class PowerCutError(BaseException):
    """The process ends here."""


@pytest.fixture
def repository() -> Simulator:
    return Simulator()


@pytest.fixture
def device(tmp_path: Path, repository: Simulator) -> Device:
    return Device(tmp_path, repository)


def everything(device: Device) -> tuple[bytes | None, bytes | None]:
    metadata = device.refresh()
    return metadata.target(CHANNEL), metadata.target(RELEASE)


def test_targets_come_verified_from_the_roles_that_may_sign_them(device: Device) -> None:
    assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')
    assert device.open().target("channels/other.json") is None


def test_a_refresh_without_news_asks_for_two_files_and_writes_nothing(tmp_path: Path, repository: Simulator) -> None:
    disk = CountingDisk()
    device = Device(tmp_path, repository, disk=disk)
    everything(device)
    repository.requests.clear()
    disk.steps.clear()
    everything(device)
    assert repository.requests == ["metadata/2.root.json", "metadata/timestamp.json"]
    assert disk.steps == []


def test_what_changed_is_fetched_alone(device: Device, repository: Simulator) -> None:
    everything(device)
    repository.add_target("rollout", CHANNEL, b'{"channel": 2}')
    repository.release("rollout")
    repository.requests.clear()
    assert everything(device) == (b'{"channel": 2}', b'{"release": 1}')
    assert [path.rpartition("/")[2][:20] for path in repository.requests[:4]] == [
        "2.root.json",
        "timestamp.json",
        "2.snapshot.json",
        "2.rollout.json",
    ]
    assert len(repository.requests) == 5


def test_a_target_that_is_damaged_here_is_fetched_anew(device: Device) -> None:
    everything(device)
    for path in (device.metadata / "targets").iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')


def test_targets_that_are_kept_are_few(device: Device, repository: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_TARGETS", 3)
    names = [f"channels/c{number}.json" for number in range(5)]
    for name in names:
        repository.add_target("rollout", name, b"x")
    repository.release("rollout")
    metadata = device.refresh()
    assert [metadata.target(name) for name in names] == [b"x"] * 5
    assert len(list((device.metadata / "targets").iterdir())) == 3


# The anchor.


def test_the_chain_of_roots_begins_at_the_pinned_one(device: Device, repository: Simulator) -> None:
    device.refresh()
    repository.rotate("root")
    repository.publish("root")
    repository.rotate("timestamp")
    repository.publish("root")
    repository.publish("timestamp")
    device.refresh()
    assert device.versions()["root"] == 3
    assert (device.metadata / "anchor" / "root.json").read_bytes() == repository.root
    assert sorted(path.name for path in (device.metadata / "root_history").iterdir()) == [
        "1.root.json",
        "2.root.json",
        "3.root.json",
    ]


def test_the_same_root_again_changes_nothing(device: Device, repository: Simulator) -> None:
    everything(device)
    before = device.versions()
    device.open().bootstrap(repository.root)
    assert device.versions() == before


def test_another_root_begins_anew(device: Device) -> None:
    device.repository.rotate("root")
    device.repository.publish("root")
    everything(device)
    other = Simulator(now=START - timedelta(days=1))
    other.rotate("snapshot")
    for role in ("root", "snapshot", "timestamp"):
        other.publish(role, bump=False)
    device.repository = other
    device.open().bootstrap(other.root)
    assert device.versions() == {}
    assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')
    assert device.versions()["root"] == 1


def test_an_expired_root_is_fine_if_the_repository_has_a_newer_one(
    tmp_path: Path, repository: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    times = Times(system=(START + timedelta(days=400)).timestamp())
    with caplog.at_level(logging.WARNING):
        device = Device(tmp_path, repository, times)
    assert "the pinned root expired on 2027-06-01" in caplog.text
    with pytest.raises(UntrustedError, match=r"root has expired.*2027-06-01.*the system clock is wrong"):
        device.refresh()
    repository.now += timedelta(days=400)
    repository.publish("root")
    repository.release("targets", "releases", "rollout")
    assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<!DOCTYPE html><html><body>Log in</body></html>", "web page.*repository's address"),
        (b"", "not metadata.*0 bytes"),
        (b'{"signed": {"version": 1}, "signatures": []', "not metadata"),
        (b'{"signed": {"version": 1, "version": 2}, "signatures": []}', "duplicate key"),
        (b'{"signed": {"version": 1, "_type": "root"}, "signatures": []}', "not root metadata"),
        (b'{"signed": {"version": 1}, "signatures": []}', "not root metadata"),
        (b"[" * 100_000, "not metadata"),
    ],
    ids=["page", "empty", "cut", "duplicate", "fields", "no type", "deep"],
)
def test_what_is_no_root_is_refused_and_nothing_is_kept(
    tmp_path: Path, repository: Simulator, data: bytes, message: str
) -> None:
    device = Device(tmp_path, repository)
    with pytest.raises(UntrustedError, match=message):
        device.open().bootstrap(data)
    assert (device.metadata / "anchor" / "root.json").read_bytes() == repository.root


def test_other_roles_and_unsigned_roots_are_no_root(repository: Simulator) -> None:
    with pytest.raises(UntrustedError, match="the role timestamp"):
        read_root(repository.files["metadata/timestamp.json"])
    document = json.loads(repository.root)
    document["signed"]["consistent_snapshot"] = False
    with pytest.raises(UntrustedError, match="own keys"):
        read_root(json.dumps(document).encode())


def test_without_a_root_the_error_says_to_enrol(device: Device) -> None:
    (device.metadata / "anchor" / "root.json").unlink()
    with pytest.raises(StateError, match="enrol the device"):
        device.refresh()


def test_a_damaged_anchor_is_read_from_its_copy(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    device.refresh()
    (device.metadata / "anchor" / "root.json").write_bytes(b"{")
    with caplog.at_level(logging.WARNING):
        assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')
    assert "damaged" in caplog.text


# What the disk does.


def test_after_a_power_cut_at_any_step_the_next_refresh_succeeds(tmp_path: Path) -> None:
    """Names only; that unsynced writes may be lost, too, is tested with the whole update."""
    repository = Simulator()
    everything(Device(tmp_path / "before", repository))
    repository.rotate("timestamp")
    repository.publish("root")
    repository.add_target("rollout", CHANNEL, b'{"channel": 2}')
    repository.release("rollout")
    stopped = 0
    while True:
        disk = CountingDisk()
        device = Device(tmp_path / "before", repository, disk=disk)
        device.folder = Path(shutil.copytree(device.folder, tmp_path / str(stopped), symlinks=True))
        disk.steps.clear()
        disk.stop_at = stopped
        try:
            everything(device)
        except PowerCutError:
            pass
        else:
            break
        disk.stop_at = None
        assert everything(device) == (b'{"channel": 2}', b'{"release": 1}'), f"step {stopped}"
        assert device.versions() == {**dict.fromkeys(EXPIRES, 2), "targets": 1, "releases": 1}
        assert [path for path in device.metadata.rglob("*") if path.name.endswith(TEMPORARY)] == []
        stopped += 1
    assert stopped > 30


@pytest.mark.parametrize(
    ("number", "kind", "message"), [(30, StateError, "cannot be kept"), (28, NoSpaceError, "cannot be kept")]
)
def test_a_disk_that_refuses_is_an_error_that_says_so(
    tmp_path: Path, repository: Simulator, number: int, kind: type[Exception], message: str
) -> None:
    disk = CountingDisk()
    device = Device(tmp_path, repository, disk=disk)
    disk.stop_at, disk.error = len(disk.steps), OSError(number, os.strerror(number))
    with pytest.raises(kind, match=message):
        device.refresh()
    disk.stop_at = None
    assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')


# The memory.


def damage_nothing(folder: Path) -> None:
    pass


def tear(name: str) -> Callable[[Path], None]:
    def torn(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return torn


def zero(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(b"\0" * 100) and None


def lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def flip(name: str) -> Callable[[Path], None]:
    def flipped(folder: Path) -> None:
        data = (folder / name).read_bytes()
        changed = re.sub(rb'"version": ?3', b'"version":9', data)
        assert changed != data
        (folder / name).write_bytes(changed)

    return flipped


DAMAGES = [damage_nothing] + [
    make(name) for name in ("timestamp.json", "snapshot.json", "anchor/floor.json") for make in (tear, zero, lose, flip)
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damaged_file_does_not_let_the_repository_go_back(
    device: Device, repository: Simulator, damage: Callable[[Path], None]
) -> None:
    repository.release("rollout")
    old = dict(repository.files)
    repository.release("rollout")
    device.refresh()
    damage(device.metadata)
    new = dict(repository.files)
    repository.files.clear()
    repository.files.update(old)
    with pytest.raises(UntrustedError, match=r"older|version"):
        device.refresh()
    assert device.versions().get("timestamp") != 2  # what is refused is not kept either
    repository.files.update(new)
    assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')
    assert device.versions()["timestamp"] == 3


def test_a_restored_backup_of_the_local_files_does_not_help_to_go_back(device: Device, repository: Simulator) -> None:
    device.refresh()
    backup = {name: (device.metadata / name).read_bytes() for name in ("timestamp.json", "snapshot.json")}
    old = dict(repository.files)
    repository.release("rollout")
    device.refresh()
    for name, data in backup.items():
        (device.metadata / name).write_bytes(data)
    repository.files.clear()
    repository.files.update(old)
    with pytest.raises(UntrustedError, match="an older timestamp"):
        device.refresh()


def test_lost_roots_do_not_let_an_old_root_come_back(device: Device, repository: Simulator) -> None:
    device.refresh()
    old = dict(repository.files)
    repository.rotate("timestamp")
    repository.publish("root")
    repository.publish("timestamp")
    device.refresh()
    (device.metadata / "root_history" / "2.root.json").write_bytes(b"")
    repository.files.clear()
    repository.files.update(old)
    with pytest.raises(UntrustedError, match="an older root"):
        device.refresh()


def test_what_is_torn_is_set_aside_and_said(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    everything(device)
    tear("rollout.json")(device.metadata)
    with caplog.at_level(logging.WARNING):
        assert everything(device) == (b'{"channel": 1}', b'{"release": 1}')
    assert (device.metadata / "rollout.json.damaged").is_file()
    assert "rollout.json is damaged" in caplog.text


def test_what_was_accepted_before_a_failure_is_remembered(device: Device, repository: Simulator) -> None:
    """The timestamp was accepted although its snapshot is missing; losing it must not forget it."""
    device.refresh()
    old = dict(repository.files)
    repository.release("rollout")
    del repository.files["metadata/2.snapshot.json"]
    with pytest.raises(FetchError, match="no snapshot"):
        device.refresh()
    (device.metadata / "timestamp.json").unlink()
    repository.files.clear()
    repository.files.update(old)
    with pytest.raises(UntrustedError, match="an older timestamp"):
        device.refresh()


def test_a_repository_without_a_timestamp_may_be_at_another_address(device: Device, repository: Simulator) -> None:
    repository.files.clear()
    with pytest.raises(FetchError, match=r"no timestamp.*repository's address"):
        device.refresh()


# The time.


def test_the_pinned_root_tells_a_box_without_a_clock_the_time(tmp_path: Path, repository: Simulator) -> None:
    device = Device(tmp_path, repository, Times(system=0.0))
    assert device.clock().bound() == START.timestamp()
    assert device.clock().behind


def test_a_lost_clock_is_restored_from_what_was_accepted(device: Device, repository: Simulator) -> None:
    repository.now += timedelta(days=30)
    repository.release("rollout")
    device.times.system = 0.0
    device.refresh()
    (device.folder / "clock.json").write_bytes(b"{")
    repository.files.clear()
    with pytest.raises(FetchError):
        device.refresh()
    assert device.clock().bound() == repository.now.timestamp()


def test_enrolling_anew_takes_back_a_time_that_cannot_be(device: Device, repository: Simulator) -> None:
    """The way out if a stolen key made up a time, and the memory of which key it was is lost."""
    repository.now += timedelta(days=20_000)
    repository.release("rollout")
    with pytest.raises(UntrustedError, match="targets has expired"):
        device.refresh()
    (device.metadata / "anchor" / "floor.json").unlink()
    repository.now = START
    repository.publish("root")
    device.open().bootstrap(repository.files["metadata/2.root.json"])
    assert device.clock().bound() == START.timestamp()
