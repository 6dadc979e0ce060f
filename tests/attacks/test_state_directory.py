"""A state directory that was damaged, edited by hand, or made a trap of: told, and the active version serves on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.slots.state import Installed, SlotState, begin, checksum, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import UPDATE_LOCK, Store
from device_agent.supervision.installation import Installation
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import StateError
from tests.support.bundles import make_bundle
from tests.support.installed import QuickDisk, install, names, tree

OTHER = "f" * 64
COPIES = ("state.json", "state.backup.json")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return [make_bundle(folder, version=f"1.{number}.0", seed=number + 1) for number in range(2)]


@pytest.fixture
def store(tmp_path: Path, bundles: list[Path]) -> Store:
    """A device with a previous and an active version."""
    found = Store(tmp_path / "state", QuickDisk())
    install(found, *bundles)
    return found


def active(bundles: list[Path]) -> str:
    return open_bundle(bundles[1]).digest


def served(store: Store) -> str | None:
    """The digest of what a start serves, its files hashed; None for nothing."""
    here = Installation(store)
    for name in here.names():
        here._begin(name)
    for _ in range(3):
        choice = here.choice("tiny", here.read("tiny"))
        if choice is None or choice[1] is None:
            return None
        fault = store.slot_fault("tiny", choice[1], hashed=True)
        if fault is None:
            return choice[1]
        # What the loader of models finds out, and tells.
        from edgeonnx.errors import IntegrityError

        here.failed("tiny", choice[1], IntegrityError(fault))
    raise AssertionError("a start tries one bundle for ever")


def resealed(state: SlotState, **changes: object) -> bytes:
    """A state file with other members and the checksum that fits them: what whoever may write here can do."""
    document = json.loads(state.to_bytes()) | changes
    document.pop("checksum")
    return json.dumps(document | {"checksum": checksum(document)}).encode()


# The state file.


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


STATES: dict[str, Callable[[Path], object]] = {
    "of zero bytes": lambda path: path.write_bytes(b""),
    "of zeros": lambda path: path.write_bytes(bytes(500)),
    "torn": lambda path: path.write_bytes(path.with_name("state.backup.json").read_bytes()[:300]),
    "a text": lambda path: path.write_text("active = 1.0.0\n"),
    "a list": lambda path: path.write_text("[" * 100_000),
    "of 10 GB": endless,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to its copy": lambda path: path.symlink_to("state.backup.json"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "missing": lambda path: None,
}


@pytest.mark.parametrize("what", STATES)
def test_a_state_file_that_is_none_is_told_and_made_whole(store: Store, bundles: list[Path], what: str) -> None:
    before = store.read_state("tiny")
    path = store.model("tiny") / "state.json"
    path.unlink()
    STATES[what](path)
    assert str(store.damage("tiny")).startswith("state.json ")
    assert store.read_state("tiny") == before
    assert served(store) == active(bundles)
    assert store.damage("tiny") is None
    assert not path.is_symlink()
    assert SlotState.from_bytes(path.read_bytes()).active == before.active


@pytest.mark.parametrize("what", [*STATES, "of a later agent", "of another model"])
def test_without_both_copies_the_link_says_what_serves(store: Store, bundles: list[Path], what: str) -> None:
    state = store.read_state("tiny")
    further = {
        "of a later agent": lambda path: path.write_bytes(resealed(state, schema_version="2.0", model=["tiny"])),
        "of another model": lambda path: path.write_bytes(replace(state, model="other").to_bytes()),
    }
    for name in reversed(COPIES):
        path = store.model("tiny") / name
        if what not in ("torn", "a link to its copy"):
            path.unlink()
        elif name == "state.json":
            continue
        if what not in ("torn", "a link to its copy"):
            (STATES | further)[what](path)
        else:
            shutil.copy(path, path.with_name("kept"))
            path.write_bytes(path.read_bytes()[:200])
    if what in ("torn", "a link to its copy"):
        path = store.model("tiny") / "state.json"
        path.unlink()
        STATES[what](path)
    told = str(store.damage("tiny"))
    assert "state.json" in told
    assert "state.backup.json" in told
    assert served(store) == active(bundles)
    assert store.collect() == 0
    assert len(names(store.slots("tiny"))) == 2, "the previous version is not known, and stays"


def test_a_state_that_is_edited_by_hand_is_noticed(store: Store, bundles: list[Path]) -> None:
    path = store.model("tiny") / "state.json"
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(document | {"active": document["previous"]}))
    assert "state.json is damaged (is not that of the file)" in str(store.damage("tiny"))
    assert served(store) == active(bundles)


@pytest.mark.parametrize(
    "changes",
    [
        {"active": {"version": "1.0.0", "contents": "../../../etc"}},
        {"active": {"version": "../1", "contents": OTHER}},
        {"model": "../../etc"},
        {"sequence": 1 << 70},
        {"blocked": [{}] * 3},
    ],
    ids=["a path", "a version", "a model", "a number", "blocked"],
)
def test_a_state_that_was_made_to_mislead_is_refused(
    store: Store, bundles: list[Path], changes: dict[str, object]
) -> None:
    (store.model("tiny") / "state.json").write_bytes(resealed(store.read_state("tiny"), **changes))
    assert "state.json" in str(store.damage("tiny"))
    assert served(store) == active(bundles)


def test_a_state_that_names_a_slot_that_is_not_there(store: Store, bundles: list[Path]) -> None:
    missing = Installed(version="9.0.0", contents=OTHER)
    store.write_state(replace(store.read_state("tiny"), active=missing, previous=store.read_state("tiny").active))
    assert store.damage("tiny") == f"the active slot {OTHER[:16]} is missing"
    assert served(store) == active(bundles)


def test_a_folder_in_place_of_the_state_file_serves_and_says_why_nothing_is_written(
    store: Store, bundles: list[Path]
) -> None:
    path = store.model("tiny") / "state.json"
    path.unlink()
    path.mkdir()
    assert "state.json cannot be read (is no regular file)" in str(store.damage("tiny"))
    assert served(store) == active(bundles)
    with pytest.raises(StateError, match=r"state\.json") as caught:
        store.write_state(store.read_state("tiny"))
    assert "directory" in str(caught.value)


# The link.


@pytest.mark.parametrize(
    "target", ["/etc", "../../..", "slots/../../../etc", f"slots/{OTHER}", f"/{OTHER}", "slots/", "x" * 200, "active"]
)
def test_a_link_to_somewhere_else_names_nothing(store: Store, bundles: list[Path], target: str) -> None:
    link = store.model("tiny") / "active"
    link.unlink()
    link.symlink_to(target)
    assert store.damage("tiny") == "the link to the active slot does not name it"
    assert served(store) == active(bundles), "the state file counts"
    assert store.damage("tiny") is None, "and the start made the link right"
    link.unlink()
    link.symlink_to(target)
    for name in COPIES:
        (store.model("tiny") / name).unlink()
    assert store.read_state("tiny").active is None
    assert served(store) is None
    assert store.collect() == 0


def test_a_folder_in_place_of_the_link(store: Store, bundles: list[Path]) -> None:
    link = store.model("tiny") / "active"
    link.unlink()
    link.mkdir()
    assert store.damage("tiny") == "the link to the active slot does not name it"
    assert served(store) == active(bundles)
    store.write_state(store.read_state("tiny"))
    assert served(store) == active(bundles)


# The slots.


def a_file(slot: Path) -> Path:
    return next(slot.glob("encoder/*/model.onnx"))


def in_own_file(path: Path, data: bytes) -> None:
    """Give a path a file of its own, so that the content that was linked there stays whole."""
    path.unlink()
    path.write_bytes(data)


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


EDITS: dict[str, Callable[[Path], object]] = {
    "changed in size": lambda slot: in_own_file(a_file(slot), a_file(slot).read_bytes() + b"x"),
    "changed": lambda slot: in_own_file(a_file(slot), flipped(a_file(slot).read_bytes())),
    "changed in place": lambda slot: (a_file(slot).chmod(0o600), a_file(slot).write_bytes(b"x" * 10)),
    "removed": lambda slot: a_file(slot).unlink(),
    "a link": lambda slot: (slot / "evidence.json").unlink() or (slot / "evidence.json").symlink_to("/etc/passwd"),
    "a pipe": lambda slot: (slot / "manifest.json").unlink() or os.mkfifo(slot / "manifest.json"),
    "another file": lambda slot: (slot / "more.txt").write_text("by hand"),
    "the list": lambda slot: in_own_file(slot / "contents.json", b"{}"),
    "emptied": lambda slot: (shutil.rmtree(slot), slot.mkdir()),
    "a file": lambda slot: (shutil.rmtree(slot), slot.write_text("")),
    "another digest": lambda slot: slot.rename(slot.with_name(OTHER)),
    "a link to the other": lambda slot: (
        shutil.rmtree(slot),
        slot.symlink_to(next(each.name for each in slot.parent.iterdir())),
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_slot_that_is_edited_by_hand_gives_way_to_the_previous_one(
    store: Store, bundles: list[Path], what: str
) -> None:
    EDITS[what](store.slot("tiny", active(bundles)))
    if what != "changed":  # the same size: only hashing finds it, which loading does
        assert str(store.damage("tiny")).startswith(f"the active slot {active(bundles)[:16]} ")
    assert served(store) == open_bundle(bundles[0]).digest
    store.collect()
    assert served(store) == open_bundle(bundles[0]).digest


def test_a_slot_of_another_model(store: Store, tmp_path: Path) -> None:
    other = make_bundle(tmp_path, name="other")
    digest = open_bundle(other).digest
    shutil.copytree(other, store.slot("tiny", digest))
    assert store.slot_fault("tiny", digest) == f"{digest[:16]} holds other {digest[:16]}"


# The directory.


def test_links_in_place_of_folders_are_refused_or_left_alone(store: Store, bundles: list[Path], tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    shutil.copytree(store.root, precious, symlinks=True)
    for path in precious.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.with_name(f"{path.name}.0").write_bytes(b"x")
    before = tree(precious)
    for name in ("blobs", "incoming", "metadata"):
        shutil.rmtree(store.root / name)
        (store.root / name).symlink_to(precious / name)
        with pytest.raises(StateError, match=f"{name}: is a link"):
            store.prepare()
        store.collect()
        (store.root / name).unlink()
        (store.root / name).mkdir()
    slots = store.slots("tiny")
    slots.rename(tmp_path / "slots")
    slots.symlink_to(precious / "models" / "tiny" / "slots")
    store.collect()
    assert tree(precious) == before


@pytest.mark.parametrize("name", ["", "blobs", "incoming", "metadata", "models"])
def test_a_file_where_a_folder_should_be(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "state", QuickDisk())
    if name:
        store.root.mkdir()
    (store.root / name).write_text("by hand")
    with pytest.raises(StateError, match="cannot be written") as caught:
        store.prepare()
    assert str(store.root / name) in str(caught.value)


def test_a_file_among_the_models_and_the_contents(store: Store, bundles: list[Path]) -> None:
    (store.root / "models" / "notes").write_text("by hand")
    (store.blobs / "notes").write_text("by hand")
    (store.blobs / "00").mkdir(exist_ok=True)
    (store.blobs / "00" / "folder").mkdir()
    (store.blobs / "00" / "folder" / "file").write_text("by hand")
    store.collect()
    assert served(store) == active(bundles)
    assert not (store.blobs / "00" / "folder").exists()
    assert (store.blobs / "notes").exists()


@pytest.mark.parametrize(("ways", "most"), [("damages", 1), ("traps", 1)])
def test_whatever_file_is_damaged_a_start_serves_and_an_update_ends_with_an_error_of_ours_or_well(
    ways: str, most: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.damage", ways, str(most), "1"],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == []


READ_ONLY = """
import os, sys
from pathlib import Path
from device_agent.slots.store import Store
from edgeonnx.errors import StateError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
store = Store(Path(sys.argv[1]))
try:
    store.write_state(store.read_state("tiny"))
