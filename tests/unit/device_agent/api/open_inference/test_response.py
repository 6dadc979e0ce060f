from __future__ import annotations

import json

import numpy as np
import pytest

from device_agent.api.open_inference.request import InferRequest, Output
from device_agent.api.open_inference.response import render_response, top_classes
from device_agent.inference.rows import Answer
from edgeonnx.errors import InferenceError

NAME = "sentence_embedding"


def render(loaded, values: np.ndarray, *, binary: bool, identifier: str | None = None) -> bytes:
    answer = Answer(outputs={NAME: values}, lengths=np.array([3] * len(values)))
    asked = InferRequest(id=identifier, seconds=None, outputs=(Output(name=NAME, binary=binary),), texts=["a"])
    return render_response(answer, asked, loaded.manifest).data


@pytest.mark.parametrize("binary", [True, False])
def test_nan_is_never_an_answer(loaded_models, binary: bool) -> None:
    with pytest.raises(InferenceError, match=r"sentence_embedding: the model's output is not a number \(NaN\)"):
        render(loaded_models(), np.array([[1.0, np.nan]], dtype=np.float32), binary=binary)


def test_infinity_has_a_binary_form_only(loaded_models) -> None:
    values = np.array([[1.0, -np.inf]], dtype=np.float32)
    assert render(loaded_models(), values, binary=True).endswith(values.tobytes())
    with pytest.raises(InferenceError, match="not finite"):
        render(loaded_models(), values, binary=False)


def test_an_output_that_is_a_view_of_a_larger_batch(loaded_models) -> None:
    """What another request got stands between these rows, and must not be sent."""
    batch = np.arange(12, dtype=np.float32).reshape(4, 3)
    body = json.loads(render(loaded_models(), batch[::2], binary=False))
    assert body["outputs"][0]["data"] == [0, 1, 2, 6, 7, 8]
    assert render(loaded_models(), batch[::2], binary=True).endswith(batch[::2].tobytes())


def test_the_id_comes_back_even_if_it_is_empty(loaded_models) -> None:
    values = np.ones((1, 2), dtype=np.float32)
    assert json.loads(render(loaded_models(), values, binary=False, identifier=""))["id"] == ""
    assert "id" not in json.loads(render(loaded_models(), values, binary=False))


def test_classes() -> None:
    values = np.array([[0.5, 0.25, 0.5], [-1.0, 3.0, 2.0]], dtype=np.float32)
    texts, shape = top_classes(values, 2, ["a", "b", "c:d"])
    assert shape == (2, 2)
    assert texts == ["0.500000:0:a", "0.500000:2:c:d", "3.000000:1:b", "2.000000:2:c:d"]
    assert top_classes(values, 9, ["too", "few"])[0][0] == "0.500000:0"
