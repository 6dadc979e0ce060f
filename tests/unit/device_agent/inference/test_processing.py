from __future__ import annotations

import json

import numpy as np
import pytest

from device_agent.config import AgentConfig
from device_agent.inference.processing import TextModel, TextPath, numbers_per_row, vocabulary_size
from edgeonnx.errors import InferenceError, InvalidRequestError, ManifestError, RequestTooLargeError
from edgeonnx.spec.manifest import Task, TextProcessing
from edgeonnx.spec.tensor import DType, TensorSpec
from tests.support import bundles

PROCESSING = TextProcessing(tokenizer="-", backend="wordpiece", max_length=bundles.MAX_LENGTH, pad_id=0)


class Runtime:
    """Computes the tiny model in NumPy, and remembers the shapes that it was given."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, inputs, outputs):
        self.shapes.append(inputs["input_ids"].shape)
        found = bundles.reference(self.task, inputs)
        return {name: found[name] for name in outputs or found}


def make_model(task: Task = Task.EMBEDDING, **limits: int) -> tuple[TextModel, Runtime]:
    runtime = Runtime(task)
    text = TextPath(bundles.tokenizer_json(), PROCESSING, bundles.INPUTS)
    config = AgentConfig(threads=1, **limits)
    return TextModel(run=runtime, text=text, signature=bundles.signature(task), config=config), runtime


def alone(model: TextModel, texts: list[str], output: str) -> list[np.ndarray]:
    return [model.answer_texts([text]).outputs[output][0] for text in texts]


TEXTS = ["the cat sat", "", "hello world !", "a " * 50, "dogs", "the mat ." * 3, "bad film"]


@pytest.mark.parametrize("limits", [{}, {"batch_tokens": 20}, {"batch_tokens": 1}, {"encode_rows": 2}])
def test_rows_come_back_in_order_however_they_are_batched(limits: dict[str, int]) -> None:
    model, _ = make_model(**limits)
    answer = model.answer_texts(TEXTS)
    expected = np.stack(alone(model, TEXTS, "sentence_embedding"))
    np.testing.assert_allclose(answer.outputs["sentence_embedding"], expected, atol=1e-6)
    assert answer.lengths.tolist() == [model.answer_texts([text]).lengths[0] for text in TEXTS]


@pytest.mark.parametrize("limits", [{}, {"batch_tokens": 20}, {"encode_rows": 2}])
def test_outputs_per_token_are_padded_to_the_longest_row_with_zeros(limits: dict[str, int]) -> None:
    model, _ = make_model(Task.FEATURE_EXTRACTION, **limits)
    texts = ["the cat", "hello world ! . the", "a"]
    answer = model.answer_texts(texts)
    whole = answer.outputs["last_hidden_state"]
    assert whole.shape == (3, int(answer.lengths.max()), bundles.DIM)
    for row, expected in enumerate(alone(model, texts, "last_hidden_state")):
        np.testing.assert_allclose(whole[row, : len(expected)], expected, atol=1e-6)


def test_batches_keep_to_the_token_budget() -> None:
    model, runtime = make_model(batch_tokens=32, encode_rows=8)
    answer = model.answer_texts(["the cat sat on a mat"] * 40)
    assert answer.runs == len(runtime.shapes)
    assert max(rows * width for rows, width in runtime.shapes) <= 32


def test_an_empty_text_is_its_special_tokens() -> None:
    model, runtime = make_model()
    answer = model.answer_texts([""])
    assert answer.lengths.tolist() == [2]
    assert runtime.shapes == [(1, 2)]


def test_a_long_text_is_cut() -> None:
    model, _ = make_model()
    assert model.answer_texts(["cat " * 1000]).lengths.tolist() == [bundles.MAX_LENGTH]


def test_only_the_wanted_outputs_are_computed() -> None:
    model, _ = make_model(Task.TEXT_CLASSIFICATION)
    assert list(model.answer_texts(["good"], outputs=("scores",)).outputs) == ["scores"]


def test_pairs() -> None:
    model, _ = make_model(Task.TEXT_RANKING, batch_tokens=12)
    texts, pairs = ["the cat", "a", "hello world"], ["dog", "the film !", "bad"]
    answer = model.answer_texts(texts, pairs)
    for row in range(3):
        single = model.answer_texts([texts[row]], [pairs[row]])
        np.testing.assert_allclose(answer.outputs["scores"][row], single.outputs["scores"][0], atol=1e-6)


def test_an_answer_that_is_too_large_is_refused_before_it_is_computed() -> None:
    model, runtime = make_model(Task.FEATURE_EXTRACTION, max_answer_numbers=100)
    with pytest.raises(RequestTooLargeError, match="at most 100 numbers"):
        model.answer_texts(["the cat sat on a mat", "a"])
    assert runtime.shapes == []


def test_client_tokens_are_padded_with_the_models_own_padding() -> None:
    processing = TextProcessing(tokenizer="-", backend="wordpiece", max_length=16, pad_id=4, pad_type_id=1)
    path = TextPath(bundles.tokenizer_json(), processing, bundles.INPUTS)
    tensors, lengths = path.tensors_of_tokens([[2, 3], [2, 7, 3]])
    assert tensors["input_ids"].tolist() == [[2, 3, 4], [2, 7, 3]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert tensors["token_type_ids"].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert lengths.tolist() == [2, 3]


def test_inputs_that_the_graph_lacks_are_dropped() -> None:
    path = TextPath(bundles.tokenizer_json(), PROCESSING, ("input_ids", "attention_mask"))
    assert list(path.tensors(path.encode(["a"]))) == ["input_ids", "attention_mask"]


def test_a_graph_input_that_text_does_not_give_is_refused() -> None:
    with pytest.raises(ManifestError, match="position_ids"):
        TextPath(bundles.tokenizer_json(), PROCESSING, ("input_ids", "position_ids"))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"model": 1}', b'{"model": {"vocab": {"a": "b"}}}'])
def test_a_tokenizer_that_is_none_is_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError, match="tokenizer cannot be opened"):
        TextPath(data, PROCESSING, bundles.INPUTS)


def test_a_lone_surrogate_is_an_invalid_request() -> None:
    model, _ = make_model()
    with pytest.raises(InvalidRequestError, match="surrogate"):
        model.answer_texts(["fine", "broken \ud800"])


def test_a_runtime_that_refuses_our_own_tokens_is_our_fault() -> None:
    def refuse(inputs, outputs):
        raise InvalidRequestError("no")

    model, _ = make_model()
    broken = TextModel(run=refuse, text=model.text, signature=model.signature, config=model.config)
    with pytest.raises(InferenceError):
        broken.answer_texts(["a"])
    with pytest.raises(InvalidRequestError):
        broken.answer_tensors(model.text.tensors(model.text.encode(["a"])))


@pytest.mark.parametrize(
    ("document", "size"),
    [
        ({"model": {"vocab": {"a": 0, "b": 7}}}, 8),
        ({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}, 2),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 30}]}, 31),
        ({"model": {"vocab": {}}, "added_tokens": None}, 0),
    ],
)
def test_vocabulary_size(document: object, size: int) -> None:
    assert vocabulary_size(json.dumps(document).encode()) == size


def test_numbers_per_row() -> None:
    spec = TensorSpec(name="x", dtype=DType.FLOAT, shape=("batch", "sequence", 384))
    assert numbers_per_row(spec, 10) == 3840
    assert numbers_per_row(TensorSpec(name="x", dtype=DType.FLOAT, shape=("batch", 384)), 10) == 384
