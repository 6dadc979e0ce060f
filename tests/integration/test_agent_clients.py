"""tritonclient, unmodified, against a live agent process; the openai client has a file of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton

from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.agent import Agent

TEXTS = ("the cat sat", "", "hello world !")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with Agent(bundle=bundles.make_bundle(tmp_path_factory.mktemp("clients"))) as running:
        yield running


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("classifier")
    with Agent(bundle=bundles.make_bundle(folder, Task.TOKEN_CLASSIFICATION)) as running:
        yield running


@pytest.fixture
def v2(agent: Agent) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(agent.address) as client:
        yield client


def expected(texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    return bundles.reference(Task.EMBEDDING, bundles.tokens_of(texts, None))["sentence_embedding"]


def text_tensor(texts: tuple[str, ...], shape: tuple[int, ...]) -> triton.InferInput:
    tensor = triton.InferInput("text", list(shape), "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=np.object_).reshape(shape), binary_data=False)
    return tensor


def test_triton_server_calls(v2: triton.InferenceServerClient) -> None:
    assert v2.is_server_live()
    assert v2.is_server_ready()
    assert v2.is_model_ready("tiny")
    assert v2.is_model_ready("tiny", "1.0.0")
    assert not v2.is_model_ready("other")
    assert v2.get_server_metadata()["name"] == "edgeonnx-agent"
    assert v2.get_model_metadata("tiny", "1.0.0")["outputs"][0]["name"] == "sentence_embedding"


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_triton_text(v2: triton.InferenceServerClient, shape: tuple[int, ...]) -> None:
    result = v2.infer("tiny", [text_tensor(TEXTS, shape)], request_id="42", model_version="1.0.0")
    np.testing.assert_allclose(result.as_numpy("sentence_embedding"), expected(), atol=1e-5)
    assert result.get_response()["id"] == "42"


@pytest.mark.parametrize("binary", [True, False])
def test_triton_tensors_and_requested_outputs(v2: triton.InferenceServerClient, binary: bool) -> None:
    """A request for binary outputs is answered in JSON, which the client reads as well."""
    tensors = []
    for name, value in bundles.tokens_of(TEXTS, None).items():
        tensor = triton.InferInput(name, list(value.shape), "INT64")
        tensor.set_data_from_numpy(value, binary_data=False)
        tensors.append(tensor)
    wanted = [triton.InferRequestedOutput("sentence_embedding", binary_data=binary)]
    result = v2.infer("tiny", tensors, outputs=wanted)
    np.testing.assert_allclose(result.as_numpy("sentence_embedding"), expected(), atol=1e-5)


def test_triton_outputs_per_token(classifier: Agent) -> None:
    with triton.InferenceServerClient(classifier.address) as client:
        result = client.infer("tiny", [text_tensor(TEXTS, (3,))])
    scores = result.as_numpy("scores")
    counts = result.get_response()["parameters"]["token_counts"]
    want = bundles.reference(Task.TOKEN_CLASSIFICATION, bundles.tokens_of(TEXTS, None))["scores"]
    assert scores.shape == want.shape
    for row, count in enumerate(counts):
        np.testing.assert_allclose(scores[row, :count], want[row, :count], atol=1e-5)


def test_triton_binary_input_is_refused_with_advice(v2: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array(["a"], dtype=np.object_))  # binary is this client's default
    with pytest.raises(triton.InferenceServerException, match="send JSON instead"):
        v2.infer("tiny", [tensor])
    assert v2.is_server_ready()


def test_triton_errors(v2: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match="no such model"):
        v2.infer("other", [text_tensor(("a",), (1,))])
    with pytest.raises(triton.InferenceServerException, match="no such version"):
        v2.get_model_metadata("tiny", "7")
