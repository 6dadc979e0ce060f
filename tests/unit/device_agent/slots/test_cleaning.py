"""Removing what no model needs: never what serves, what served before, or what is being installed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from device_agent.slots.state import Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import StateError
from tests.support.installed import QuickDisk, build, fill, install, names, tree

OTHER = "f" * 64


def digests(*bundles: Path) -> list[str]:
    return [open_bundle(bundle).digest for bundle in bundles]


def running(store: Store, state: SlotState, release: Installed, *path: AttemptState) -> SlotState:
    state = begin(state, release, tries=3, now=0.0)
    for to in path:
        state = step(state, to, now=0.0)
    return store.write_state(state)


def test_what_nothing_names_is_removed(store: Store, bundles: list[Path]) -> None:
    state = install(store, *bundles)
    install(store, bundles[1], bundles[2])
    oldest, previous, active = digests(*bundles)
    (store.slots("tiny") / f".{OTHER}.new").mkdir()
    (store.slots("tiny") / f".{OTHER}.new" / "half").write_bytes(b"x" * 100)
    (store.slots("tiny") / "notes.txt").write_bytes(b"by hand")
    for name in (f"{OTHER}.zst.part", f"{OTHER}.zst.part.json", f"{active}.new", "stray"):
        (store.incoming / name).write_bytes(b"x" * 10)
    (store.root / ".enrollment.json.0123abcd.new").touch()
    (store.model("tiny") / ".state.json.0123abcd.new").touch()
    only_old = {path for path in store.blobs.rglob("*") if path.is_file()} - {
        store.blob(digest) for bundle in bundles[1:] for digest in fill(store, bundle)
    }
    size = sum(path.stat().st_size for path in only_old)
    assert size > 0
    assert store.collect() == size + 100 + 7 + 40
    assert names(store.slots("tiny")) == sorted([previous, active])
    assert names(store.incoming) == []
    assert not any(path.exists() for path in only_old)
    assert [path.name for path in store.root.rglob("*.new")] == []
    assert store.damage("tiny") is None
    assert store.slot_fault("tiny", active, hashed=True) is store.slot_fault("tiny", previous, hashed=True) is None
    assert store.collect() == 0
    assert state.model == "tiny"
    assert oldest not in names(store.slots("tiny"))


def test_what_a_download_has_so_far_stays(store: Store, bundles: list[Path]) -> None:
    state = install(store, bundles[0])
    listed = open_bundle(bundles[1])
    kept = fill(store, bundles[1])
    release = Installed(version="1.1.0", contents=listed.digest)
    running(store, state, release)
    shared = {entry.sha256 for entry in open_bundle(bundles[0]).contents.files}
    coming = [digest for digest in kept[1:] if digest not in shared][:2]
    kept = [digest for digest in kept if digest not in coming]
    for digest in coming:
        store.disk.remove(store.blob(digest))
    parts = [f"{coming[0]}.zst.part", f"{coming[0]}.zst.part.json", f"{coming[1]}.{OTHER}.planes4.part"]
    # The last two are for nothing: one is of no release, the other one's content is here already.
    for name in (*parts, f"{OTHER}.zst.part", f"{kept[1]}.zst.part"):
        (store.incoming / name).write_bytes(b"x")
    store.collect()
    assert all(store.blob(digest).exists() for digest in kept)
    assert names(store.incoming) == sorted(parts)
    store.write_state(step(store.read_state("tiny"), AttemptState.ABANDONED, now=0.0))
    store.collect()
    assert names(store.incoming) == []
    assert {digest for digest in kept if store.blob(digest).exists()} == set(kept) & set(fill(store, bundles[0]))


def test_a_download_of_the_list_itself_stays(store: Store, bundles: list[Path]) -> None:
    state = install(store, bundles[0])
    release = Installed(version="1.1.0", contents=digests(bundles[1])[0])
    running(store, state, release)
    (store.incoming / f"{release.contents}.zst.part").write_bytes(b"x")
    store.collect()
    assert names(store.incoming) == [f"{release.contents}.zst.part"]


def test_what_the_caller_names_stays(store: Store, bundles: list[Path]) -> None:
    install(store, bundles[0])
    kept = fill(store, bundles[1])
    store.collect(frozenset(kept[:2]))
    assert [store.blob(digest).exists() for digest in kept[:2]] == [True, True]


@pytest.mark.parametrize("to", [(AttemptState.STAGED,), (AttemptState.STAGED, AttemptState.CANDIDATE)])
def test_the_slot_of_an_attempt_stays(store: Store, bundles: list[Path], to: tuple[AttemptState, ...]) -> None:
    state = install(store, bundles[0])
    release = build(store, bundles[1])
    running(store, state, release, *to)
    assert store.collect() == 0
    assert store.slot_fault("tiny", release.contents, hashed=True) is None


def test_contents_that_a_slot_holds_stay_when_its_list_is_lost(store: Store, bundles: list[Path]) -> None:
    install(store, bundles[0])
    held_by_slot = fill(store, bundles[0])[1:]
    for path in (store.slot("tiny", digests(bundles[0])[0]) / "contents.json", store.blob(digests(bundles[0])[0])):
        path.unlink()
    store.collect()
    assert all(store.blob(digest).exists() for digest in held_by_slot)


def test_contents_of_slots_without_hard_links_stay(store: Store, bundles: list[Path]) -> None:
    install(store, bundles[0])
    for path in store.slots("tiny").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
    assert {path.stat().st_nlink for path in store.blobs.rglob("*") if path.is_file()} == {1}
    assert store.collect() == 0


def test_one_failure_does_not_keep_the_rest_from_being_removed(store: Store, bundles: list[Path]) -> None:
    install(store, bundles[0])
    for name in ("1", "2", "3"):
        (store.incoming / name).touch()

    class Stubborn(QuickDisk):
        def unlink(self, path: Path) -> None:
            if path.name == "2":
                raise OSError(errno.EPERM, "Operation not permitted", str(path))
            super().unlink(path)

    with pytest.raises(StateError, match="incoming/2: the clean-up cannot be written"):
        Store(store.root, Stubborn()).collect()
    assert names(store.incoming) == ["2"]


def test_links_are_removed_and_never_followed(store: Store, bundles: list[Path], tmp_path: Path) -> None:
    install(store, bundles[0])
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x")
    (store.slots("tiny") / OTHER).symlink_to(tmp_path / "precious")
    (store.blobs / "ff").symlink_to(tmp_path / "precious")
    (store.incoming / "link").symlink_to(tmp_path / "precious" / "file")
    (store.root / "models" / "elsewhere").symlink_to(tmp_path / "precious")
    (tmp_path / "precious" / "slots").mkdir()
    (tmp_path / "precious" / "slots" / "file").write_bytes(b"x")
    before = tree(tmp_path / "precious")
    store.collect()
    assert tree(tmp_path / "precious") == before
    assert not os.path.lexists(store.slots("tiny") / OTHER)
    assert names(store.incoming) == []
