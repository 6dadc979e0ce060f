"""The commands over a state directory, through the command line, over a repository in a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from device_agent.cli import main
from device_agent.cli.status import WIDTH, look
from device_agent.slots.state import step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from device_agent.update import enrollment
from device_agent.update.__main__ import main as scheduled
from device_agent.update.install import trial
from tests.support.bundles import make_bundle
from tests.support.device import QuickDisk, QuickFiles, proves, runs_first
from tests.support.repository import TestRepository

runner = CliRunner()
app = main.make_app(("enroll", "update", "status", "rollback", "pin", "import"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TestRepository:
    """A repository with 1.0.0 and 1.1.0, of which 1.0.0 alone is offered by the channel `old`."""
    folder = tmp_path_factory.mktemp("cli")
    repository = TestRepository.create(folder / "repo", files=QuickFiles(folder / "repo"))
    first = make_bundle(folder, version="1.0.0", seed=1)
    repository.publish(first, channel="old")
    repository.publish(first)
    repository.publish(make_bundle(folder, version="1.1.0", seed=2))
    (folder / "root.json").write_bytes(repository.root_bytes)
    return repository


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No real candidate: it has tests of its own."""
    monkeypatch.setattr(trial, "prove", proves)
    monkeypatch.setattr(trial, "choose", runs_first)


class Box:
    """A device on the command line."""

    def __init__(self, folder: Path, repository: TestRepository) -> None:
        self.folder = folder / "state"
        self.store = Store(self.folder, QuickDisk())
        self.repository = repository
        self.settings = folder / "agent.toml"
        self.settings.write_text("[update]\ndisk_reserve_bytes = 0\nretries = 0\n[log]\nlevel = 'error'\n")

    def __call__(self, *arguments: object, code: int = 0) -> Result:
        """Run a command; it must end with `code`."""
        command = [*map(str, arguments), "--config", str(self.settings), "--state-dir", str(self.folder)]
        result = runner.invoke(app, command)
        assert result.exit_code == code, (result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        """The same, with `--json`."""
        found: dict[str, Any] = json.loads(self(*arguments, "--json", code=code).stdout)
        return found

    def enroll(self, *more: object, code: int = 0) -> Result:
        """Enrol with the repository."""
        root = self.repository.path.parent / "root.json"
        return self("enroll", "--repo", self.repository.path, "--root", root, *more, code=code)

    def commit(self) -> None:
        """What the serving process does with a proven release."""
        for each in (AttemptState.PROBATION, AttemptState.COMMITTED):
            self.store.write_state(step(self.store.read_state("tiny"), each, now=1e9))


@pytest.fixture
def box(made: TestRepository, tmp_path: Path) -> Box:
    return Box(tmp_path, made)


def test_from_enrolment_to_rollback(box: Box) -> None:
    assert "1.0.0" in box.enroll("--channel", "old", "--device", "box-7").output
    found = box.json("update", "--dry-run")
    assert (found["models"][0]["action"], found["models"][0]["offered"]) == ("install", "1.0.0")
    assert found["models"][0]["fetch_bytes"] > 0
    assert "1.0.0 is proven" in box("update").output
    box.commit()
    assert "1.0.0 is installed" in box("update", "--once").output
    box.enroll("--channel", "stable")
    box("update")
    box.commit()
    status = box.json("status")
    assert status["ok"] is True
    assert status["enrollment"]["device"] == "box-7"
    model = status["models"][0]
    assert (model["active"]["version"], model["previous"]["version"]) == ("1.1.0", "1.0.0")
    assert "1.0.0 serves again instead of 1.1.0" in box("rollback", "--reason", "too slow").output
    text = box("status").output
    assert "blocked  1.1.0" in text
    assert "too slow" in text
    assert all(len(line) <= WIDTH for line in text.splitlines() if "/" not in line)
    assert box.json("update")["models"][0]["action"] == "keep"
    assert "1.1.0 is proven" in box("update", "--retry-blocked").output


def test_a_rollback_that_does_not_block_keeps_the_way_back(box: Box) -> None:
    box.enroll("--channel", "old")
    box("update")
    box.commit()
    box.enroll("--channel", "stable")
    box("update")
    box.commit()
    assert box.json("rollback", "--no-block") == {
        "ok": True,
        "model": "tiny",
        "active": "1.0.0",
        "left": "1.1.0",
        "blocked": False,
    }
    state = box.store.read_state("tiny")
    assert state.blocked == ()
    assert state.previous is not None
    assert state.previous.version == "1.1.0"
    box("rollback")
    assert box.store.read_state("tiny").active == state.previous


def test_there_is_nothing_to_go_back_to_at_first(box: Box) -> None:
    box("rollback", code=2)
    box.enroll()
    box("update")
    box.commit()
    assert "there is no version to go back to" in box("rollback", code=11).output


def test_a_rollback_to_a_damaged_version_is_refused(box: Box) -> None:
    box.enroll("--channel", "old")
    box("update")
    box.commit()
    box.enroll("--channel", "stable")
    box("update")
    box.commit()
    previous = box.store.read_state("tiny").previous
    assert previous is not None
    graph = next(box.store.slot("tiny", previous.contents).rglob("model.onnx"))
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes()[:-1] + b"\x00")
    assert "damaged on this disk" in box("rollback", code=11).output
    active = box.store.read_state("tiny").active
    assert active is not None
    assert active.version == "1.1.0"


