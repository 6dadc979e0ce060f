from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agent.slots.state import Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from edgeonnx.bundle import identify
from tests.support import bundles

Install = Callable[[str], Installed]


@pytest.fixture(scope="session")
def made_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles to copy: tiny 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("versions")
    for version in ("1", "2", "3"):
        bundles.make_bundle(folder, version=version, seed=int(version))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "state")
    found.prepare()
    return found


@pytest.fixture
def install(store: Store, made_versions: Path) -> Install:
    """Puts a version of tiny into its slot; the state is the test's."""

    def put(version: str) -> Installed:
        name, found, contents = identify(made_versions / f"tiny-{version}")
        slot = store.slot(name, contents)
        if not slot.exists():
            shutil.copytree(made_versions / f"tiny-{version}", slot)
        return Installed(version=found, contents=contents)

    return put


def proven(state: SlotState, release: Installed, *, tries: int = 3) -> SlotState:
    """The state in which the update process leaves a release."""
    state = begin(state, release, tries=tries, now=1.0)
    for to in (AttemptState.STAGED, AttemptState.CANDIDATE, AttemptState.PROVEN):
        state = step(state, to, now=1.0)
    return state
