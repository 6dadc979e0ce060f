from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.settings import read_settings
from device_agent.slots.disk import Disk
from device_agent.slots.state import SlotState, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from device_agent.supervision.installation import Installation
from edgeonnx.errors import GoldenSetError, IntegrityError, StateError
from tests.support import bundles
from tests.unit.device_agent.supervision.conftest import Install, proven

PROBATION, ROLLED_BACK = AttemptState.PROBATION, AttemptState.ROLLED_BACK


def opened(store: Store, *factory: Path) -> Installation:
    found = Installation.open(AgentConfig(bundles=factory), store.root)
    found.close()
    return found


def test_a_start_writes_its_try_before_anything_is_loaded(
    store: Store, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    old, new = install("1"), install("2")
    store.write_state(proven(SlotState(model="tiny", active=old), new))
    found = opened(store)
    assert found.first == store.slot("tiny", new.contents)
    assert found.read("tiny") == store.read_state("tiny")
    attempt = store.read_state("tiny").attempt
    assert attempt is not None
    assert (attempt.state, attempt.tries_left) == (PROBATION, 2)
    opened(store)
    opened(store)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]
    assert opened(store).first == store.slot("tiny", old.contents)
    attempt = store.read_state("tiny").attempt
    assert attempt is not None
    assert attempt.state is ROLLED_BACK


def test_two_serving_agents_on_one_directory(store: Store) -> None:
    first = Installation.open(AgentConfig(), store.root)
    with pytest.raises(StateError, match="another serving agent uses this state directory"):
        Installation.open(AgentConfig(), store.root)
    first.close()
    opened(store)


class ReadOnlyDisk(Disk):
    """Takes no new file."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & 0o100:  # O_CREAT
            raise OSError(30, "Read-only file system", str(path))
        return super().open(path, flags, mode)


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("device_agent.slots.store.Disk", ReadOnlyDisk)


def test_the_settings_of_this_process_are_written_down_for_those_that_prove_what_it_will_serve(
    store: Store, tmp_path: Path
) -> None:
    config = AgentConfig(
        bundles=(tmp_path / "bundle",), runtime=RuntimeConfig(providers=("CPU",), variant="cpu-int8", threads=3)
    )
    assert store.settings_file is None
    found = Installation.open(config, store.root)
    found.close()
    assert found.settings_file == store.settings_file
    assert read_settings(found.settings_file, environment={}) == config
    (store.root / "serve.toml").unlink()
    (store.root / "serve.toml").symlink_to("/etc/passwd")
    assert store.settings_file is None
    assert opened(store).settings_file is not None  # its own file took the link's place
    assert read_settings(store.settings_file, environment={}) == AgentConfig()


@pytest.mark.usefixtures("read_only")
def test_what_is_committed_serves_from_a_disk_that_takes_no_write(
    store: Store, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = install("1"), install("2")
    writable = Store(store.root, Disk())
    writable.write_state(proven(SlotState(model="tiny", active=old), new))
    assert opened(store).first == store.slot("tiny", old.contents)
    assert "cannot be written" in caplog.text
    assert opened(store).settings_file is None
    # A release on probation whose tries cannot be counted would be started for ever.
    on_probation = step(writable.read_state("tiny"), PROBATION, now=2.0)
    writable.write_state(on_probation)
    assert opened(store).first == store.slot("tiny", old.contents)
    assert writable.read_state("tiny").attempt == on_probation.attempt
    # With nothing to go back to, it is better than nothing.
    writable.write_state(replace(on_probation, previous=None))
    assert opened(store).first == store.slot("tiny", new.contents)


def test_a_damaged_state_file_is_told_and_made_whole_from_its_copy(
    store: Store, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    state = store.write_state(SlotState(model="tiny", active=install("1"), pin="1"))
    (store.model("tiny") / "state.json").write_bytes(b"")
    found = opened(store)
    assert "state.json is damaged" in found.problems["tiny"]
    assert "state.json is damaged" in caplog.text
    healed = store.read_state("tiny")
    assert (healed.active, healed.pin) == (state.active, state.pin)
    assert store.damage("tiny") is None


def test_what_only_the_link_says_is_not_written_down(store: Store, install: Install) -> None:
    old = install("1")
    store.write_state(SlotState(model="tiny", active=old, pin="1"))
    for name in ("state.json", "state.backup.json"):
        (store.model("tiny") / name).write_bytes(b"{")
    assert opened(store).first == store.slot("tiny", old.contents)
    assert (store.model("tiny") / "state.json").read_bytes() == b"{"


def test_states_are_read_again_only_where_they_changed(
    store: Store, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = store.write_state(SlotState(model="tiny", active=install("1")))
    found = opened(store)
    monkeypatch.setattr(found.store, "read_state", lambda _: pytest.fail("read again"))
    assert found.read_all() == {"tiny": state}
    monkeypatch.undo()
    state = store.write_state(replace(state, pin="1"))
    assert found.read_all() == {"tiny": state}


def test_a_bundle_that_does_not_load_gives_way(store: Store, install: Install, tmp_path: Path) -> None:
    old, new = install("1"), install("2")
    store.write_state(SlotState(model="tiny", active=new, previous=old))
    factory = bundles.make_bundle(tmp_path, version="0")
    found = opened(store, factory)

    def choice() -> tuple[Path, str | None] | None:
        return found.choice("tiny", found.read("tiny"))

    assert choice() == (store.slot("tiny", new.contents), new.contents)
    found.failed("tiny", new.contents, GoldenSetError("not here"))
    assert store.read_state("tiny").active == new
    assert choice() == (store.slot("tiny", old.contents), old.contents)
    # One that loads later is fit again.
    found.loaded("tiny", new.contents)
    assert choice() == (store.slot("tiny", new.contents), new.contents)
    found.failed("tiny", new.contents, IntegrityError("a file differs"))
    assert store.read_state("tiny").active == old
    found.failed("tiny", old.contents, IntegrityError("a file differs"))
    assert store.read_state("tiny").active is None
    assert not store.read_state("tiny").blocked
    assert choice() == (factory, None)
    found.failed("tiny", None, IntegrityError("a file differs"))
    assert choice() is None


def test_only_what_lies_in_a_slot_is_installed(store: Store, install: Install) -> None:
    one = install("1")
    found = opened(store)
    assert found.contents_of("tiny", store.slot("tiny", one.contents)) == one.contents
    assert found.contents_of("tiny", store.root / one.contents) is None
    assert found.contents_of("other", store.slot("tiny", one.contents)) is None


def test_an_empty_state_directory_and_one_that_is_not_there(tmp_path: Path) -> None:
    found = opened(Store(tmp_path / "new" / "state"))
    assert found.first is None
    assert found.names() == []
    shutil.rmtree(tmp_path / "new")
    assert found.read_all() == {}
