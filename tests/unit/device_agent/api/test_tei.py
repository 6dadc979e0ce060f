from __future__ import annotations

import numpy as np
import pytest

from device_agent.config import AgentConfig, QueueConfig
from edgeonnx.spec.manifest import Task
from tests.support import bundles

QUERY = "the cat"
DOCUMENTS = ("hello world", "the cat sat on the mat", "", "bad dogs")
LONG = "cat " * 40


def scored(task: Task, texts: tuple[str, ...], pairs: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    return bundles.reference(task, bundles.tokens_of(texts, pairs))


def rerank(client, **fields: object):
    return client.post("/rerank", json={"query": QUERY, "texts": list(DOCUMENTS), **fields})


def classify(client, inputs: object, **fields: object):
    return client.post("/classify", json={"inputs": inputs, **fields})


def embed(client, inputs: object, **fields: object) -> np.ndarray:
    response = client.post("/embed", json={"inputs": inputs, **fields})
    assert response.status_code == 200, response.text
    return np.array(response.json(), dtype=np.float32)


@pytest.mark.parametrize(("raw", "output"), [(False, "scores"), (True, "logits")])
def test_ranks_are_the_reference_scores_the_highest_first(connect, raw: bool, output: str) -> None:
    found = rerank(connect(Task.TEXT_RANKING), raw_scores=raw).json()
    expected = scored(Task.TEXT_RANKING, (QUERY,) * len(DOCUMENTS), DOCUMENTS)[output][:, 0]
    assert [rank["index"] for rank in found] == np.argsort(-expected).tolist()
    np.testing.assert_allclose([rank["score"] for rank in found], np.sort(expected)[::-1], atol=1e-5)
    assert [list(rank) for rank in found] == [["index", "score"]] * 4


def test_ranks_bring_their_texts_back(connect) -> None:
    found = rerank(connect(Task.TEXT_RANKING), return_text=True).json()
    assert [rank["text"] for rank in found] == [DOCUMENTS[rank["index"]] for rank in found]


def test_equal_texts_keep_their_order(connect) -> None:
    found = rerank(connect(Task.TEXT_RANKING), texts=["hello", "hello", "hello"]).json()
    assert [rank["index"] for rank in found] == [0, 1, 2]


@pytest.mark.parametrize("path", ["/classify", "/predict"])
@pytest.mark.parametrize(("raw", "output"), [(False, "scores"), (True, "logits")])
def test_labels_are_the_reference_scores_the_highest_first(connect, path: str, raw: bool, output: str) -> None:
    client = connect(Task.TEXT_CLASSIFICATION)
    found = client.post(path, json={"inputs": [["a good film"], ["bad dogs"]], "raw_scores": raw}).json()
    expected = scored(Task.TEXT_CLASSIFICATION, ("a good film", "bad dogs"))[output]
    for row, reference in zip(found, expected, strict=True):
        order = np.argsort(-reference)
        assert [item["label"] for item in row] == [bundles.LABELS[index] for index in order]
        np.testing.assert_allclose([item["score"] for item in row], reference[order], atol=1e-5)


def test_one_input_outside_a_list_answers_one_list(connect) -> None:
    client = connect(Task.TEXT_CLASSIFICATION)
    one = classify(client, "a good film").json()
    assert [one] == classify(client, [["a good film"]]).json()
    assert one == classify(client, ["a good film"]).json()


def test_pairs_are_classified_together(connect) -> None:
    client = connect(Task.TEXT_CLASSIFICATION)
    expected = np.sort(scored(Task.TEXT_CLASSIFICATION, ("the cat",), ("a dog",))["scores"][0])[::-1]
    for inputs, pick in ((["the cat", "a dog"], lambda found: found), ([["the cat", "a dog"]], lambda found: found[0])):
        found = pick(classify(client, inputs).json())
        np.testing.assert_allclose([item["score"] for item in found], expected, atol=1e-5)


def test_a_ranking_model_classifies_pairs_only(connect) -> None:
    client = connect(Task.TEXT_RANKING)
    assert [item["label"] for item in classify(client, ["a", "b"]).json()] == ["LABEL_0"]
    response = classify(client, "a")
    assert response.status_code == 400
    assert response.json()["error_type"] == "Validation"


def test_embeddings_are_the_reference_ones(connect) -> None:
    client = connect()
    expected = scored(Task.EMBEDDING, DOCUMENTS)["sentence_embedding"]
    np.testing.assert_allclose(embed(client, list(DOCUMENTS)), expected, atol=1e-5)
    np.testing.assert_allclose(embed(client, DOCUMENTS[0]), expected[:1], atol=1e-5)
    short = expected[:, :3] / np.linalg.norm(expected[:, :3], axis=1, keepdims=True)
    np.testing.assert_allclose(embed(client, list(DOCUMENTS), dimensions=3), short, atol=1e-5)
    ids = bundles.tokens_of(("the cat",), None)["input_ids"][0].tolist()
    np.testing.assert_allclose(embed(client, ids), embed(client, "the cat"), atol=1e-6)


def test_similarities_are_cosines(connect) -> None:
    inputs = {"source_sentence": QUERY, "sentences": list(DOCUMENTS)}
    found = connect().post("/similarity", json={"inputs": inputs, "parameters": {"truncate": True}}).json()
    vectors = scored(Task.EMBEDDING, (QUERY, *DOCUMENTS))["sentence_embedding"]
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-5)


