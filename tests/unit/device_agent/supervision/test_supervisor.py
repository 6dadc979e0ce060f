"""The supervisor over real state directories and the real registry; only the models are fakes, and time is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from device_agent.config import AgentConfig, UpdateConfig
from device_agent.models.registry import Models
from device_agent.slots.state import Installed, SlotState, revert
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from device_agent.supervision.installation import Installation
from device_agent.supervision.probation import HUNG_SECONDS
from device_agent.supervision.supervisor import RETRY_SECONDS, Supervisor
from device_agent.supervision.view import updates_view
from device_agent.systemd import Work
from device_agent.update.reports import Status, write_status
from edgeonnx.bundle import identify
from edgeonnx.errors import (
    ForbiddenError,
    GoldenSetError,
    IntegrityError,
    MemoryBudgetError,
    RuntimeUnavailableError,
    StateError,
)
from tests.unit.device_agent.supervision.conftest import Install, proven

COMMITTED, PROBATION, PROVEN, ROLLED_BACK = (
    AttemptState.COMMITTED,
    AttemptState.PROBATION,
    AttemptState.PROVEN,
    AttemptState.ROLLED_BACK,
)
CONFIG = UpdateConfig(probation_seconds=600.0, probation_requests=10, interval_seconds=3600.0)


class FakeModel:
    """What the registry and the supervisor need of a loaded model."""

    memory_bytes = reserved_bytes = 100

    def __init__(self, path: Path) -> None:
        self.name, self.version, digest = identify(path)
        self.bundle = SimpleNamespace(digest=digest, root=path.resolve())
        self.counts = SimpleNamespace(runs=0, failed=0)
        self.rows = 0

    def work(self) -> Work:
        return Work(busy=bool(self.rows), finished=self.counts.runs + self.counts.failed)

    def changed_files(self) -> tuple[str, ...]:
        return ()

    def close(self, timeout: float | None = None) -> bool:
        return True


class Stage:
    """A device: its state directory, its models, and what happens to them."""

    def __init__(
        self, store: Store, *, bundles: tuple[Path, ...] = (), failures: dict[str, Exception] | None = None
    ) -> None:
        self.store = store
        self.failures = failures or {}
        self.loads: list[str] = []
        self.now = 1000.0
        self.models = Models(AgentConfig(bundles=bundles), self._load)
        self.runs: Any = SimpleNamespace(enrolled=False, running=False, last=None, counts={})
        self.installation = Installation.open(AgentConfig(bundles=bundles), store.root)
        self.installation.close()
        self.supervisor = Supervisor(
            self.installation, self.models, CONFIG, self.runs, clock=lambda: self.now, chance=lambda: 0.5
        )

    def _load(self, path: Path, config: AgentConfig, **_: Any) -> Any:
        model = FakeModel(path)
        self.loads.append(model.version)
        if model.version in self.failures:
            raise self.failures[model.version]
        return model

    @property
    def serving(self) -> str | None:
        found = self.supervisor.serving("tiny")
        return None if found is None else found.version

    @property
    def state(self) -> SlotState:
        return self.store.read_state("tiny")

    @property
    def attempt(self) -> tuple[AttemptState, str]:
        found = self.state.attempt
        assert found is not None
        return found.state, found.reason

    def answer(self, count: int, seconds: float = 0.01) -> None:
        for _ in range(count):
            self.supervisor.watch.answered(self.supervisor.serving("tiny"), seconds)  # type: ignore[arg-type]

    def fail(self, count: int) -> None:
        for _ in range(count):
            self.supervisor.watch.faulted(self.supervisor.serving("tiny"))  # type: ignore[arg-type]

    async def later(self, seconds: float = 0.5) -> None:
        self.now += seconds
        await self.supervisor.look()


@pytest.fixture(autouse=True)
def _nothing_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes hold no memory, and to look through all of the test process's for it takes long."""
    monkeypatch.setattr("device_agent.models.memory.give_back", lambda: None)


