"""Whatever JSON object comes: it is a request that the model answers, or our error for a bad request; nothing else."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.api import open_inference, openai
from device_agent.api.body import parse_object
from device_agent.config import AgentConfig
from device_agent.models import LoadedModel, load_model
from edgeonnx.errors import InvalidRequestError, ModelNotFoundError, RequestTooLargeError
from edgeonnx.spec.manifest import Task
from tests.support import bundles

CONFIG = AgentConfig(threads=1, max_texts=8, max_json_numbers=200, max_text_characters=100)
BAD_REQUEST = (InvalidRequestError, ModelNotFoundError, RequestTooLargeError)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-2, 30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["text", "text_pair", "input_ids", "attention_mask", "BYTES", "INT64", "float", "tiny"]),
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
EMBEDDINGS: dict[str, Any] = {
    "model": "tiny",
    "input": ["the cat", ""],
    "encoding_format": "float",
    "dimensions": 3,
    "user": "me",
}
TOKENS: dict[str, Any] = {"model": "tiny", "input": [[2, 6, 3], [2, 3]]}
TEXT: dict[str, Any] = {
    "id": "1",
    "parameters": {},
    "inputs": [{"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": ["the cat", "a"]}],
    "outputs": [{"name": "sentence_embedding", "parameters": {"binary_data": False}}],
}
TENSORS: dict[str, Any] = {
    "inputs": [
        {"name": name, "shape": [1, 3], "datatype": "INT64", "data": data}
        for name, data in zip(bundles.INPUTS, ([2, 6, 3], [1, 1, 1], [0, 0, 0]), strict=True)
    ]
}


@cache
def tiny() -> LoadedModel:
    with TemporaryDirectory() as folder:
        return load_model(bundles.make_bundle(Path(folder), Task.EMBEDDING), CONFIG)


def embeddings(body: dict[str, object]) -> bytes:
    asked = openai.parse_embeddings(body, tiny(), CONFIG)
    return openai.render_embeddings(openai.answer_embeddings(asked, tiny()), asked, tiny().manifest)


def infer(body: dict[str, object]) -> bytes:
    asked = open_inference.parse_infer(body, tiny(), CONFIG)
    model = tiny().model
    work = (
        partial(model.answer_tensors, asked.tensors, None, asked.outputs)
        if asked.tensors is not None
        else partial(model.answer_texts, asked.texts or [], asked.pairs, asked.outputs)
    )
    return open_inference.render_infer(work(), asked, tiny().manifest)


def holds(answer: Callable[[dict[str, object]], bytes], body: object) -> None:
    """The invariant of this file."""
    try:
        assert isinstance(orjson.loads(answer(parse_object(orjson.dumps(body)))), dict)
    except BAD_REQUEST as error:
        assert "\n" not in str(error)  # noqa: PT017 - any of the two outcomes is right


def places(value: object) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in keys for place in [(value, key), *places(inner)]]


@pytest.mark.parametrize("answer", [embeddings, infer])
@settings(deadline=None)  # the first example loads the model
@given(body=st.dictionaries(st.sampled_from(["model", "input", "inputs", "outputs", "id", "x"]), JSON, max_size=4))
def test_any_object(answer: Callable[[dict[str, object]], bytes], body: dict[str, object]) -> None:
    holds(answer, body)


@pytest.mark.parametrize(
    ("answer", "good"), [(embeddings, EMBEDDINGS), (embeddings, TOKENS), (infer, TEXT), (infer, TENSORS)]
)
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), new=JSON, remove=st.booleans(), times=st.integers(1, 3))
def test_a_good_request_with_something_exchanged_or_removed(
    answer: Callable[[dict[str, object]], bytes], good: dict[str, Any], seed: int, new: object, remove: bool, times: int
) -> None:
    body = copy.deepcopy(good)
    for _ in range(times):
        if not (candidates := places(body)):
            break
        container, key = random.Random(seed).choice(candidates)
        if remove:
            del container[key]
        else:
            container[key] = copy.deepcopy(new)
    holds(answer, body)


@pytest.mark.parametrize(
    ("answer", "good"), [(embeddings, EMBEDDINGS), (embeddings, TOKENS), (infer, TEXT), (infer, TENSORS)]
)
def test_the_good_requests_are_good(answer: Callable[[dict[str, object]], bytes], good: dict[str, object]) -> None:
    answer(parse_object(orjson.dumps(good)))