def test_a_text_that_just_fits_is_never_refused(connect) -> None:
    client = connect()
    fits = "cat " * (bundles.MAX_LENGTH - 2)
    np.testing.assert_array_equal(embed(client, fits, truncate=False), embed(client, fits))
    np.testing.assert_array_equal(embed(client, fits, truncation_direction="Left"), embed(client, fits))


@pytest.mark.parametrize(
    ("task", "path", "body", "where"),
    [
        (Task.EMBEDDING, "/embed", {"inputs": ["cat", LONG]}, "inputs[1]"),
        (Task.EMBEDDING, "/embed", {"inputs": LONG}, "inputs"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": LONG}, "inputs"),
        (Task.TEXT_RANKING, "/rerank", {"query": "a", "texts": ["cat", "cat", LONG]}, "texts[2]"),
    ],
)
def test_a_long_text_is_refused_where_it_must_not_be_cut(connect, task, path, body, where) -> None:
    client = connect(task)
    assert client.post(path, json=body).status_code == 200
    response = client.post(path, json={**body, "truncate": False})
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"{where}: ")
    assert "found 4" in response.json()["error"]


def test_the_end_of_a_text_can_be_kept_instead(connect) -> None:
    client = connect()
    text = "hello " * 20 + "the cat sat on the mat . ! bad dog a film"
    kept = text.split()[-(bundles.MAX_LENGTH - 2) :]
    np.testing.assert_allclose(
        embed(client, text, truncation_direction="Left"), embed(client, " ".join(kept)), atol=1e-6
    )
    np.testing.assert_array_equal(embed(client, text, truncation_direction="right"), embed(client, text))
    assert np.abs(embed(client, text) - embed(client, text, truncation_direction="left")).max() > 0.01


def test_models_are_chosen_by_task_or_by_name(connect) -> None:
    client = connect(Task.EMBEDDING, Task.TEXT_RANKING, Task.TEXT_CLASSIFICATION)
    assert rerank(client).status_code == 200
    assert rerank(client, model="text-ranking").json() == rerank(client, model=None).json()
    assert classify(client, "a").json()[0]["label"] in bundles.LABELS
    assert rerank(client, model="other").status_code == 404
    response = rerank(client, model="tiny")
    assert response.status_code == 400
    assert "expected a model for the task text-ranking; found embedding" in response.json()["error"]


def test_no_model_for_the_route(connect) -> None:
    response = rerank(connect())
    assert response.status_code == 404
    assert response.json()["error_type"] == "Validation"
    assert "found tiny (embedding)" in response.json()["error"]


def test_a_loading_agent(connect) -> None:
    client = connect(ready=False)
    assert rerank(client).json()["error_type"] == "Unhealthy"
    assert client.get("/health").status_code == 503


