from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import pytest

from device_agent.config import AgentConfig
from device_agent.models import memory, registry
from device_agent.models.memory import NOTHING_TAKEN, Taken
from device_agent.models.registry import LiveModel, ModelEntry, Models, ModelState
from device_agent.models.states import TRANSITIONS, Record
from edgeonnx.bundle import identify
from edgeonnx.errors import (
    BundleError,
    GoldenSetError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    UsageError,
)
from tests.support import bundles

LOADING, READY, DRAINING, FAILED, UNLOADED = ModelState


CLOSED: list[str] = []
"""Names of the fakes that were closed."""


class FakeModel:
    """What `Models` needs of a loaded model."""

    memory_bytes = reserved_bytes = 100

    def __init__(self, path: Path) -> None:
        self.name, self.version, digest = identify(path)
        self.bundle = type("Bundle", (), {"digest": digest, "root": path.resolve()})()
        self.changed: tuple[str, ...] = ()
        self.closed = False

    def changed_files(self) -> tuple[str, ...]:
        return self.changed

    def close(self, timeout: float | None = None) -> bool:
        self.closed = True
        CLOSED.append(self.name)
        return True


class Loader:
    """Loads fakes; each load waits until the test lets it go on, where it is `held`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Taken, str | None]] = []
        self.failures: dict[str, Exception] = {}
        self.held = False
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.running = self.most_running = 0

    def __call__(
        self,
        path: Path,
        config: AgentConfig,
        *,
        taken: Taken = NOTHING_TAKEN,
        beside: str | None = None,
        gently: bool = False,
    ) -> FakeModel:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self.calls.append((path.name, taken, beside))
            self.begun.set()
            if self.held:
                assert self.go_on.wait(5)
            if path.name in self.failures:
                raise self.failures[path.name]
            return FakeModel(path)
        finally:
            self.running -= 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles to copy: tiny 1, 2 and 10, other 1."""
    folder = tmp_path_factory.mktemp("made")
    for version in ("1", "2", "10"):
        bundles.make_bundle(folder, version=version, seed=int(version))
    bundles.make_bundle(folder, name="other", version="1")
    return folder