except StateError as error:
    print(error)
    print(store.damage("tiny"), store.read_state("tiny").active.version)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_directory_of_somebody_else_is_told_and_can_be_read(bundles: list[Path]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        store = Store(Path(name) / "state", QuickDisk())
        install(store, *bundles)
        for path in (Path(name), *Path(name).rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        for copy in COPIES:
            (store.model("tiny") / copy).chmod(0o644)
        done = subprocess.run([sys.executable, "-c", READ_ONLY, store.root], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert "the state cannot be written" in first
    assert "Permission denied" in first
    assert second == "None 1.1.0"


def test_two_processes_on_one_directory(store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from device_agent.slots.store import Store\n"
        "with Store(Path(sys.argv[1])).locked('update.lock', 'another update'): pass\n"
    )
    with store.locked(UPDATE_LOCK, "another update"):
        done = subprocess.run([sys.executable, "-c", code, store.root], capture_output=True, text=True, timeout=60)
    assert "StateError" in done.stderr
    assert "another update uses this state directory already" in done.stderr


@pytest.mark.parametrize("what", ["a link", "a pipe", "a folder"])
def test_a_lock_that_is_no_file(store: Store, bundles: list[Path], what: str) -> None:
    path = store.root / UPDATE_LOCK
    {"a link": lambda: path.symlink_to("/etc/passwd"), "a pipe": lambda: os.mkfifo(path), "a folder": path.mkdir}[
        what
    ]()
    assert not store.is_locked(UPDATE_LOCK)
    if what == "a pipe":
        with store.locked(UPDATE_LOCK, "another"):
            assert store.is_locked(UPDATE_LOCK)
    else:
        with pytest.raises(StateError, match="the lock cannot be written"), store.locked(UPDATE_LOCK, "another"):
            pass
    assert served(store) == active(bundles)


def test_what_is_being_installed_survives_a_state_that_is_read_from_its_copy(store: Store, bundles: list[Path]) -> None:
    release = Installed(version="1.2.0", contents=OTHER)
    state = begin(store.read_state("tiny"), release, tries=3, now=0.0)
    state = store.write_state(step(state, AttemptState.STAGED, now=0.0))
    shutil.copytree(store.slot("tiny", active(bundles)), store.slot("tiny", OTHER))
    (store.model("tiny") / "state.json").write_bytes(b"")
    store.collect()
    assert store.read_state("tiny") == state
    assert store.slot("tiny", OTHER).is_dir()
