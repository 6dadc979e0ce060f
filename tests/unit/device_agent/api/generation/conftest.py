from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from device_agent.api.app import create_app
from device_agent.config import AgentConfig, GenerationConfig, Limits, RuntimeConfig
from device_agent.models.loaded import LoadedDecoder, LoadedModel
from device_agent.models.loading import load_model
from device_agent.models.registry import Models
from tests.support import bundles, decoders

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedDecoder]:
    config = AgentConfig(runtime=RuntimeConfig(threads=1), generation=GenerationConfig(max_sequences=4))
    loaded = load_model(decoders.make_decoder_bundle(tmp_path_factory.mktemp("tiny-lm")), config)
    assert isinstance(loaded, LoadedDecoder)
    yield loaded
    assert loaded.close(timeout=5)


@pytest.fixture(scope="session")
def tiny_embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    config = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))
    loaded = load_model(bundles.make_bundle(tmp_path_factory.mktemp("tiny-embedder"), name="embedder"), config)
    yield loaded
    assert loaded.close(timeout=5)


@pytest.fixture
def serve(tiny_lm: LoadedDecoder, tiny_embedder: LoadedModel) -> Iterator[Serve]:
    """Gives a client of an application that serves the tiny decoder, or what stands for it, and an embedder."""
    clients = []

    def make(loaded: LoadedModel = tiny_lm, config: AgentConfig | None = None, **limits: int) -> TestClient:
        config = config or AgentConfig(limits=Limits(**limits))
        models = Models(config)
        models.serve(loaded)
        models.serve(tiny_embedder)
        client = TestClient(create_app(models, config), raise_server_exceptions=False)
        client.app.state.models = models  # type: ignore[attr-defined]
        clients.append(client)
        return client.__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)
