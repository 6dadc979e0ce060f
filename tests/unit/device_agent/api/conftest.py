from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from device_agent.api.app import create_app
from device_agent.config import AgentConfig, Limits, RuntimeConfig
from device_agent.models.loaded import LoadedModel
from device_agent.models.loading import load_model
from device_agent.models.registry import Models
from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.decoders import make_decoder_bundle

Connect = Callable[..., TestClient]
LoadTiny = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def loaded_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadTiny]:
    """Gives the tiny model of a task, loaded once for each name."""
    cache: dict[tuple[Task, str], LoadedModel] = {}
    config = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))

    def load(task: Task = Task.EMBEDDING, name: str = "tiny") -> LoadedModel:
        if (task, name) not in cache:
            folder = tmp_path_factory.mktemp("api")
            generates = task is Task.TEXT_GENERATION
            path = make_decoder_bundle(folder, name=name) if generates else bundles.make_bundle(folder, task, name=name)
            cache[task, name] = load_model(path, config)
        return cache[task, name]

    yield load
    for loaded in cache.values():
        assert loaded.close(timeout=5)


@pytest.fixture
def connect(loaded_models: LoadTiny) -> Iterator[Connect]:
    """Gives a client of an application that serves tiny models.

    The first task's model has the name "tiny", each further one the name of its task. Keywords are limits; `config`
    gives all settings instead. `client.app.state.models` are the agent's `Models`.
    """
    clients = []

    def make(
        task: Task = Task.EMBEDDING, *others: Task, ready: bool = True, config: AgentConfig | None = None, **limits: int
    ) -> TestClient:
        config = config or AgentConfig(limits=Limits(**limits))
        models = Models(config)
        if ready:
            models.serve(loaded_models(task))
            for other in others:
                models.serve(loaded_models(other, other.value))
        client = TestClient(create_app(models, config), raise_server_exceptions=False)
        client.app.state.models = models  # type: ignore[attr-defined]
        clients.append(client)
        return client.__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)
