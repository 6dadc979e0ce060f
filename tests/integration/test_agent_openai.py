"""The openai client, unmodified, sync and async, against a live agent process."""

from __future__ import annotations

import asyncio
import base64
import itertools
import threading
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest
import uvicorn

from device_agent.api.app import create_app
from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.models.loading import load_model
from device_agent.models.registry import Models
from edgeonnx.errors import OverloadedError
from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent

TEXTS = ("the cat sat", "", "hello world !")
REQUESTS = 150


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with Agent(bundle=bundles.make_bundle(tmp_path_factory.mktemp("openai"))) as running:
        yield running


@pytest.fixture
def client(agent: Agent) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def expected(texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    return bundles.reference(Task.EMBEDDING, bundles.tokens_of(texts, None))["sentence_embedding"]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "edgeonnx"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"user": "me"}])
def test_embeddings(client: openai.OpenAI, options: dict[str, str]) -> None:
    """Without an encoding, this client asks for base64 and decodes it."""
    result = client.embeddings.create(model="tiny", input=list(TEXTS), **options)  # type: ignore[arg-type]
    np.testing.assert_allclose([item.embedding for item in result.data], expected(), atol=1e-5)
    assert [item.index for item in result.data] == [0, 1, 2]
    assert result.usage.prompt_tokens == result.usage.total_tokens == 12


def test_one_text_and_token_arrays(client: openai.OpenAI) -> None:
    ids = bundles.tokens_of(TEXTS[:1], None)["input_ids"].tolist()
    for value in (TEXTS[0], ids, ids[0]):
        result = client.embeddings.create(model="tiny", input=value)
        np.testing.assert_allclose([item.embedding for item in result.data], expected(TEXTS[:1]), atol=1e-5)


def test_dimensions(client: openai.OpenAI) -> None:
    whole = expected(TEXTS[:1])[:, :4]
    result = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=4)
    np.testing.assert_allclose([item.embedding for item in result.data], whole / np.linalg.norm(whole), atol=1e-5)


def test_the_raw_response(client: openai.OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model="tiny", input=TEXTS[0], encoding_format="base64")
    assert raw.headers["content-type"] == "application/json"
    assert "infer;dur=" in raw.headers["server-timing"]
    encoded = raw.http_response.json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(encoded), dtype="<f4"), expected(TEXTS[:1])[0], atol=1e-5)


def test_errors_are_the_classes_that_callers_catch(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="tiny", input=[])
    assert (caught.value.param, caught.value.type) == ("input", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="tiny", input="a", dimensions=bundles.DIM + 1)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.APIStatusError) as large:
        client.embeddings.create(model="tiny", input=["a"] * 3000)
    assert large.value.status_code == 413


def test_a_client_that_does_not_wait(agent: Agent, client: openai.OpenAI) -> None:
    """It gives up, the agent learns so from its header or from its leaving, and others are not disturbed."""
    impatient = client.with_options(timeout=openai.Timeout(5.0, read=0.02))
    with pytest.raises((openai.APITimeoutError, openai.InternalServerError, openai.RateLimitError)):
        impatient.embeddings.create(model="tiny", input=["the cat sat on the mat " * 150] * 2000)
    assert client.embeddings.create(model="tiny", input="a").usage.prompt_tokens == 3
    metrics = httpx.get(f"{agent.url}/metrics").text
    assert "nv_inference_request_success" in metrics


def distinct_texts(count: int) -> list[str]:
    words = [word for word in bundles.WORDS if word.isalpha()]
    return [" ".join(combination) for combination in itertools.islice(itertools.permutations(words, 3), count)]


def test_many_at_once_each_get_their_own_answer(agent: Agent) -> None:
    texts = distinct_texts(2 * REQUESTS)
    sent = [(texts[2 * at],) if at % 3 else (texts[2 * at], texts[2 * at + 1]) for at in range(REQUESTS)]

    async def ask() -> list[openai.types.CreateEmbeddingResponse]:
        async with openai.AsyncOpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(client.embeddings.create(model="tiny", input=list(each)) for each in sent))

    flat = expected(tuple(text for each in sent for text in each))
    assert len(np.unique(flat.round(3), axis=0)) > REQUESTS / 2  # mixed up answers would show
    found = [item.embedding for result in asyncio.run(ask()) for item in result.data]
    np.testing.assert_allclose(found, flat, atol=1e-5)


class Served:
    """The application behind a real HTTP server in a thread, with an overload that the test decides."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        config = AgentConfig(runtime=RuntimeConfig(threads=1, runners=1))
        self.refusals = 0
        self.seen: list[int] = []
        self.loaded = load_model(bundles.make_bundle(tmp_path_factory.mktemp("overload")), config)
        models = Models(config)
        models.serve(self.loaded)
        submit = self.loaded.batcher.submit

        def refusing(*args: object, **fields: object) -> object:
            if self.refusals:
                self.refusals -= 1
                self.seen.append(429)
                raise OverloadedError("the answer could not come in time", retry_after=0.2)
            self.seen.append(200)
            return submit(*args, **fields)  # type: ignore[arg-type]

        self.loaded.batcher.submit = refusing  # type: ignore[method-assign, assignment]
        app = create_app(models, config)
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, access_log=False))
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        for _ in range(500):
            if self.server.started:
                break
            self.thread.join(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.loaded.close(5)


def test_an_overloaded_agent_is_asked_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    served = Served(tmp_path_factory)
    with served as url:
        served.refusals = 1
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                client.embeddings.create(model="tiny", input="a")
            assert caught.value.response.headers["retry-after"] == "1"
            assert (caught.value.type, caught.value.code) == ("rate_limit_error", "overloaded")
            served.refusals = 1
            patient = client.with_options(max_retries=1)
            result = patient.embeddings.create(model="tiny", input="the cat sat")
        np.testing.assert_allclose([result.data[0].embedding], expected(TEXTS[:1]), atol=1e-5)
    assert served.seen == [429, 429, 200]
