from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest

from edgeonnx.spec.manifest import Task
from tests.support import bundles

URL = "/v2/models/tiny/infer"
OUTPUT = {"name": "sentence_embedding"}


def text_input(texts: list[str], name: str = "text", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": shape or [len(texts)], "datatype": "BYTES", "data": texts}


def tensor_inputs(texts: tuple[str, ...] = ("the cat", "hello world !")) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(value.shape), "datatype": "INT64", "data": value.reshape(-1).tolist()}
        for name, value in bundles.tokens_of(texts, None).items()
    ]


def infer(client, inputs: list[dict[str, Any]], **fields: object):
    return client.post(URL, json={"inputs": inputs, **fields})


def outputs(response) -> dict[str, np.ndarray]:
    assert response.status_code == 200, response.text
    return {
        item["name"]: np.array(item["data"], dtype=np.float32).reshape(item["shape"])
        for item in response.json()["outputs"]
    }


@pytest.mark.parametrize("task", [task for task in bundles.OUTPUTS if not task.takes_pairs])
def test_text_and_its_tensors_give_the_same_answer_for_every_task(connect, task: Task) -> None:
    client = connect(task)
    from_text = outputs(infer(client, [text_input(["the cat", "hello world !"])]))
    from_tensors = outputs(infer(client, tensor_inputs()))
    expected = bundles.reference(task, bundles.tokens_of(("the cat", "hello world !"), None))
    assert list(from_text) == list(expected)
    mask = bundles.tokens_of(("the cat", "hello world !"), None)["attention_mask"][:, :, None]
    for name, want in expected.items():
        np.testing.assert_allclose(from_tensors[name], want, atol=1e-5)
        factor = mask if want.ndim == 3 else 1
        np.testing.assert_allclose(from_text[name] * factor, want * factor, atol=1e-5)


def test_pairs(connect) -> None:
    client = connect(Task.TEXT_RANKING)
    texts, pairs = ["the cat", "hello"], ["a dog", "the film !"]
    found = outputs(infer(client, [text_input(texts), text_input(pairs, "text_pair")]))
    expected = bundles.reference(Task.TEXT_RANKING, bundles.tokens_of(tuple(texts), tuple(pairs)))
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)
    assert found["scores"].shape == (2, 1)


def test_pairs_that_do_not_match(connect) -> None:
    client = connect(Task.TEXT_RANKING)
    response = infer(client, [text_input(["a", "b"]), text_input(["a"], "text_pair")])
    assert response.status_code == 400
    assert "inputs[1]" in response.json()["error"]
    response = infer(client, [text_input(["a", "b"])])
    assert "text_pair is missing" in response.json()["error"]


def test_names_version_and_id_come_back(connect) -> None:
    client = connect()
    body = infer(client, [text_input(["a"])], id="seven", parameters={"unknown": [1, {}]}).json()
    assert (body["model_name"], body["model_version"], body["id"]) == ("tiny", "1.0.0", "seven")
    assert "id" not in infer(client, [text_input(["a"])]).json()
    assert client.post("/v2/models/tiny/versions/1.0.0/infer", json={"inputs": [text_input(["a"])]}).status_code == 200
    assert client.post("/v2/models/tiny/versions/9/infer", json={"inputs": [text_input(["a"])]}).status_code == 404
    assert client.post("/v2/models/other/infer", json={"inputs": [text_input(["a"])]}).status_code == 404


def test_requested_outputs_in_the_order_asked_for(connect) -> None:
    client = connect(Task.TEXT_CLASSIFICATION)
    assert list(outputs(infer(client, [text_input(["a"])], outputs=[{"name": "scores"}]))) == ["scores"]
    asked = [{"name": "scores", "parameters": {"binary_data": False}}, {"name": "logits"}]
    assert list(outputs(infer(client, [text_input(["a"])], outputs=asked))) == ["scores", "logits"]


def test_token_counts_come_with_outputs_per_token(connect) -> None:
    response = infer(connect(Task.TOKEN_CLASSIFICATION), [text_input(["the cat", "a"])])
    assert response.json()["parameters"] == {"token_counts": [4, 3]}
    assert "parameters" not in infer(connect(), [text_input(["a"])]).json()


def test_nested_data(connect) -> None:
    client = connect()
    flat = infer(client, [text_input(["a", "b"], shape=[2, 1])])
    nested = infer(client, [{**text_input([], shape=[2, 1]), "data": [["a"], ["b"]]}])
    assert flat.json() == nested.json()
    inputs = tensor_inputs()
    for item in inputs:
        item["data"] = np.array(item["data"]).reshape(item["shape"]).tolist()
    assert outputs(infer(client, inputs))["sentence_embedding"].shape == (2, bundles.DIM)