Scenario = Callable[[Stage], Awaitable[None]]
Play = Callable[..., Stage]


@pytest.fixture
def play(store: Store) -> Play:
    """Runs a scenario on a device that was started with a state."""

    def run(scenario: Scenario, state: SlotState | None = None, **how: Any) -> Stage:
        if state is not None:
            store.write_state(state)
        stage = Stage(store, **how)

        async def whole() -> None:
            await stage.supervisor.start()
            await scenario(stage)
            while stage.models.working:
                await asyncio.sleep(0.001)

        asyncio.run(whole())
        return stage

    return run


@pytest.fixture
def one(install: Install) -> Installed:
    return install("1")


@pytest.fixture
def two(install: Install) -> Installed:
    return install("2")


async def nothing(stage: Stage) -> None:
    await stage.later()


def test_what_is_active_serves(play: Play, one: Installed) -> None:
    stage = play(nothing, SlotState(model="tiny", active=one))
    assert (stage.serving, stage.loads) == ("1", ["1"])
    assert stage.models.ready


def test_an_agent_without_any_model_starts_and_takes_the_first_one(play: Play, store: Store, one: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.models.ready
        await stage.later()
        assert stage.serving is None
        store.write_state(proven(SlotState(model="tiny"), one))
        await stage.later()
        assert stage.serving == "1"
        with pytest.raises(ForbiddenError):
            await stage.models.unload("tiny")
        await stage.later(CONFIG.probation_seconds)

    stage = play(scenario)
    assert stage.attempt == (COMMITTED, "")
    assert stage.state.active == one


def test_a_first_install_that_fails_leaves_nothing_active(play: Play, store: Store, one: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        store.write_state(proven(SlotState(model="tiny"), one))
        await stage.later()
        stage.fail(10)
        await stage.later()

    stage = play(scenario)
    assert (stage.serving, stage.state.active) == (None, None)
    assert stage.attempt[0] is ROLLED_BACK
    assert stage.state.is_blocked(one.contents)


def test_a_swap_is_written_down_before_the_load(play: Play, store: Store, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        store.write_state(proven(stage.state, two))
        seen: list[tuple[AttemptState, int]] = []
        load = stage.models._loader

        def watching(path: Path, config: AgentConfig, **how: Any) -> Any:
            attempt = store.read_state("tiny").attempt
            assert attempt is not None
            seen.append((attempt.state, attempt.tries_left))
            assert load is not None
            return load(path, config, **how)

        stage.models._loader = watching
        await stage.later()
        assert seen == [(PROBATION, 2)]
        assert stage.serving == "2"
        await stage.later(599)
        assert stage.attempt[0] is PROBATION
        await stage.later(2)

    stage = play(scenario, SlotState(model="tiny", active=one))
    assert stage.attempt[0] is COMMITTED
    assert (stage.state.active, stage.state.previous) == (two, one)
    assert stage.supervisor.rollbacks == {}


def test_a_release_that_does_not_load_changes_nothing(play: Play, store: Store, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        stage.failures["2"] = GoldenSetError("the answers differ")
        store.write_state(proven(stage.state, two))
        await stage.later()
        await stage.later()

    stage = play(scenario, SlotState(model="tiny", active=one))
    assert (stage.serving, stage.loads) == ("1", ["1", "2"])
    assert stage.attempt == (ROLLED_BACK, "it does not load: the answers differ")
    assert stage.state.active == one
    assert stage.state.is_blocked(two.contents)
    assert stage.supervisor.rollbacks == {"tiny": 1}


def failing(stage: Stage) -> None:
    stage.answer(12)
    stage.fail(2)


def slow(stage: Stage) -> None:
    stage.now += 5
    stage.answer(20, 0.05)


def hung(stage: Stage) -> None:
    stage.supervisor.serving("tiny").rows = 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [(failing, "2 of its 19 requests failed"), (slow, "its requests take 50 ms"), (hung, "finished none for")],
)
def test_a_version_that_misbehaves_is_rolled_back(
    play: Play, store: Store, one: Installed, two: Installed, misbehave: Callable[[Stage], None], reason: str
) -> None:
    async def scenario(stage: Stage) -> None:
        stage.answer(10)
        store.write_state(proven(stage.state, two))
        await stage.later()
        stage.answer(5)
        await stage.later()
        assert stage.attempt[0] is PROBATION
        misbehave(stage)
        await stage.later()
        await stage.later(HUNG_SECONDS)
        assert stage.serving == "1"

    stage = play(scenario, SlotState(model="tiny", active=one))
    assert stage.attempt[0] is ROLLED_BACK
    assert reason in stage.attempt[1]
    assert (stage.state.active, stage.state.previous) == (one, None)
    assert stage.state.is_blocked(two.contents)


def test_what_cannot_be_written_down_is_rolled_back_all_the_same(
    play: Play, store: Store, one: Installed, two: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(stage: Stage) -> None:
        store.write_state(proven(stage.state, two))
        await stage.later()
        assert stage.serving == "2"

        def refuse(*_: object) -> None:
            raise StateError("the state cannot be written")

        monkeypatch.setattr(stage.installation, "change", refuse)
        stage.fail(10)
        await stage.later()
        assert stage.serving == "1"
        await stage.later(RETRY_SECONDS)
        assert stage.serving == "1"
        assert "does not serve: 10 of its last 10 requests failed" in updates_view(stage.supervisor).models[0].degraded
        # The disk takes writes again.
        monkeypatch.undo()
        await stage.later(RETRY_SECONDS)
        assert (stage.serving, stage.state.active) == ("1", one)

    stage = play(scenario, SlotState(model="tiny", active=one))
    assert stage.attempt == (ROLLED_BACK, "10 of its last 10 requests failed")
    assert stage.state.is_blocked(two.contents)


def test_a_release_is_not_swapped_in_where_that_cannot_be_written_down(
    play: Play, store: Store, one: Installed, two: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(stage: Stage) -> None:
        tried = []

        def refuse(*_: object) -> None:
            tried.append(stage.now)
            raise StateError("the state cannot be written")

        store.write_state(proven(stage.state, two))
        with monkeypatch.context() as patch:
            patch.setattr(stage.installation, "change", refuse)
            await stage.later()
            await stage.later()
            assert len(tried) == 1
            assert (stage.serving, stage.attempt[0]) == ("1", PROVEN)
        await stage.later(RETRY_SECONDS)
        assert stage.serving == "2"

    play(scenario, SlotState(model="tiny", active=one))


def test_a_release_for_which_there_is_no_room_waits_for_the_next_start(
    play: Play, store: Store, one: Installed, two: Installed
) -> None:
    async def scenario(stage: Stage) -> None:
        stage.failures["2"] = MemoryBudgetError("no room beside")
        store.write_state(proven(stage.state, two))
        await stage.later()
        await stage.later()

    stage = play(scenario, SlotState(model="tiny", active=one))
    assert (stage.serving, stage.loads) == ("1", ["1", "2"])
    assert stage.attempt == (PROVEN, "it waits for the next start of the agent: no room beside")
    assert not stage.state.blocked
    again = play(nothing)
    assert (again.serving, again.attempt[0]) == ("2", PROBATION)


def test_a_version_that_misbehaves_makes_room_for_the_one_before(
    play: Play, store: Store, one: Installed, two: Installed
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.later()
        assert stage.serving == "2"
        load = stage.models._loader

        def alone(path: Path, config: AgentConfig, **how: Any) -> Any:
            if stage.models.memory_bytes:
                raise MemoryBudgetError("no room beside")
            assert load is not None
            return load(path, config, **how)

        stage.models._loader = alone
        await stage.later()
        stage.fail(10)
        await stage.later()
        assert stage.serving == "1"

    stage = play(scenario, proven(SlotState(model="tiny", active=one), two))
    assert stage.attempt[0] is ROLLED_BACK


def test_after_a_restart_the_probation_begins_anew_without_a_baseline(
    play: Play, one: Installed, two: Installed
) -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.serving == "2"
        await stage.later()
        await stage.later(599)
        stage.answer(100, 5.0)
        assert stage.attempt[0] is PROBATION
        await stage.later(1)

    stage = play(scenario, proven(SlotState(model="tiny", active=one), two))
    assert stage.attempt[0] is COMMITTED


def test_an_operator_goes_back(play: Play, store: Store, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        store.write_state(revert(stage.state, reason="the operator wishes it", now=2.0))
        await stage.later()
        assert stage.serving == "1"

    play(scenario, SlotState(model="tiny", active=two, previous=one))


def test_an_operator_goes_back_while_a_version_is_on_probation(
    play: Play, store: Store, one: Installed, two: Installed
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.later()
        assert stage.serving == "2"
        store.write_state(revert(stage.state, reason="the operator wishes it", now=2.0))
        await stage.later()
        assert stage.serving == "1"
        assert stage.supervisor.probation_left("tiny") is None

    stage = play(scenario, proven(SlotState(model="tiny", active=one), two))
    assert stage.supervisor.rollbacks == {"tiny": 1}


def test_a_damaged_active_bundle_gives_way_and_is_taken_again(
    play: Play, store: Store, one: Installed, two: Installed
) -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.serving == "1"
        assert (stage.state.active, stage.state.previous) == (one, None)
        await stage.later()
        view = updates_view(stage.supervisor).models[0]
        assert (view.active, view.serving) == ("1", "1")
        assert view.damage == "a bundle is damaged: a file differs"
        del stage.failures["2"]
        store.write_state(proven(stage.state, two))  # the update process repaired it
        await stage.later()
        assert stage.serving == "2"
        assert updates_view(stage.supervisor).models[0].damage == ""

    failures: dict[str, Exception] = {"2": IntegrityError("a file differs")}
    stage = play(scenario, SlotState(model="tiny", active=two, previous=one), failures=failures)
    assert stage.state.active == two
    assert not stage.state.blocked


def test_the_bundle_of_the_settings_serves_until_something_is_installed_and_where_nothing_can(
    play: Play, store: Store, one: Installed, made_versions: Path
) -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.serving == "3"
        store.write_state(proven(SlotState(model="tiny"), one))
        await stage.later()
        assert stage.serving == "1"
        stage.fail(10)
        await stage.later()
        assert stage.serving == "3"
        assert stage.models.find().loaded.version == "3"

    stage = play(scenario, bundles=(made_versions / "tiny-3",))
    assert stage.loads == ["3", "1", "3"]


def test_an_installed_version_is_loaded_instead_of_the_bundle_of_the_settings(
    play: Play, one: Installed, made_versions: Path
) -> None:
    stage = play(nothing, SlotState(model="tiny", active=one), bundles=(made_versions / "tiny-3",))
    assert (stage.serving, stage.loads) == ("1", ["1"])


def test_nobody_changes_by_name_what_is_installed(play: Play, one: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        for change in (stage.models.load("tiny"), stage.models.unload("tiny")):
            with pytest.raises(ForbiddenError, match="installed from a repository of releases"):
                await change
        assert stage.serving == "1"

    play(scenario, SlotState(model="tiny", active=one))


def test_an_orderly_stop_on_probation_gives_the_try_back(play: Play, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.later()
        await stage.supervisor.stop(in_order=False)
        assert stage.state.attempt is not None
        assert stage.state.attempt.tries_left == 2
        stage.models.drain()
        await stage.supervisor.stop(in_order=True)

    play(scenario, proven(SlotState(model="tiny", active=one), two))
    for _ in range(4):
        stage = play(scenario)
    assert stage.state.attempt is not None
    assert (stage.state.attempt.state, stage.state.attempt.tries_left) == (PROBATION, 3)


def test_an_agent_that_stops_rolls_nothing_back(play: Play, store: Store, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        stage.models.drain()
        store.write_state(proven(stage.state, two))
        await stage.later()

    stage = play(scenario, SlotState(model="tiny", active=one))
    assert stage.attempt[0] is PROBATION
    assert not stage.state.blocked


def test_a_stop_while_the_start_goes_on_ends_it(store: Store, one: Installed) -> None:
    store.write_state(SlotState(model="tiny", active=one))
    stage = Stage(store)
    stage.models.drain()

    async def start() -> None:
        async with asyncio.timeout(5):
            await stage.supervisor.start()

    asyncio.run(start())
    assert (stage.serving, stage.loads) == (None, [])
    assert stage.state.active == one


def test_a_collector_hears_at_once_of_what_this_process_wrote(
    play: Play, store: Store, one: Installed, two: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(stage.supervisor.rounds, "hurry", lambda: told.append(stage.attempt[0].value))
        store.write_state(proven(stage.state, two))
        await stage.later()
        stage.fail(10)
        await stage.later()
        assert stage.attempt[0] is ROLLED_BACK

    play(scenario, SlotState(model="tiny", active=one))
    assert told == []  # nobody listens
    monkeypatch.setitem(globals(), "CONFIG", replace(CONFIG, report_url="https://collector.example"))
    store.write_state(replace(store.read_state("tiny"), blocked=(), attempt=None))
    play(scenario, SlotState(model="tiny", active=one))
    assert told == ["probation", "rolled back"]


def test_what_an_update_mended_is_tried_again(play: Play, store: Store, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.later()
        assert (stage.serving, stage.loads) == ("1", ["2", "1"])
        store.write_state(stage.state)
        await stage.later()
        assert (stage.serving, stage.loads) == ("1", ["2", "1", "2"])
        del stage.failures["2"]
        store.write_state(stage.state)
        await stage.later()
        assert stage.serving == "2"

    failures: dict[str, Exception] = {"2": RuntimeUnavailableError("a library is missing")}
    stage = play(scenario, SlotState(model="tiny", active=two, previous=one), failures=failures)
    assert (stage.state.active, stage.state.previous) == (two, one)


def test_how_the_last_update_ended_is_told(play: Play, store: Store, one: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        write_status(store, Status(checked_at=5.0, ok=False, message="no route", received_bytes_total=7))
        await stage.later()
        view = updates_view(stage.supervisor)
        assert (view.checked_at, view.ok, view.message, view.received_bytes) == (5.0, False, "no route", 7)

    play(scenario, SlotState(model="tiny", active=one))


def test_the_view(play: Play, store: Store, one: Installed, two: Installed) -> None:
    async def scenario(stage: Stage) -> None:
        store.write_state(proven(replace(stage.state, pin="2"), two))
        await stage.later()
        await stage.later(100)
        view = updates_view(stage.supervisor)
        assert (view.enrolled, view.running, view.checked_at, view.next_seconds) == (False, False, None, None)
        (model,) = view.models
        assert (model.name, model.active, model.serving, model.previous, model.pin) == ("tiny", "2", "2", "1", "2")
        assert (model.degraded, model.damage, model.rollbacks) == ("", "", 0)
        assert model.attempt is not None
        assert (model.attempt.state, model.attempt.tries_left) == ("probation", 2)
        assert model.attempt.probation_seconds_left == pytest.approx(500.0)
        stage.fail(10)
        await stage.later()
        (model,) = updates_view(stage.supervisor).models
        assert (model.active, model.rollbacks) == ("1", 1)
        assert [each.version for each in model.blocked] == ["2"]
        assert model.attempt is not None
        assert model.attempt.probation_seconds_left is None

    play(scenario, SlotState(model="tiny", active=one))
