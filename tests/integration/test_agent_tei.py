"""Clients of text-embeddings-inference against a live agent process that serves a model for each task."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient

from device_agent.api.app import ROUTES
from edgeonnx.spec.manifest import Task
from tests.support import bundles, decoders
from tests.support.agent import Agent

MODELS = {
    "minilm": Task.EMBEDDING,
    "sentiment-classifier": Task.TEXT_CLASSIFICATION,
    "ranker": Task.TEXT_RANKING,
}
"""The names are those of the examples in docs/api.md."""
TEXTS = ("the cat sat", "", "hello world !")
QUERY = "a good film"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("tei")
    first, *others = (bundles.make_bundle(folder, task, name=name) for name, task in MODELS.items())
    others.append(decoders.make_decoder_bundle(folder, name="smollm2"))
    more = [argument for bundle in others for argument in ("--bundle", str(bundle))]
    with Agent(bundle=first, arguments=tuple(more)) as running:
        yield running


@pytest.fixture(scope="module")
def client(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=10) as client:
        yield client


def embedded(texts: tuple[str, ...]) -> np.ndarray:
    return bundles.reference(Task.EMBEDDING, bundles.tokens_of(texts, None))["sentence_embedding"]


def test_the_hubs_client_embeds(agent: Agent) -> None:
    hub = InferenceClient(f"{agent.url}/embed")
    np.testing.assert_allclose(hub.feature_extraction(list(TEXTS)), embedded(TEXTS), atol=1e-5)  # type: ignore[arg-type]
    one = hub.feature_extraction(TEXTS[0], normalize=True, truncate=True, truncation_direction="left")
    np.testing.assert_allclose(one, embedded(TEXTS[:1]), atol=1e-5)


def test_the_hubs_client_compares(agent: Agent) -> None:
    hub = InferenceClient(f"{agent.url}/similarity")
    vectors = embedded((QUERY, *TEXTS))
    found = hub.sentence_similarity(QUERY, other_sentences=list(TEXTS))
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-5)


def test_each_route_finds_its_model(client: httpx.Client) -> None:
    ranks = client.post("/rerank", json={"query": QUERY, "texts": list(TEXTS), "return_text": True}).json()
    pairs = bundles.tokens_of((QUERY,) * len(TEXTS), TEXTS)
    expected = bundles.reference(Task.TEXT_RANKING, pairs)["scores"][:, 0]
    assert [rank["text"] for rank in ranks] == [TEXTS[index] for index in np.argsort(-expected)]
    labels = client.post("/predict", json={"inputs": "a good film !"}).json()
    scores = bundles.reference(Task.TEXT_CLASSIFICATION, bundles.tokens_of(("a good film !",), None))["scores"][0]
    assert labels[0]["label"] == bundles.LABELS[int(scores.argmax())]
    assert client.get("/info", params={"model": "ranker"}).json()["model_type"] == {
        "reranker": {"id2label": {}, "label2id": {}}
    }
    assert client.get("/health").status_code == 200


def test_errors_have_its_form(client: httpx.Client) -> None:
    wrong = client.post("/rerank", json={"query": QUERY, "texts": ["a"], "model": "minilm"})
    assert (wrong.status_code, wrong.json()["error_type"]) == (400, "Validation")
    assert client.post("/rerank", content=b"{").json()["error_type"] == "Validation"
    unknown = client.post("/embed_sparse", json={"inputs": "a"})
    assert unknown.status_code == 404
    assert set(unknown.json()) == {"error", "error_type"}


def test_requests_at_once_keep_apart(client: httpx.Client) -> None:
    words = [word for word in bundles.WORDS if word.isalpha()]

    def ask(word: str) -> list[dict[str, float]]:
        return client.post("/rerank", json={"query": word, "texts": words}).json()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(words, pool.map(ask, words), strict=True))
    for word, ranks in answers.items():
        pairs = bundles.tokens_of((word,) * len(words), tuple(words))
        expected = bundles.reference(Task.TEXT_RANKING, pairs)["scores"][:, 0]
        found = {rank["index"]: rank["score"] for rank in ranks}
        np.testing.assert_allclose([found[index] for index in range(len(words))], expected, atol=1e-5)


API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\$ curl -s localhost:8080(/\S*)(?: -d '(.*)')?\n([\[{].*\n)?", API, re.MULTILINE)


def form(value: object) -> object:
    """What a JSON value looks like, whatever the model: members, types, and the form of the first element."""
    if isinstance(value, dict):
        return {key: form(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize(("path", "body", "answer"), EXAMPLES)
def test_the_documentations_examples_are_answered_so(client: httpx.Client, path: str, body: str, answer: str) -> None:
    found = client.post(path, content=body) if body else client.get(path)
    wrong = '"error"' in answer
    assert found.status_code == (400 if wrong else 200), found.text
    if answer:
        assert form(found.json()) == form(json.loads(answer))


def test_every_route_has_an_example() -> None:
    """Twins on a version, and what is refused, are told in words."""
    asked = {(("POST" if body else "GET"), path) for path, body, _ in EXAMPLES}
    plain = [
        (method, path)
        for method, path, _ in ROUTES
        if not re.search(r"/versions/|trace|logging|shared|^/$|status", path)
    ]
    patterns = {(method, path): re.sub(r"{\w+}", "[^/]+", path) for method, path in plain}
    missing = [
        key for key, pattern in patterns.items() if not any(key[0] == m and re.fullmatch(pattern, p) for m, p in asked)
    ]
    assert missing == []
