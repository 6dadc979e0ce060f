"""Whatever JSON object comes: it is a request that the model answers, or our error for a bad request; nothing else."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from device_agent.api import openai, tei
from device_agent.api.context import Context, Job
from device_agent.api.monitoring.metrics import Metrics
from device_agent.api.open_inference.infer import prepare_infer
from device_agent.config import AgentConfig, Limits, RuntimeConfig
from device_agent.models.loading import load_model
from device_agent.models.registry import Models
from edgeonnx.errors import InvalidRequestError, ModelNotFoundError, RequestTooLargeError
from edgeonnx.spec.manifest import Task
from tests.support import bundles

Prepare = Callable[[Context, Request, bytes], Job]

CONFIG = AgentConfig(
    limits=Limits(max_texts=8, max_json_numbers=200, max_text_characters=100),
    runtime=RuntimeConfig(threads=1, runners=1),
)
BAD_REQUEST = (InvalidRequestError, ModelNotFoundError, RequestTooLargeError)
MODELS = {"tiny": Task.EMBEDDING, "ranker": Task.TEXT_RANKING, "classifier": Task.TEXT_CLASSIFICATION}

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-2, 30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(
        ["text", "text_pair", "input_ids", "attention_mask", "BYTES", "INT64", "float", "tiny", "ranker", "Left"]
    ),
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


RERANK: dict[str, Any] = {
    "query": "the cat",
    "texts": ["a dog", "", "the cat sat"],
    "raw_scores": False,
    "return_text": True,
    "truncate": False,
    "truncation_direction": "Right",
    "model": "ranker",
}
CLASSIFY: dict[str, Any] = {"inputs": [["the cat", "a"], ["b", "c"]], "raw_scores": True, "model": "classifier"}
EMBED: dict[str, Any] = {"inputs": ["the cat", "a"], "normalize": False, "dimensions": 3, "prompt_name": None}
SIMILARITY: dict[str, Any] = {
    "inputs": {"source_sentence": "the cat", "sentences": ["a dog", "a"]},
    "parameters": {"truncate": True, "truncation_direction": "left"},
}
GOOD: list[tuple[Prepare, dict[str, Any]]] = [
    (openai.prepare_embeddings, EMBEDDINGS),
    (openai.prepare_embeddings, TOKENS),
    (prepare_infer, TEXT),
    (prepare_infer, TENSORS),
    (tei.prepare_rerank, RERANK),
    (tei.prepare_classify, CLASSIFY),
    (tei.prepare_embed, EMBED),
    (tei.prepare_similarity, SIMILARITY),
]
PREPARES = list(dict.fromkeys(prepare for prepare, _ in GOOD))
HOSTILE = {
    "NaN": (b"NaN", "not JSON"),
    "infinity": (b"-Infinity", "not JSON"),
    "a number without end": (b"1e999", ""),
    "a huge integer": (b"9" * 400, ""),
    "a lone surrogate": (b'"\\ud800"', "lone surrogate"),
    "bytes that are no text": (b'"\xff"', "not UTF-8"),
    "deep nesting": (b"[" * 100_000 + b"]" * 100_000, ""),
    "deep nesting that does not end": (b"[" * 100_000, "not JSON"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ""),
    "10,000 texts": (b"[" + b",".join([b'"a"'] * 10_000) + b"]", ""),
    "10,000 texts in lists": (b"[" + b",".join([b'["a"]'] * 10_000) + b"]", ""),
    "a long text": (b'"' + b"a" * 101 + b'"', ""),
}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    models = Models(CONFIG)
    for name, task in MODELS.items():
        models.serve(load_model(bundles.make_bundle(tmp_path_factory.mktemp("fuzz"), task, name=name), CONFIG))
    return Context(models=models, config=CONFIG, metrics=Metrics())


def answer(context: Context, prepare: Prepare, data: bytes) -> bytes:
    """What a request is answered with, without a server around it."""
    request = Request({"type": "http", "headers": [], "path_params": {"name": "tiny"}})
    job = prepare(context, request, data)
    loaded = job.live.loaded
    if job.rows is not None:
        rows = job.rows
    elif job.tokenize is not None:
        rows = job.tokenize()
    else:
        rows = loaded.text.rows(job.texts or (), job.pairs)
    return job.render(loaded.batcher.run_now(rows, job.outputs)).data


def holds(context: Context, prepare: Prepare, body: object) -> None:
    """The invariant of this file."""
    try:
        assert isinstance(orjson.loads(answer(context, prepare, orjson.dumps(body))), dict | list)
    except BAD_REQUEST as error:
        assert "\n" not in str(error)  # noqa: PT017 - any of the two outcomes is right


def places(value: object) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in keys for place in [(value, key), *places(inner)]]


@pytest.mark.parametrize("prepare", PREPARES)
@settings(max_examples=20, deadline=None)  # the first example opens a tokenizer
@given(
    body=st.dictionaries(
        st.sampled_from(["model", "input", "inputs", "outputs", "id", "query", "texts", "x"]), JSON, max_size=4
    )
)
def test_any_object(context: Context, prepare: Prepare, body: dict[str, object]) -> None:
    holds(context, prepare, body)


@pytest.mark.parametrize(("prepare", "good"), GOOD)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), new=JSON, remove=st.booleans(), times=st.integers(1, 3))
def test_a_good_request_with_something_exchanged_or_removed(
    context: Context, prepare: Prepare, good: dict[str, Any], seed: int, new: object, remove: bool, times: int
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
    holds(context, prepare, body)


@pytest.mark.parametrize(("prepare", "good"), GOOD)
def test_the_good_requests_are_good(context: Context, prepare: Prepare, good: dict[str, object]) -> None:
    assert answer(context, prepare, orjson.dumps(good))


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize(
    ("prepare", "field", "rest"),
    [
        (openai.prepare_embeddings, "input", {"model": "tiny"}),
        (tei.prepare_rerank, "texts", {"query": "a"}),
        (tei.prepare_rerank, "query", {"texts": ["a"]}),
        (tei.prepare_classify, "inputs", {}),
        (tei.prepare_embed, "inputs", {}),
    ],
)
def test_hostile_values(context: Context, prepare: Prepare, field: str, rest: dict[str, object], case: str) -> None:
    value, word = HOSTILE[case]
    head = orjson.dumps(rest)[:-1] + (b"," if rest else b"")
    with pytest.raises(BAD_REQUEST) as caught:
        answer(context, prepare, head + b'"%s":%s}' % (field.encode(), value))
    message = str(caught.value)
    assert len(message) < 400
    assert word in message


@pytest.mark.parametrize("prepare", PREPARES)
@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b'"a"', b"1", b"{", b'{"a": 1,}', b"{} {}", b"\x00", b"\xef\xbb\xbf{}"]
)
def test_bodies_that_are_no_object(context: Context, prepare: Prepare, data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="body"):
        answer(context, prepare, data)


def test_of_two_members_of_one_name_the_last_counts(context: Context) -> None:
    twice = answer(context, tei.prepare_embed, b'{"inputs": "bad", "inputs": "the cat"}')
    assert twice == answer(context, tei.prepare_embed, b'{"inputs": "the cat"}')