def changed(index: int, **fields: object) -> list[dict[str, Any]]:
    inputs = copy.deepcopy(tensor_inputs())
    inputs[index].update(fields)
    return inputs


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "inputs: is of the wrong type; expected an array; found null"),
        ([], "the input input_ids is missing"),
        ([1], "inputs[0]: is of the wrong type"),
        ([{}], "inputs[0].name: is missing"),
        ([{"name": "text"}], "inputs[0].shape: is missing"),
        ([text_input(["a"], "texts")], "inputs[0].name: no such input"),
        ([text_input(["a"]), text_input(["a"], "text_pair")], "inputs[1].name: no such input"),
        ([text_input(["a"]), *tensor_inputs()], "inputs[1].name: no such input"),
        ([text_input(["a"]), text_input(["a"])], "inputs[1].name: occurs twice"),
        ([{**text_input(["a"]), "datatype": "FP32"}], "inputs[0].datatype; expected BYTES"),
        ([text_input(["a"], shape=[2])], "inputs[0].data: has another number of elements"),
        ([text_input([], shape=[0])], "inputs[0].shape: is empty"),
        ([text_input(["a"], shape=[-1])], "inputs[0].shape: is empty"),
        ([text_input(["a", "b"], shape=[1, 2])], "inputs[0].shape; expected [n] or [n, 1]"),
        ([{**text_input(["a"]), "shape": ["1"]}], "inputs[0].shape[0]: is of the wrong type"),
        ([{**text_input(["a"]), "data": [["a"]]}], "inputs[0].data: is nested deeper"),
        ([{**text_input(["a"]), "data": [1]}], "inputs[0].data[0]: is of the wrong type"),
        ([{**text_input(["a"]), "data": "a"}], "inputs[0].data: is of the wrong type"),
        (
            [{**text_input(["a"]), "parameters": {"binary_data_size": 3}}],
            "inputs[0]: has data as well as binary data",
        ),
        ([{**text_input(["a"]), "parameters": {"shared_memory_region": "r"}}], "shared memory is not supported"),
        ([text_input(["a"], shape=[1] * 100)], "expected [n] or [n, 1]"),
        (changed(0, shape=[2**62] * 1000), "1000 found"),
        (changed(0, shape=[2, 0]), "every dimension must be at least 1"),
        (tensor_inputs()[:2], "the input token_type_ids is missing"),
        (changed(0, datatype="INT32"), "inputs[0].datatype; expected INT64; found 'INT32'"),
        (changed(0, shape=[10]), "inputs[0].shape: the input input_ids has the wrong shape"),
        (changed(1, shape=[1, 10]), "inputs[1].shape: the input attention_mask has the wrong shape"),
        (changed(0, data=[1, 2]), "inputs[0].data: has another number of elements"),
        (changed(0, data=[1.0] * 10), "inputs[0].data[0]: is of the wrong type"),
        (changed(0, data=[None] * 10), "inputs[0].data[0]: is of the wrong type"),
        (changed(0, data=[2**63] * 10), "inputs[0].data: holds a number that does not fit"),
        (changed(0, data=[21] * 10), "inputs[0].data: is not a token id of this model; expected 0 to 20; found 21"),
        (changed(0, data=[-1] * 10), "inputs[0].data: is not a token id of this model"),
        (changed(1, data=[2] * 10), "inputs[1].data: is no attention mask"),
        (changed(1, data=[0] * 10), "inputs[1].data, row 0: masks a whole row"),
        (changed(2, data=[7] * 10), "the model does not take these inputs"),
    ],
)
def test_what_is_wrong_is_named(connect, inputs: Any, message: str) -> None:
    response = infer(connect(), inputs)
    assert response.status_code == 400
    wanted, *rest = message.split("; ")
    assert all(part in response.json()["error"] for part in (wanted, *rest)), response.json()["error"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": 7}, "id: is of the wrong type"),
        ({"parameters": []}, "parameters: is of the wrong type"),
        ({"outputs": {}}, "outputs: is of the wrong type"),
        ({"outputs": [{"name": "logits"}]}, "outputs[0].name: no such output"),
        ({"outputs": [{"name": "sentence_embedding"}] * 2}, "outputs[1].name: is asked for twice"),
        ({"outputs": [{}]}, "outputs[0].name: is missing"),
        ({"outputs": [{**OUTPUT, "parameters": {"classification": 0}}]}, "is no number of classes"),
        ({"outputs": [{**OUTPUT, "parameters": {"classification": "1"}}]}, "classification: is of the wrong type"),
        ({"outputs": [{**OUTPUT, "parameters": {"binary_data": 1}}]}, "parameters.binary_data: is of the wrong type"),
        ({"outputs": [{**OUTPUT, "parameters": {"shared_memory_region": "r"}}]}, "shared memory is not supported"),
        ({"parameters": {"binary_data_output": "yes"}}, "parameters.binary_data_output: is of the wrong type"),
        ({"parameters": {"timeout": 1.5}}, "parameters.timeout: is of the wrong type; expected an integer"),
        ({"parameters": {"timeout": -1}}, "parameters.timeout: is negative; expected microseconds; found -1"),
        ({"parameters": {"priority": "high"}}, "parameters.priority: is of the wrong type"),
        ({"parameters": {"sequence_id": 7}}, "parameters.sequence_id: sequences are not supported"),
        ({"parameters": {"sequence_start": True}}, "parameters.sequence_start: sequences are not supported"),
    ],
)
def test_other_fields(connect, fields: dict[str, object], message: str) -> None:
    response = infer(connect(), [text_input(["a"])], **fields)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_rows_longer_than_the_model_reads_are_refused(connect) -> None:
    width = bundles.MAX_LENGTH + 1
    inputs = [{"name": n, "shape": [1, width], "datatype": "INT64", "data": [1] * width} for n in bundles.INPUTS]
    response = infer(connect(), inputs)
    assert response.status_code == 400
    assert "longer than the model reads; expected at most 16; found 17" in response.json()["error"]


