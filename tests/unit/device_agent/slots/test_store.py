"""The state directory: layout, locks, the state and its copies, slots, and what is cleaned up."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.slots.state import SlotState
from device_agent.slots.store import UPDATE_LOCK, Store
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import NoSpaceError, StateError, UsageError
from tests.support.installed import QuickDisk, fill, install, names, tree

OTHER = "f" * 64


def digests(*bundles: Path) -> list[str]:
    return [open_bundle(bundle).digest for bundle in bundles]


# The directory.


def test_the_folders_are_private(store: Store) -> None:
    assert names(store.root) == ["blobs", "incoming", "metadata", "models"]
    assert {path.stat().st_mode & 0o777 for path in (store.root, *store.root.iterdir())} == {0o700}
    store.prepare()


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to("real")
    Store(tmp_path / "state").prepare()
    assert (tmp_path / "real" / "blobs").is_dir()


def test_a_model_is_named_as_a_bundle_may_be(store: Store) -> None:
    with pytest.raises(UsageError):
        store.model("../etc")
    (store.root / "models" / "tiny").mkdir()
    (store.root / "models" / "lost+found").mkdir()
    (store.root / "models" / "Thumbs.db").touch()
    (store.root / "models" / "link").symlink_to("tiny")
    assert store.models() == ["tiny"]
    assert Store(store.root / "none").models() == []


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOSPC, NoSpaceError, "the disk is full"),
        (errno.EDQUOT, NoSpaceError, "the disk is full"),
        (errno.EROFS, StateError, "Read-only"),
        (errno.EACCES, StateError, "Permission denied"),
        (errno.EIO, StateError, "Input/output"),
    ],
)
def test_what_the_disk_refuses_is_said(store: Store, number: int, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught, store.writing("the state"):
        raise OSError(number, os.strerror(number), "/some/file")
    assert str(caught.value).startswith("/some/file: the state cannot be written")
    assert "the version that serves is not touched" in str(caught.value)


# Locks.


def test_a_lock_is_held_once(store: Store) -> None:
    assert not store.is_locked(UPDATE_LOCK)
    with store.locked(UPDATE_LOCK, "another update"):
        assert store.is_locked(UPDATE_LOCK)
        second = store.locked(UPDATE_LOCK, "another update")
        with pytest.raises(StateError, match="another update uses this state directory already"), second:
            pass
    assert not store.is_locked(UPDATE_LOCK)


def test_whoever_only_asks_for_a_moment_is_waited_for(store: Store) -> None:
    asking = threading.Thread(target=lambda: _hold_for(store.root / UPDATE_LOCK, 0.05))
    asking.start()
    while not store.is_locked(UPDATE_LOCK) and asking.is_alive():
        time.sleep(0.001)
    with store.locked(UPDATE_LOCK, "another"):
        pass
    asking.join()


@contextmanager
def held(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_lock_is_waited_for(store: Store) -> None:
    path = store.root / UPDATE_LOCK
    with held(path):
        ended = threading.Timer(0.3, lambda: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_UN))
        before = time.monotonic()
        with pytest.raises(StateError), store.locked(UPDATE_LOCK, "another", wait=0.3):
            pass
        assert 0.3 <= time.monotonic() - before < 3
        ended.cancel()
    waiting = threading.Thread(target=lambda: _hold_for(path, 0.3))
    waiting.start()
    while not store.is_locked(UPDATE_LOCK):
        time.sleep(0.01)
    with store.locked(UPDATE_LOCK, "another", wait=10):
        pass
    waiting.join()


def _hold_for(path: Path, seconds: float) -> None:
    with held(path):
        time.sleep(seconds)


def test_who_asks_for_a_lock_does_not_take_it_from_anybody(store: Store) -> None:
    (store.root / UPDATE_LOCK).touch()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            store.is_locked(UPDATE_LOCK)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            with store.locked(UPDATE_LOCK, "another"):
                pass
    finally:
        stop.set()
        asking.join()


class ReadOnly(QuickDisk):
    """A disk that has become read-only."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return super().open(path, flags, mode)


def test_a_lock_needs_no_disk_that_can_be_written(store: Store) -> None:
    (store.root / UPDATE_LOCK).touch()
    still = Store(store.root, ReadOnly())
    with still.locked(UPDATE_LOCK, "another"):
        assert store.is_locked(UPDATE_LOCK)
    (store.root / UPDATE_LOCK).unlink()
    with pytest.raises(StateError, match="No such file"), still.locked(UPDATE_LOCK, "another"):
        pass


# The state.


def test_a_state_is_written_twice_and_linked(store: Store, bundles: list[Path]) -> None:
    state = install(store, bundles[0], bundles[1])
    assert store.read_state("tiny") == state
    assert state.sequence == 1
    folder = store.model("tiny")
    assert (folder / "state.json").read_bytes() == (folder / "state.backup.json").read_bytes() == state.to_bytes()
    assert str((folder / "active").readlink()) == f"slots/{digests(bundles[1])[0]}"
    assert store.damage("tiny") is None
    assert store.write_state(replace(state, active=state.previous, previous=None)).sequence == 2
    assert str((folder / "active").readlink()) == f"slots/{digests(bundles[0])[0]}"
    store.write_state(SlotState(model="tiny", sequence=2))
    assert not os.path.lexists(folder / "active")


