from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from device_agent.api.app import create_app
from device_agent.config import AgentConfig
from device_agent.models import LiveModel, LoadedModel, load_model
from edgeonnx.spec.manifest import Task
from tests.support import bundles

Connect = Callable[..., TestClient]


@pytest.fixture(scope="session")
def loaded_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Task], LoadedModel]:
    """Gives the tiny model of a task, loaded once."""
    cache: dict[Task, LoadedModel] = {}

    def load(task: Task = Task.EMBEDDING) -> LoadedModel:
        if task not in cache:
            cache[task] = load_model(bundles.make_bundle(tmp_path_factory.mktemp("api"), task), AgentConfig(threads=1))
        return cache[task]

    return load


@pytest.fixture
def connect(loaded_models: Callable[[Task], LoadedModel]) -> Iterator[Connect]:
    """Gives a client of an application that serves the tiny model of a task, under the given limits."""
    clients = []

    def make(task: Task = Task.EMBEDDING, *, ready: bool = True, **limits: int) -> TestClient:
        live = LiveModel()
        if ready:
            live.serve(loaded_models(task))
        client = TestClient(create_app(live, AgentConfig(**limits)), raise_server_exceptions=False)
        client.app.state.live = live  # type: ignore[attr-defined]
        clients.append(client)
        return client.__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)