def test_limits(connect) -> None:
    client = connect(max_texts=2, max_json_numbers=20, max_text_characters=5)
    assert infer(client, [text_input(["a", "b"])]).status_code == 200
    assert infer(client, [text_input(["a", "b", "c"])]).status_code == 413
    assert infer(client, [text_input(["abcdef"])]).status_code == 413
    assert infer(client, tensor_inputs()).status_code == 413


def test_an_answer_that_would_be_too_large(connect) -> None:
    client = connect(Task.FEATURE_EXTRACTION, max_answer_numbers=100)
    response = infer(client, [text_input(["the cat sat on the mat"] * 3)])
    assert response.status_code == 413
    assert "at most 100 numbers" in response.json()["error"]


def test_parameters_that_change_nothing(connect) -> None:
    client = connect()
    plain = infer(client, [text_input(["the cat"])]).json()
    parameters = {"timeout": 0, "priority": 3, "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert infer(client, [text_input(["the cat"])], parameters=parameters).json() == plain
    assert infer(client, [text_input(["the cat"])], outputs=[]).json() == plain
    assert infer(client, [text_input(["the cat"])], parameters=dict.fromkeys(parameters)).json() == plain
    absent: dict[str, object] = {"id": None, "parameters": None, "outputs": None}
    assert infer(client, [{**text_input(["the cat"]), "parameters": None}], **absent).json() == plain
    asked = [{**OUTPUT, "parameters": None}]
    assert infer(client, [text_input(["the cat"])], outputs=asked).json() == plain
    asked = [{**OUTPUT, "parameters": {"binary_data": None, "classification": None}}]
    assert infer(client, [text_input(["the cat"])], outputs=asked).json() == plain


def test_a_deadline_of_the_client(connect, loaded_models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner is held up, so that the time is over before the answer comes."""
    client = connect()
    engine = loaded_models().engine
    original = engine.run
    monkeypatch.setattr(engine, "run", lambda *args, **kwargs: (time.sleep(0.2), original(*args, **kwargs))[1])
    response = infer(client, [text_input(["the cat"])], parameters={"timeout": 20_000})
    assert response.status_code in (429, 504), response.text


def test_the_classification_extension(connect) -> None:
    client = connect(Task.TEXT_CLASSIFICATION)
    scores = outputs(infer(client, [text_input(["a good film", "a bad dog"])]))["scores"]
    asked = [{"name": "scores", "parameters": {"classification": 2}}, {"name": "logits"}]
    body = infer(client, [text_input(["a good film", "a bad dog"])], outputs=asked).json()
    found = body["outputs"][0]
    assert (found["datatype"], found["shape"]) == ("BYTES", [2, 2])
    want = [f"{row[index]:.6f}:{index}:{bundles.LABELS[index]}" for row in scores for index in np.argsort(-row)[:2]]
    assert found["data"] == want
    assert body["outputs"][1]["datatype"] == "FP32"


def test_more_classes_than_there_are_and_outputs_without_labels(connect) -> None:
    asked = [{"name": "scores", "parameters": {"classification": 99}}]
    found = infer(connect(Task.TEXT_CLASSIFICATION), [text_input(["a"])], outputs=asked).json()["outputs"][0]
    assert found["shape"] == [1, len(bundles.LABELS)]
    asked = [{**OUTPUT, "parameters": {"classification": 1}}]
    found = infer(connect(), [text_input(["a"])], outputs=asked).json()["outputs"][0]
    assert len(found["data"][0].split(":")) == 2


def test_no_classes_of_an_output_per_token(connect) -> None:
    asked = [{"name": "scores", "parameters": {"classification": 1}}]
    response = infer(connect(Task.TOKEN_CLASSIFICATION), [text_input(["a"])], outputs=asked)
    assert response.status_code == 400
    assert "expected an output of shape [rows, classes]" in response.json()["error"]
