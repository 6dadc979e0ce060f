"""Bundles and repositories that several tests of this folder start from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edgeonnx.repository import Repository
from tests.support.bundles import make_bundle
from tests.support.repository import MemoryKeys, TestRepository


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """The disk is not waited for, which would take most of the time; `test_files.py` looks at what is synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def time() -> Time:
    """The clock of the repository `made`."""
    return Time()


@pytest.fixture
def made(tmp_path: Path, time: Time) -> TestRepository:
    """An empty repository, made on 1 March 2026."""
    return TestRepository.create(tmp_path / "repo", now=time)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Versions of one tiny model, by version; `other` is another bundle that also calls itself 1.0.0.

    1.2.0 has the tensors of 1.1.0.
    """
    folder = tmp_path_factory.mktemp("repository-bundles")
    seeds = {"1.0.0": 1, "1.1.0": 2, "1.2.0": 2}
    made = {version: make_bundle(folder, version=version, seed=seed) for version, seed in seeds.items()}
    made["other"] = make_bundle(folder / "other", version="1.0.0", seed=3)
    made["second"] = make_bundle(folder, name="second", version="2.0.0", seed=4)
    return made


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, bundles: dict[str, Path]) -> TestRepository:
    """A repository with 1.0.0 for all, and 1.1.0 for a tenth. Nobody changes it; `repository` is a copy."""
    made = TestRepository.create(tmp_path_factory.mktemp("repository") / "repo")
    made.publish(bundles["1.0.0"])
    made.publish(bundles["1.1.0"], share=100_000)
    return made


@pytest.fixture
def repository(published: TestRepository, tmp_path: Path) -> TestRepository:
    """A repository with two releases, to be changed."""
    return copy_of(published, tmp_path / "repo")


def copy_of(made: TestRepository, folder: Path) -> TestRepository:
    """A copy of a repository, with copies of its keys."""
    shutil.copytree(made.path, folder, copy_function=shutil.copyfile)
    keys = MemoryKeys()
    keys.signers = dict(made.keys.signers)
    return TestRepository(Repository(folder), keys, {role: list(each) for role, each in made.role_keys.items()})