def test_a_model_that_was_never_installed(store: Store) -> None:
    assert store.read_state("tiny") == SlotState(model="tiny")
    assert store.damage("tiny") is None


@pytest.mark.parametrize("damaged", ["state.json", "state.backup.json"])
def test_one_copy_of_the_state_is_enough(store: Store, bundles: list[Path], damaged: str) -> None:
    state = install(store, bundles[0])
    (store.model("tiny") / damaged).write_bytes(b"")
    assert store.read_state("tiny") == state
    assert store.damage("tiny") == f"{damaged} is damaged (is not JSON)"
    assert store.write_state(state).sequence == 2
    assert store.damage("tiny") is None


def test_the_newer_copy_counts(store: Store, bundles: list[Path]) -> None:
    state = install(store, bundles[0])
    newer = store.write_state(replace(state, pin="1.0.0"))
    (store.model("tiny") / "state.json").write_bytes(state.to_bytes())
    assert store.read_state("tiny") == newer


def test_the_link_names_the_active_slot_when_both_copies_are_lost(
    store: Store, bundles: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    state = install(store, bundles[0], bundles[1])
    for name in ("state.json", "state.backup.json"):
        (store.model("tiny") / name).unlink()
    with caplog.at_level(logging.ERROR, "edgeonnx.slots"):
        assert store.read_state("tiny") == SlotState(model="tiny", active=state.active)
        store.read_state("tiny")
    (record,) = caplog.records
    assert record.message == (
        "the state of tiny is lost (state.json is missing; state.backup.json is missing); "
        "version 1.1.0, which the link names, serves"
    )
    assert store.collect() == 0, "what the lost state may have named stays"
    assert store.slot_fault("tiny", state.previous.contents if state.previous else "") is None


class Failing(QuickDisk):
    """Refuses to write names that start so."""

    def __init__(self, start: str) -> None:
        self.start = start

    def rename(self, source: Path, target: Path) -> None:
        if target.name.startswith(self.start):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        super().rename(source, target)


def test_a_state_that_is_not_written_is_not_true(store: Store, bundles: list[Path]) -> None:
    state = install(store, bundles[0], bundles[1])
    before = tree(store.root)
    with pytest.raises(NoSpaceError):
        Store(store.root, Failing("state.json")).write_state(replace(state, active=state.previous))
    assert tree(store.root) == before


@pytest.mark.parametrize("name", ["state.backup.json", "active"])
def test_a_state_whose_copies_are_not_written_is_true_all_the_same(
    store: Store, bundles: list[Path], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = install(store, bundles[0], bundles[1])
    with caplog.at_level(logging.WARNING, "edgeonnx.slots"):
        written = Store(store.root, Failing(name)).write_state(replace(state, active=state.previous, previous=None))
    assert store.read_state("tiny") == written
    assert "the disk is full" in caplog.text


# Slots.


def test_a_slot_is_what_its_name_says(store: Store, bundles: list[Path]) -> None:
    state = install(store, bundles[0])
    digest = digests(bundles[0])[0]
    assert store.slot_fault("tiny", digest, hashed=True) is None
    assert store.slot_fault("tiny", OTHER) == f"{OTHER[:16]} is missing"
    store.slot("tiny", digest).rename(store.slot("tiny", OTHER))
    assert store.slot_fault("tiny", OTHER) == f"{OTHER[:16]} holds tiny {digest[:16]}"
    assert store.damage("tiny") == f"the active slot {digest[:16]} is missing"
    assert store.read_state("tiny") == state


def test_a_slot_that_lies_elsewhere_is_none(store: Store, bundles: list[Path], tmp_path: Path) -> None:
    install(store, bundles[0])
    slot = store.slot("tiny", digests(bundles[0])[0])
    slot.rename(tmp_path / "elsewhere")
    slot.symlink_to(tmp_path / "elsewhere")
    assert store.slot_fault("tiny", slot.name) == f"{slot.name[:16]} is no folder"


def test_a_content_gets_a_further_name_or_a_checked_copy(store: Store, bundles: list[Path], tmp_path: Path) -> None:
    class NoLinks(QuickDisk):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    digest = fill(store, bundles[0])[0]
    store.place(digest, tmp_path / "link")
    assert (store.blob(digest)).samefile(tmp_path / "link")
    plain = Store(store.root, NoLinks())
    plain.place(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == store.blob(digest).read_bytes()
    assert (tmp_path / "copy").stat().st_nlink == 1
    with pytest.raises(FileExistsError):
        store.place(digest, tmp_path / "copy")
    store.blob(digest).chmod(0o600)
    store.blob(digest).write_bytes(b"other")
    with pytest.raises(OSError, match="other bytes"):
        plain.place(digest, tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_a_slot_loses_its_name_before_its_files(store: Store, bundles: list[Path]) -> None:
    install(store, bundles[0])
    digest = digests(bundles[0])[0]

    class Cut(QuickDisk):
        def unlink(self, path: Path) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(store.root, Cut()).discard_slot("tiny", digest)
    assert names(store.slots("tiny")) == [f".{digest}.old"]
    store.discard_slot("tiny", digest)
    assert store.collect() == 0 or names(store.slots("tiny")) == []
