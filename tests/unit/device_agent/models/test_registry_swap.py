"""Swapping to the bundle of an explicit folder, as whoever supervises updates does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from device_agent.config import AgentConfig
from device_agent.models.registry import Models, ModelState
from device_agent.models.repository import expect, look
from edgeonnx.bundle import identify
from edgeonnx.errors import BundleError, ForbiddenError, ModelNotFoundError, NotReadyError
from tests.support import bundles


class Fake:
    """What the registry needs of a loaded model."""

    memory_bytes = reserved_bytes = 100

    def __init__(self, path: Path) -> None:
        self.name, self.version, digest = identify(path)
        self.bundle = SimpleNamespace(digest=digest, root=path.resolve())
        self.closed = False
        self.changed: tuple[str, ...] = ()

    def changed_files(self) -> tuple[str, ...]:
        return self.changed

    def close(self, timeout: float | None = None) -> bool:
        self.closed = True
        return True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny 1 and 2, other 1."""
    folder = tmp_path_factory.mktemp("swap")
    for version in ("1", "2"):
        bundles.make_bundle(folder, version=version, seed=int(version))
    bundles.make_bundle(folder, name="other", version="1")
    return folder


def play(scenario: Callable[[Models, list[tuple[str, bool]]], Awaitable[None]]) -> None:
    """Run a scenario on a registry that began empty; it is given the loads, each with whether it was a gentle one."""
    loads: list[tuple[str, bool]] = []

    def load(path: Path, config: AgentConfig, *, gently: bool = False, **_: Any) -> Any:
        loads.append((path.name, gently))
        return Fake(path)

    async def whole() -> None:
        models = Models(AgentConfig(), load)
        await models.start()
        await scenario(models, loads)
        while models.working:
            await asyncio.sleep(0.001)

    asyncio.run(whole())


def test_a_swap_to_a_folder(made: Path) -> None:
    async def scenario(models: Models, loads: list[tuple[str, bool]]) -> None:
        await models.swap_to(made / "tiny-1", name="tiny")
        assert models.find().loaded.version == "1"
        await models.swap_to(made / "tiny-2", name="tiny", digest=identify(made / "tiny-2")[2])
        assert models.find("tiny").loaded.version == "2"
        assert models.swaps == 1
        # Beside one that serves, a model is loaded at a low priority.
        assert loads == [("tiny-1", False), ("tiny-2", True)]
        await models.swap_to(made / "tiny-2", name="tiny")
        assert len(loads) == 2
        models.find().loaded.changed = ("a file",)  # type: ignore[attr-defined]
        await models.swap_to(made / "tiny-2", name="tiny")
        assert len(loads) == 3

    play(scenario)


@pytest.mark.parametrize(
    ("folder", "digest", "found"),
    [
        ("other-1", None, "the folder holds another bundle"),
        ("tiny-1", "0" * 64, "holds another"),
        ("none", None, "no manifest|not|missing"),
    ],
)
def test_another_bundle_than_expected_does_not_serve(made: Path, folder: str, digest: str | None, found: str) -> None:
    async def scenario(models: Models, loads: list[tuple[str, bool]]) -> None:
        await models.swap_to(made / "tiny-2", name="tiny")
        with pytest.raises(BundleError, match=found):
            await models.swap_to(made / folder, name="tiny", digest=digest)
        assert models.find("tiny").loaded.version == "2"
        assert [name for name, _ in loads] == ["tiny-2"]
        assert [entry.state for entry in models.index() if entry.name == "tiny"] == [
            ModelState.READY,
            ModelState.FAILED,
        ]

    play(scenario)


def test_what_was_loading_from_another_bundle_is_closed(made: Path) -> None:
    async def scenario(models: Models, _: list[tuple[str, bool]]) -> None:
        loaded: Any = Fake(made / "tiny-1")
        loading: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        loading.set_result([loaded])
        with pytest.raises(BundleError, match="holds another"):
            await models.swap_to(made / "tiny-1", name="tiny", digest="0" * 64, loading=loading)
        assert loaded.closed
        assert models.all() == []

    play(scenario)


def test_a_model_that_was_loading_is_taken(made: Path) -> None:
    async def scenario(models: Models, loads: list[tuple[str, bool]]) -> None:
        loading: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        loading.set_result([Fake(made / "tiny-1")])
        await models.swap_to(made / "tiny-1", name="tiny", loading=loading)
        assert models.find("tiny").loaded.version == "1"
        assert loads == []

    play(scenario)


def test_managed_models_are_left_alone_by_name(made: Path) -> None:
    async def scenario(models: Models, _: list[tuple[str, bool]]) -> None:
        models.managed.add("tiny")
        await models.swap_to(made / "tiny-1", name="tiny")
        for change in (models.load("tiny"), models.load("tiny", force=True), models.unload("tiny")):
            with pytest.raises(ForbiddenError, match="edgeonnx-agent status"):
                await change
        await models.withdraw("tiny")
        with pytest.raises(ModelNotFoundError):
            models.find("tiny")

    play(scenario)


def test_nothing_is_swapped_while_the_agent_stops(made: Path) -> None:
    async def scenario(models: Models, loads: list[tuple[str, bool]]) -> None:
        models.drain()
        with pytest.raises(NotReadyError):
            await models.swap_to(made / "tiny-1", name="tiny")
        assert loads == []

    play(scenario)


def test_expectations(made: Path) -> None:
    found = look(made / "tiny-1")
    assert expect(found, "tiny", None) is found
    assert expect(found, "tiny", found.digest) is found
    wrong = expect(found, "other", None)
    assert (wrong.name, type(wrong.error)) == ("other", BundleError)
    missing = expect(look(made / "none"), "tiny", None)
    assert missing.name == "tiny"
    assert missing.error is not None
