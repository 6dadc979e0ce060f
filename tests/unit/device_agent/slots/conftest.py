"""A state directory, and bundles to install in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_agent.slots.store import Store
from tests.support.bundles import make_bundle
from tests.support.installed import QuickDisk


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return [make_bundle(folder, version=f"1.{number}.0", seed=number + 1) for number in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "state", QuickDisk())
    made.prepare()
    return made
