"""Repositories that are made once and copied: signing and compressing are not what these tests are about."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeonnx.repository import Repository
from tests.support.bundles import CPU_VARIANTS, make_bundle
from tests.support.device import QuickFiles, TestDevice
from tests.support.repository import TestRepository


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of the model `tiny` by their versions; each has three variants for CPUs."""
    folder = tmp_path_factory.mktemp("bundles")
    seeds = {"1.0.0": 1, "1.1.0": 2, "1.2.0": 3}
    return {
        version: make_bundle(folder, version=version, seed=seed, variants=CPU_VARIANTS)
        for version, seed in seeds.items()
    }


@pytest.fixture(scope="session")
def first_repository(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> TestRepository:
    """A repository that offers 1.0.0 to everybody. Copy it before it is changed: `repository` does."""
    folder = tmp_path_factory.mktemp("repository") / "repo"
    made = TestRepository.create(folder, files=QuickFiles(folder))
    made.publish(bundles["1.0.0"])
    return made


@pytest.fixture
def repository(first_repository: TestRepository, tmp_path: Path) -> TestRepository:
    """A repository that offers 1.0.0 to everybody."""
    shutil.copytree(first_repository.path, tmp_path / "repo")
    copy = Repository(tmp_path / "repo", files=QuickFiles(tmp_path / "repo"))
    return TestRepository(copy, first_repository.keys, first_repository.role_keys)


@pytest.fixture
def device(repository: TestRepository, tmp_path: Path) -> TestDevice:
    """A device that is enrolled with `repository` and has nothing installed."""
    return TestDevice(tmp_path / "state", repository)


@pytest.fixture
def offer(repository: TestRepository, bundles: dict[str, Path]) -> Callable[[str], str]:
    """Publishes a version to everybody; returns it."""

    def publish(version: str) -> str:
        repository.publish(bundles[version])
        return version

    return publish