@pytest.fixture
def repository(tmp_path: Path, made: Path) -> Path:
    """A repository with tiny 1 and other 1."""
    for name in ("tiny-1", "other-1"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


Scenario = Callable[[Models, Loader], Awaitable[None]]


@pytest.fixture
def play(repository: Path) -> Callable[..., None]:
    """Runs a scenario on models that were started with the named bundles of the repository."""

    def run(scenario: Scenario, *start: str) -> None:
        async def whole() -> None:
            loader = Loader()
            models = Models(
                AgentConfig(bundles=tuple(repository / name for name in start), repository=repository), loader
            )
            await models.start()
            loader.begun.clear()
            await scenario(models, loader)
            loader.go_on.set()
            assert models.close(timeout=1) or models.working
            await settled(models)

        asyncio.run(asyncio.wait_for(whole(), 20))

    return run


async def settled(models: Models) -> None:
    """Wait until nothing is done in the background."""
    while models.working:
        await asyncio.sleep(0.001)


async def begun(loader: Loader) -> None:
    assert await asyncio.to_thread(loader.begun.wait, 5)


def background(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    return asyncio.ensure_future(work)  # type: ignore[return-value]


def states(models: Models) -> dict[tuple[str, str], ModelState]:
    return {(entry.name, entry.version): entry.state for entry in models.index()}


def reason(models: Models, name: str) -> str:
    return next(entry.reason for entry in models.index() if entry.name == name and entry.reason)


def test_every_state_has_its_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(ModelState)


@pytest.mark.parametrize("state", list(ModelState))
@pytest.mark.parametrize("following", list(ModelState))
def test_transitions_are_those_of_the_table(state: ModelState, following: ModelState) -> None:
    record = Record("tiny", "1")
    record.state = state
    if following in TRANSITIONS[state]:
        record.go(following, "why\x1b")
        assert (record.state, record.reason) == (following, "why\\x1b")
    else:
        with pytest.raises(RuntimeError, match=f"from {state.value} to {following.value}"):
            record.go(following)


def test_before_the_start_nothing_serves(repository: Path) -> None:
    models = Models(AgentConfig(bundles=(repository / "tiny-1",)), Loader())
    assert (models.ready, models.state) == (False, "loading")
    with pytest.raises(NotReadyError, match="loading"):
        models.find("tiny")


def test_the_bundles_of_the_start_serve(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        assert (models.ready, models.state, models.memory_bytes, models.loads) == (True, "ready", 200, 2)
        assert loader.calls == [("tiny-1", NOTHING_TAKEN, None), ("other-1", Taken(100), None)]
        assert models.find("other").loaded.name == "other"
        assert models.find().loaded.name == "tiny"
        assert models.find("tiny", "1") is models.find("tiny", "") is models.find()
        assert models.index() == [
            ModelEntry(name="tiny", version="1", state=READY),
            ModelEntry(name="other", version="1", state=READY),
        ]

    play(scenario, "tiny-1", "other-1")


def test_another_name_or_version_is_not_found(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        with pytest.raises(ModelNotFoundError, match="expected 'tiny'; found 'other'"):
            models.find("other")
        with pytest.raises(ModelNotFoundError, match="expected '1'; found '2'"):
            models.find("tiny", "2")

    play(scenario, "tiny-1")


def test_an_agent_with_a_repository_alone_is_ready_and_serves_what_is_loaded(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        assert models.ready
        assert states(models) == {("tiny", "1"): UNLOADED, ("other", "1"): UNLOADED}
        with pytest.raises(ModelNotFoundError, match="no default"):
            models.find()
        await models.load("other")
        await models.load("tiny")
        assert models.find().loaded.name == "other"

    play(scenario)


def test_where_one_of_several_fails_the_others_serve(repository: Path) -> None:
    async def scenario() -> None:
        loader = Loader()
        loader.failures["tiny-1"] = GoldenSetError("not reproduced")
        models = Models(AgentConfig(bundles=(repository / "tiny-1", repository / "other-1", repository / "no")), loader)
        await models.start()
        assert models.ready
        assert models.failed_loads == 2
        assert states(models) == {("tiny", "1"): FAILED, ("other", "1"): READY, ("no", ""): FAILED}
        assert reason(models, "tiny") == "not reproduced"
        assert "is not a bundle" in reason(models, "no")
        with pytest.raises(NotReadyError, match="tiny: the model is not ready; found failed not reproduced"):
            models.find()

    asyncio.run(scenario())


def test_where_all_fail_the_agent_does_not_start(repository: Path) -> None:
    async def scenario() -> None:
        loader = Loader()
        loader.failures = {"tiny-1": GoldenSetError("the first"), "other-1": GoldenSetError("the second")}
        models = Models(AgentConfig(bundles=(repository / "tiny-1", repository / "other-1")), loader)
        with pytest.raises(GoldenSetError, match="the first"):
            await models.start()
        assert not models.ready

    asyncio.run(scenario())


def test_a_stop_during_the_start_is_no_failure(repository: Path) -> None:
    async def scenario() -> None:
        loader = Loader()
        loader.held = True
        models = Models(AgentConfig(bundles=(repository / "tiny-1",)), loader)
        start = background(models.start())
        await begun(loader)
        models.drain()
        loader.go_on.set()
        await start
        assert (models.started, models.all(), models.state) == (False, [], "draining")

    asyncio.run(scenario())


def test_two_bundles_of_one_name_cannot_both_start(made: Path) -> None:
    models = Models(AgentConfig(bundles=(made / "tiny-1", made / "tiny-2")), Loader())
    with pytest.raises(UsageError, match="two bundles have one name"):
        asyncio.run(models.start())


def test_the_first_bundle_may_be_loading_already_and_is_not_held_by_that(repository: Path) -> None:
    async def scenario() -> None:
        loader = Loader()
        models = Models(AgentConfig(bundles=(repository / "tiny-1", repository / "other-1")), loader)
        first: asyncio.Future[list[FakeModel]] = asyncio.get_running_loop().create_future()
        first.set_result([FakeModel(repository / "tiny-1")])
        await models.start(first)  # type: ignore[arg-type]
        assert [call[0] for call in loader.calls] == ["other-1"]
        assert [live.loaded.name for live in models.all()] == ["tiny", "other"]
        seen = weakref.ref(models.find("tiny").loaded)
        await models.load("tiny", force=True)
        await settled(models)
        assert seen() is None
        assert first.done()

    asyncio.run(scenario())


def test_memory_is_given_back_once_more_when_the_last_request_is_wholly_over(
    play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its task still holds when it answers is let go by the garbage collector alone, where it is in a cycle."""
    given: list[str] = []
    monkeypatch.setattr(memory, "give_back", lambda: given.append("back"))
    monkeypatch.setattr(registry, "SETTLE_SECONDS", 0.02)

    async def scenario(models: Models, loader: Loader) -> None:
        await models.unload("tiny")
        assert given == ["back"]
        async with asyncio.timeout(5):
            while len(given) < 2:
                await asyncio.sleep(0.005)

    play(scenario, "tiny-1")


def test_caches_that_are_about_to_go_are_no_hindrance_to_what_replaces_them(
    play, repository: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a model may come to take is reserved for it, but not in a swap: its caches grow no more then."""
    monkeypatch.setattr(FakeModel, "reserved_bytes", 900)

    async def scenario(models: Models, loader: Loader) -> None:
        await models.load("other")
        assert loader.calls[-1] == ("other-1", Taken(100, 800), None)
        shutil.copytree(made / "tiny-2", repository / "tiny-2")
        await models.load("tiny")
        assert loader.calls[-1] == ("tiny-2", Taken(200, 800), "tiny 1")
        assert models.memory_bytes >= 1800

    play(scenario, "tiny-1")


def test_a_swap_takes_the_newest_version_and_closes_the_old_one_after_its_last_request(
    play, repository: Path, made: Path
) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        for version in ("2", "10"):
            shutil.copytree(made / f"tiny-{version}", repository / f"tiny-{version}")
        old = models.find("tiny")
        with old.use() as loaded:
            await models.load("tiny")
            assert loader.calls[-1] == ("tiny-10", Taken(100), "tiny 1")
            assert models.find("tiny").loaded.version == "10"
            await asyncio.sleep(0.02)
            assert not loaded.closed
            assert (models.in_flight, models.memory_bytes, models.swaps) == (1, 200, 1)
            assert states(models)["tiny", "1"] is DRAINING
        await settled(models)
        assert loaded.closed
        assert states(models) == {
            ("tiny", "1"): UNLOADED, ("tiny", "2"): UNLOADED, ("tiny", "10"): READY, ("other", "1"): UNLOADED
        }  # fmt: skip
        assert models.memory_bytes == 100

    play(scenario, "tiny-1")


def test_a_version_can_be_asked_for(play, repository: Path, made: Path) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        shutil.copytree(made / "tiny-2", repository / "tiny-2")
        await models.load("tiny", "2")
        await models.load("tiny", "1")
        assert models.find("tiny").loaded.version == "1"
        with pytest.raises(ModelNotFoundError, match="expected '1' or '2'; found '3'"):
            await models.load("tiny", "3")
        with pytest.raises(ModelNotFoundError, match="no such model"):
            await models.load("nothing")
        assert models.find("tiny").loaded.version == "1"

    play(scenario, "tiny-1")


def test_a_load_of_what_serves_does_nothing_unless_something_changed(play, repository: Path) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        await models.load("tiny")
        assert len(loader.calls) == 1
        await models.load("tiny", force=True)
        assert len(loader.calls) == 2
        models.find("tiny").loaded.changed = ("evidence.json",)
        assert reason(models, "tiny").startswith("1 files changed on disk since they were verified (evidence.json)")
        assert states(models)["tiny", "1"] is READY
        await models.load("tiny")
        assert len(loader.calls) == 3
        shutil.move(repository / "tiny-1", repository / "moved")
        await models.load("tiny")
        assert loader.calls[-1][0] == "moved"

    play(scenario, "tiny-1")


@pytest.mark.parametrize(
    "error", [GoldenSetError("no \x1b"), MemoryBudgetError("no \x1b"), ZeroDivisionError("no \x1b")]
)
def test_a_load_that_fails_changes_nothing(play, repository: Path, made: Path, error: Exception) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        shutil.copytree(made / "tiny-2", repository / "tiny-2")
        loader.failures["tiny-2"] = error
        before = models.find("tiny")
        with pytest.raises(type(error)):
            await models.load("tiny")
        assert models.find("tiny") is before
        assert states(models)["tiny", "2"] is FAILED
        assert reason(models, "tiny") == "no \\x1b"
        assert models.failed_loads == 1
        loader.failures.clear()
        await models.load("tiny")
        assert models.find("tiny").loaded.version == "2"
        assert states(models)["tiny", "2"] is READY
        await settled(models)
        assert len(models.index()) == len(states(models))

    play(scenario, "tiny-1")


def test_a_bundle_that_became_another_model_meanwhile(play, repository: Path, made: Path) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        loader.held = True
        task = background(models.load("other"))
        await begun(loader)
        shutil.rmtree(repository / "other-1")
        shutil.copytree(made / "tiny-2", repository / "other-1")
        loader.go_on.set()
        with pytest.raises(BundleError, match="became another model"):
            await task
        assert [live.loaded.name for live in models.all()] == ["tiny"]

    play(scenario, "tiny-1")


def test_one_load_at_a_time_and_in_order(play, repository: Path) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        loader.held = True
        tasks = [background(models.load("other")), background(models.load("other")), background(models.unload("other"))]
        await begun(loader)
        assert states(models)["other", "1"] is LOADING
        with pytest.raises(NotReadyError, match="other: the model is not ready; found loading"):
            models.find("other")
        loader.go_on.set()
        await asyncio.gather(*tasks)
        assert loader.most_running == 1
        # The second load found the first one's result; the unload came after both.
        assert [call[0] for call in loader.calls] == ["tiny-1", "other-1"]
        assert states(models)["other", "1"] is UNLOADED

    play(scenario, "tiny-1")


def test_who_asked_may_leave(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        loader.held = True
        task = background(models.load("other"))
        await begun(loader)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        loader.go_on.set()
        await settled(models)
        assert models.find("other").loaded.version == "1"

    play(scenario, "tiny-1")


def test_unloading_waits_for_the_requests_in_the_model(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        live = models.find("tiny")
        with live.use() as loaded:
            task = background(models.unload("tiny"))
            await asyncio.sleep(0.02)
            with pytest.raises(ModelNotFoundError):
                models.find("tiny")
            assert states(models)["tiny", "1"] is DRAINING
            # Nobody waits for the drain: another model loads meanwhile.
            await models.load("other")
            assert not task.done()
            assert not loaded.closed
        await task
        assert loaded.closed
        assert states(models)["tiny", "1"] is UNLOADED
        # It was the default, and no other model's answer takes the place of its own.
        with pytest.raises(ModelNotFoundError, match="expected 'other'; found 'tiny'"):
            models.find()
        await models.load("tiny")
        assert models.find().loaded.version == "1"

    play(scenario, "tiny-1")


def test_unloading_what_does_not_serve(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        await models.unload("other")
        with pytest.raises(ModelNotFoundError):
            await models.unload("nothing")
        loader.failures["other-1"] = GoldenSetError("no")
        with pytest.raises(GoldenSetError):
            await models.load("other")
        assert states(models)["other", "1"] is FAILED
        await models.unload("other")
        assert states(models)["other", "1"] is UNLOADED

    play(scenario, "tiny-1")


def test_a_bundle_that_is_removed_still_serves(play, repository: Path) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        shutil.rmtree(repository / "tiny-1")
        assert models.find("tiny").loaded.version == "1"
        assert states(models)["tiny", "1"] is READY
        with pytest.raises(ModelNotFoundError):
            await models.load("tiny")
        assert models.find("tiny").loaded.version == "1"

    play(scenario, "tiny-1")


def test_a_model_that_was_loading_when_the_agent_began_to_stop_never_serves(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        loader.held = True
        task = background(models.load("other"))
        await begun(loader)
        waiting = background(models.load("tiny", force=True))
        models.drain()
        assert not models.close(timeout=0)  # a thread still works
        loader.go_on.set()
        for each in (task, waiting):
            with pytest.raises(NotReadyError, match="stopping"):
                await each
        assert [live.loaded.name for live in models.all()] == ["tiny"]
        assert CLOSED[-1] == "other"
        assert models.close(timeout=0)

    play(scenario, "tiny-1")


def test_draining_waits_for_requests_in_flight(play, repository: Path, made: Path) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        shutil.copytree(made / "tiny-2", repository / "tiny-2")
        with models.find("tiny").use():
            await models.load("tiny")
            models.drain()
            with pytest.raises(NotReadyError, match="draining"):
                models.find("tiny")
            assert models.in_flight == 1
            assert not await models.drained(0.01)
        assert models.in_flight == 0
        assert await models.drained(1)

    play(scenario, "tiny-1")


def test_a_request_that_fails_is_no_longer_in_flight() -> None:
    live = LiveModel(FakeModel.__new__(FakeModel))  # type: ignore[arg-type]
    with pytest.raises(LookupError), live.use():
        raise LookupError
    assert live.in_flight == 0


def test_nothing_holds_a_model_that_was_unloaded(play, repository: Path, made: Path) -> None:
    """Its memory is freed by reference counts alone: the collector no longer looks at what was frozen at the start."""

    async def scenario(models: Models, loader: Loader) -> None:
        shutil.copytree(made / "tiny-2", repository / "tiny-2")
        seen = []
        for unload in (lambda: models.load("tiny"), lambda: models.unload("tiny")):
            seen.append(weakref.ref(models.find("tiny").loaded))
            await unload()
            await settled(models)
        assert [each() for each in seen] == [None, None]

    gc.disable()
    try:
        play(scenario, "tiny-1")
    finally:
        gc.enable()


def test_a_request_that_came_before_the_stop_still_finds_its_model(play) -> None:
    async def scenario(models: Models, loader: Loader) -> None:
        arrived = asyncio.Event()

        async def request() -> str:
            with models.request():
                if not models.draining:
                    await arrived.wait()
                models.check_ready()
                return models.find("tiny").loaded.name

        early = asyncio.ensure_future(request())
        await asyncio.sleep(0)
        assert models.in_flight == 1
        models.drain()
        assert not await models.drained(0.01)
        with pytest.raises(NotReadyError, match="draining"):
            await request()
        arrived.set()
        assert await early == "tiny"
        assert models.in_flight == 0
        assert await models.drained(1)
        with pytest.raises(NotReadyError, match="draining"):
            models.find("tiny")

    play(scenario, "tiny-1")
