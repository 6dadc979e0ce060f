"""The agent with the real all-MiniLM-L6-v2: the answers are the source model's, and a stop loses none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import tritonclient.http as triton

from edgeonnx.bundle import open_bundle
from edgeonnx.bundle.golden import GoldenSet
from tests.support.agent import Agent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def agent(minilm_bundle: Path) -> Iterator[Agent]:
    # fp32, as its answers can be held against the source model's digit by digit.
    with Agent(bundle=minilm_bundle, arguments=("--variant", "cpu-fp32")) as running:
        yield running


@pytest.fixture(scope="module")
def golden(minilm_bundle: Path) -> GoldenSet:
    return open_bundle(minilm_bundle).golden()


def test_openai_gives_the_source_models_embeddings(agent: Agent, golden: GoldenSet) -> None:
    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
        result = client.embeddings.create(model="minilm", input=list(golden.texts))
    found = np.array([item.embedding for item in result.data], dtype=np.float32)
    np.testing.assert_allclose(found, golden.outputs["sentence_embedding"], atol=1e-4)
    assert result.usage.prompt_tokens == int(golden.mask.sum())


def test_triton_gives_the_source_models_embeddings(agent: Agent, golden: GoldenSet) -> None:
    tensor = triton.InferInput("text", [len(golden.texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(golden.texts, dtype=np.object_), binary_data=False)
    with triton.InferenceServerClient(agent.address) as client:
        result = client.infer("minilm", [tensor])
    np.testing.assert_allclose(result.as_numpy("sentence_embedding"), golden.outputs["sentence_embedding"], atol=1e-4)


def test_a_row_does_not_depend_on_the_others(agent: Agent, golden: GoldenSet) -> None:
    with httpx.Client(base_url=agent.url, timeout=30) as client:

        def embed(texts: list[str]) -> np.ndarray:
            answer = client.post("/v1/embeddings", json={"model": "minilm", "input": texts})
            return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)

        together = embed([*golden.texts, "a word. " * 400, ""])
        for row, text in enumerate(golden.texts[:8]):
            np.testing.assert_allclose(embed([text])[0], together[row], atol=1e-5)


def test_an_empty_text_and_a_megabyte(agent: Agent) -> None:
    with httpx.Client(base_url=agent.url, timeout=30) as client:
        for text, tokens in (("", 2), ("word " * 200_000, 256)):
            answer = client.post("/v1/embeddings", json={"model": "minilm", "input": text})
            assert answer.status_code == 200
            assert answer.json()["usage"]["prompt_tokens"] == tokens
            assert np.linalg.norm(answer.json()["data"][0]["embedding"]) == pytest.approx(1.0, abs=1e-4)


def test_a_request_that_is_computed_survives_sigterm(minilm_bundle: Path) -> None:
    texts = ["a sentence of some length that keeps the model busy for a while, again and again. " * 8] * 100
    answers: list[httpx.Response] = []
    with Agent(bundle=minilm_bundle) as agent:

        def ask() -> None:
            answers.append(
                httpx.post(f"{agent.url}/v1/embeddings", json={"model": "minilm", "input": texts}, timeout=60)
            )

        client = threading.Thread(target=ask)
        client.start()
        while "edgeonnx_requests_in_flight 1.0" not in httpx.get(f"{agent.url}/metrics", timeout=30).text:
            assert client.is_alive()
        agent.terminate()
        assert agent.wait(timeout=60) == 0
        client.join(timeout=10)
    assert [answer.status_code for answer in answers] == [200]
    assert len(answers[0].json()["data"]) == len(texts)