def test_info(connect) -> None:
    client = connect(Task.EMBEDDING, Task.TEXT_CLASSIFICATION)
    found = client.get("/info").json()
    assert found["model_id"] == "tiny"
    assert found["max_input_length"] == bundles.MAX_LENGTH
    assert found["max_client_batch_size"] == AgentConfig().limits.max_texts
    labels = client.get("/info", params={"model": "text-classification"}).json()["model_type"]["classifier"]
    assert labels["label2id"] == {label: index for index, label in enumerate(bundles.LABELS)}
    assert client.get("/health").status_code == 200


RERANK = {"query": "a", "texts": ["b"]}
SIMILARITY = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}


@pytest.mark.parametrize(
    ("task", "path", "body", "where"),
    [
        (Task.TEXT_RANKING, "/rerank", {"texts": ["b"]}, "query"),
        (Task.TEXT_RANKING, "/rerank", {"query": "a"}, "texts"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "query": ["a"]}, "query"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "texts": []}, "texts"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "texts": "b"}, "texts"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "texts": ["b", 1]}, "texts[1]"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "raw_scores": 1}, "raw_scores"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "return_text": "yes"}, "return_text"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "truncate": 0}, "truncate"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "truncation_direction": "up"}, "truncation_direction"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "model": 1}, "model"),
        (Task.TEXT_RANKING, "/rerank", {**RERANK, "top_n": 3}, "top_n"),
        (Task.TEXT_CLASSIFICATION, "/classify", {}, "inputs"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": 1}, "inputs"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": []}, "inputs"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": [[]]}, "inputs[0]"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": ["a", "b", "c"]}, "inputs[0]"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": [["a"], ["a", "b"]]}, "inputs[1]"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": [["a"], "b"]}, "inputs[1]"),
        (Task.TEXT_CLASSIFICATION, "/classify", {"inputs": [["a"], [None]]}, "inputs[1]"),
        (Task.EMBEDDING, "/embed", {"inputs": []}, "inputs"),
        (Task.EMBEDDING, "/embed", {"inputs": [[1], "a"]}, "inputs[1]"),
        (Task.EMBEDDING, "/embed", {"inputs": "a", "normalize": "no"}, "normalize"),
        (Task.EMBEDDING, "/embed", {"inputs": "a", "prompt_name": "query"}, "prompt_name"),
        (Task.EMBEDDING, "/embed", {"inputs": "a", "dimensions": 9}, "dimensions"),
        (Task.EMBEDDING, "/similarity", {"inputs": {"sentences": ["b"]}}, "inputs.source_sentence"),
        (Task.EMBEDDING, "/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
        (Task.EMBEDDING, "/similarity", {**SIMILARITY, "parameters": []}, "parameters"),
        (Task.EMBEDDING, "/similarity", {**SIMILARITY, "parameters": {"truncate": 1}}, "parameters.truncate"),
    ],
)
def test_what_is_wrong_is_named(connect, task: Task, path: str, body: dict[str, object], where: str) -> None:
    response = connect(task).post(path, json=body)
    assert response.status_code == 400, response.text
    assert list(response.json()) == ["error", "error_type"]
    assert response.json()["error"].startswith(f"{where}: ")


def test_limits(connect) -> None:
    client = connect(Task.TEXT_RANKING, max_texts=3, max_text_characters=8)
    assert rerank(client, texts=["a", "b", "c"]).status_code == 200
    for fields in ({"texts": ["a"] * 4}, {"texts": ["a" * 9]}, {"query": "a" * 9}):
        assert rerank(client, **fields).status_code == 413
    assert classify(client, [["a", "b"]] * 4).status_code == 413


def test_a_long_query_counts_once_for_each_text(connect) -> None:
    client = connect(Task.TEXT_RANKING, max_body_bytes=2000)
    assert rerank(client, query="a" * 100, texts=["b"] * 10).status_code == 200
    response = rerank(client, query="a" * 100, texts=["b"] * 20)
    assert response.status_code == 413
    assert "found 2,020" in response.json()["error"]


def test_large_requests_are_tokenized_in_a_thread_alike(connect) -> None:
    small = connect(Task.TEXT_RANKING)
    large = connect(Task.TEXT_RANKING, config=AgentConfig(queue=QueueConfig(inline_characters=0)))
    assert rerank(small).json() == rerank(large).json()
    assert rerank(large, texts=[LONG], truncate=False).status_code == 400