def test_a_pin_holds_and_is_cleared(box: Box) -> None:
    box.enroll("--model", "tiny")
    assert "only 1.0.0 may be taken; nothing serves" in box("pin", "1.0.0", "--model", "tiny").output
    assert box.json("update", "--dry-run")["models"][0]["offered"] == "1.0.0"
    assert box.json("pin", "--clear", "--model", "tiny")["pin"] is None
    assert box.json("update", "--dry-run")["models"][0]["offered"] == "1.1.0"
    box("pin", code=2)
    box("pin", "1.0.0", "--clear", code=2)
    box("pin", "../1", "--model", "tiny", code=2)


def test_a_copy_on_a_stick_or_in_an_archive_is_imported(box: Box, tmp_path: Path) -> None:
    box.enroll()
    shutil.copytree(box.repository.path, tmp_path / "stick" / "models")
    # The enrolled repository is out of reach.
    there = enrollment.read_enrollment(box.store)
    enrollment.write_enrollment(
        box.store, enrollment.Enrollment(url="https://gone.test", channel=there.channel, device=there.device)
    )
    archive = shutil.make_archive(str(tmp_path / "carried"), "gztar", tmp_path / "stick")
    # What is carried here costs nothing to fetch.
    box.settings.write_text("[update]\ndisk_reserve_bytes = 0\nmetered = true\n[log]\nlevel = 'error'\n")
    assert "1.1.0 is proven" in box("import", tmp_path / "stick").output
    box.commit()
    assert "1.1.0 is installed" in box("import", archive).output
    assert not [path for path in box.folder.iterdir() if path.name.startswith("import.")]
    assert "no such folder or archive" in box("import", tmp_path / "nothing", code=2).output
    (tmp_path / "empty").mkdir()
    assert "is no repository" in box("import", tmp_path / "empty", code=2).output


def test_an_archive_that_is_none_is_told(box: Box, tmp_path: Path) -> None:
    box.enroll()
    (tmp_path / "x.tar.gz").write_bytes(b"\x1f\x8bnonsense")
    box("import", tmp_path / "x.tar.gz", code=10)


def test_without_an_enrolment_every_command_says_what_to_do(box: Box) -> None:
    for command in (("update",), ("status",), ("import", box.repository.path)):
        assert "edgeonnx-agent enroll" in box(*command, code=11).output
    assert not box.folder.exists()


def test_status_shows_what_is_damaged(box: Box) -> None:
    box.enroll()
    box("update")
    box.commit()
    (box.folder / "models" / "tiny" / "state.json").write_bytes(b"")
    (box.folder / "enrollment.json").write_bytes(b"{")
    found = box.json("status", code=11)
    assert found["ok"] is False
    assert "state.json" in found["models"][0]["damage"]
    assert found["models"][0]["active"]["version"] == "1.1.0"  # from the copy
    assert "enrolment cannot be read" in found["problem"]
    assert "DAMAGED" in box("status", code=11).output


def test_two_updates_at_once_are_refused(box: Box) -> None:
    box.enroll()
    with box.store.locked("update.lock", "a test"):
        assert "an update uses this state directory already" in box("update", code=11).output
        assert look(box.store).updating


def test_a_failed_check_is_written_down(box: Box) -> None:
    box.enroll()
    there = enrollment.read_enrollment(box.store)
    gone = enrollment.Enrollment(url="http://127.0.0.1:1", channel=there.channel, device=there.device)
    enrollment.write_enrollment(box.store, gone)
    box("update", code=10)
    last = box.json("status")["last_check"]
    assert (last["ok"], last["failures"]) == (False, 1)
    assert "failed (1 in a row)" in box("status").output


def test_what_serve_begins_does_the_same_and_tells_it_by_its_exit_code(box: Box) -> None:
    box.enroll()
    arguments = ["--state-dir", str(box.folder), "--config", str(box.settings)]
    assert scheduled(arguments) == 0
    attempt = box.store.read_state("tiny").attempt
    assert attempt is not None
    assert attempt.state is AttemptState.PROVEN
    there = enrollment.read_enrollment(box.store)
    gone = enrollment.Enrollment(url="http://127.0.0.1:1", channel=there.channel, device=there.device)
    enrollment.write_enrollment(box.store, gone)
    assert scheduled(arguments) == 10


def test_wrong_settings_end_with_code_2(box: Box) -> None:
    box.enroll()
    box.settings.write_text("[update]\nwindow = 'at night'\n")
    assert "time window" in box("update", code=2).output


def test_no_state_directory_is_named(box: Box) -> None:
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 2
    assert "--state-dir" in result.output


def test_one_verb_imports_none_of_the_others() -> None:
    assert main.needed_verbs(["update", "--once"]) == ("update",)
    assert set(main.needed_verbs(["--help"])) == set(main.VERBS)
    assert set(main.needed_verbs([])) == set(main.VERBS)


@pytest.mark.parametrize("begin", ["by hand", "by the schedule"])
def test_a_candidate_is_proven_with_the_settings_of_the_process_that_serves(
    made: TestRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    box = Box(tmp_path, made)
    box.enroll()
    seen: list[Path | None] = []

    def notes(slot: Path, config: Any, settings: Path | None) -> Any:
        seen.append(settings)
        return proves(slot, config, settings)

    monkeypatch.setattr(trial, "prove", notes)
    shutil.copy(box.settings, box.folder / "serve.toml")
    state_dir = ["--state-dir", str(box.folder)]
    if begin == "by hand":
        result = runner.invoke(app, ["update", "--once", *state_dir])
        assert result.exit_code == 0, result.output
    else:
        assert scheduled(state_dir) == 0
    assert seen == [box.folder / "serve.toml"]
