from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.config import UpdateConfig
from device_agent.slots.store import Store
from device_agent.update.enrollment import (
    Enrollment,
    check_device_id,
    enroll,
    new_device_id,
    read_enrollment,
    read_root_file,
    repository_url,
    with_changes,
)
from edgeonnx.errors import FetchError, NotEnrolledError, StateError, UntrustedError, UsageError
from edgeonnx.spec.rollout import position
from tests.support.device import QuickDisk, QuickFiles, TestDevice
from tests.support.repository import TestRepository

SETTINGS = UpdateConfig(retries=0)


def enrollment(repository: TestRepository, **changes: object) -> Enrollment:
    """An enrolment with a repository in a folder."""
    made = Enrollment(url=repository.path.as_uri(), channel="stable", device="device-1")
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A state directory that does not exist yet."""
    return Store(tmp_path / "state", QuickDisk())


def test_an_enrolment_is_read_as_it_was_written(repository: TestRepository, store: Store) -> None:
    wanted = enrollment(repository, models=("tiny",))
    channel = enroll(store, wanted, repository.root_bytes, SETTINGS)
    assert [offer.version for offer in channel.models["tiny"].offers] == ["1.0.0"]
    assert read_enrollment(store) == wanted


def test_a_device_that_is_not_enrolled_is_told_what_to_do(store: Store) -> None:
    with pytest.raises(NotEnrolledError, match="edgeonnx-agent enroll --repo"):
        read_enrollment(store)


@pytest.mark.parametrize(
    ("changes", "root", "error"),
    [
        ({"url": "file:///nowhere-at-all"}, None, UsageError),
        ({"channel": "beta"}, None, UsageError),
        ({}, b"<html>", UntrustedError),
        ({}, b"", UntrustedError),
        ({}, b"{}", UntrustedError),
    ],
    ids=["no such folder", "no such channel", "html", "empty", "no root"],
)
def test_a_mistake_is_told_at_once_and_nothing_is_written(
    repository: TestRepository, store: Store, changes: dict[str, object], root: bytes | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        enroll(store, enrollment(repository, **changes), repository.root_bytes if root is None else root, SETTINGS)
    assert not store.root.exists()


def test_a_repository_that_is_not_signed_by_the_root_is_refused(
    repository: TestRepository, store: Store, tmp_path: Path
) -> None:
    other = TestRepository.create(tmp_path / "other", files=QuickFiles(tmp_path / "other"))
    with pytest.raises(UntrustedError):
        enroll(store, enrollment(repository), other.root_bytes, SETTINGS)
    assert not store.root.exists()


def test_a_repository_that_lacks_its_metadata_is_told(repository: TestRepository, store: Store) -> None:
    (repository.path / "metadata" / "timestamp.json").unlink()
    with pytest.raises(FetchError):
        enroll(store, enrollment(repository), repository.root_bytes, SETTINGS)


def test_enrolling_again_keeps_what_is_installed_and_what_was_accepted(
    device: TestDevice, offer: Callable[[str], str]
) -> None:
    device.install()
    floor = (device.store.metadata / "anchor" / "floor.json").read_bytes()
    enroll(device.store, enrollment(device.repository, device="device-2"), device.repository.root_bytes, SETTINGS)
    assert read_enrollment(device.store).device == "device-2"
    assert (device.store.metadata / "anchor" / "floor.json").read_bytes() == floor
    device.check_active("1.0.0")


def test_another_repository_needs_force_and_then_begins_anew(
    device: TestDevice, bundles: dict[str, Path], tmp_path: Path
) -> None:
    device.install()
    other = TestRepository.create(tmp_path / "other", files=QuickFiles(tmp_path / "other"))
    other.publish(bundles["1.1.0"])
    wanted = enrollment(other)
    with pytest.raises(UsageError, match="--force"):
        enroll(device.store, wanted, other.root_bytes, SETTINGS)
    assert read_enrollment(device.store) == enrollment(device.repository)
    enroll(device.store, wanted, other.root_bytes, SETTINGS, force=True)
    device.check_active("1.0.0")
    device.install()
    device.check_active("1.1.0")


def test_what_is_not_given_stays_as_it_was(repository: TestRepository) -> None:
    before = enrollment(repository, channel="beta", models=("tiny",))
    after = with_changes(before, url="https://elsewhere.test", channel=None, models=(), device=None)
    assert after == replace(before, url="https://elsewhere.test")
    fresh = with_changes(None, url="https://elsewhere.test", channel=None, models=(), device=None)
    assert fresh.channel == "stable"
    assert fresh.device != with_changes(None, url="x://y", channel=None, models=(), device=None).device


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00" * 10, b'{"schema_version": "1.0"}'])
def test_a_damaged_enrolment_is_told(device: TestDevice, data: bytes) -> None:
    path = device.store.root / "enrollment.json"
    path.write_bytes(data)
    with pytest.raises(StateError, match="enrol again"):
        read_enrollment(device.store)


def test_a_link_in_its_place_is_not_followed(device: TestDevice, tmp_path: Path) -> None:
    path = device.store.root / "enrollment.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError):
        read_enrollment(device.store)


def test_device_ids_are_random_and_in_no_order() -> None:
    ids = {new_device_id() for _ in range(100)}
    assert len(ids) == 100
    assert len({position(device, "a" * 64) // 100_000 for device in ids}) >= 8


@pytest.mark.parametrize("device", ["", "a b", "é", "x" * 129, "a\n"])
def test_what_is_no_device_id_is_refused(device: str) -> None:
    with pytest.raises(UsageError):
        check_device_id(device)


def test_a_folder_is_a_repository_too(tmp_path: Path) -> None:
    (tmp_path / "a stick").mkdir()
    assert repository_url(str(tmp_path / "a stick")) == f"file://{tmp_path}/a%20stick"
    assert repository_url("https://host/path/") == "https://host/path"
    with pytest.raises(UsageError, match="--repo"):
        repository_url("host/path")


def test_a_root_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--root"):
        read_root_file(tmp_path / "none")
    (tmp_path / "huge").write_bytes(bytes(600_000))
    with pytest.raises(UsageError, match="at most"):
        read_root_file(tmp_path / "huge")
