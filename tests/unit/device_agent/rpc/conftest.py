from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.models.loaded import LoadedModel
from device_agent.models.loading import load_model
from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.decoders import make_decoder_bundle

LoadTiny = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def loaded_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadTiny]:
    """Gives the tiny model of a task, loaded once."""
    cache: dict[Task, LoadedModel] = {}
    config = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))

    def load(task: Task = Task.EMBEDDING) -> LoadedModel:
        if task not in cache:
            folder = tmp_path_factory.mktemp("rpc")
            generates = task is Task.TEXT_GENERATION
            cache[task] = load_model(
                make_decoder_bundle(folder, name="tiny") if generates else bundles.make_bundle(folder, task), config
            )
        return cache[task]

    yield load
    for loaded in cache.values():
        assert loaded.close(timeout=5)
