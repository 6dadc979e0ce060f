from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from device_agent.api.generation.grammar import JsonConstraint, constrain
from device_agent.api.generation.parameters import Format
from device_agent.inference.generation.text import GenerationText
from edgeonnx.errors import InferenceError, InvalidRequestError
from edgeonnx.spec.manifest import TextProcessing
from tests.support import decoders

VOCABULARY = len(decoders.VOCABULARY) + 5
"""Graphs have logits for ids that no tokenizer knows."""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["the", "cat"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def text() -> GenerationText:
    processing = TextProcessing(tokenizer="sha256:x/tokenizer.json", backend="bpe", max_length=8, pad_id=0)
    return GenerationText(decoders.tokenizer_json(), processing)


def made(text: GenerationText, schema: dict | None = None, choices: int = 1) -> list[JsonConstraint]:
    return constrain(Format(schema=schema), text, VOCABULARY, decoders.STOP_IDS, choices)


def drawn(text: GenerationText, constraint: JsonConstraint, seed: int, most: int = 400) -> str:
    """What a model without any sense would write under a constraint; it likes to close what is open."""
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    while not constraint.finished and len(ids) < most:
        logits = rng.standard_normal(VOCABULARY).astype(np.float32)
        logits[[decoders.VOCABULARY[each] for each in '"}],']] += 2
        constraint.mask(logits)
        token = int(logits.argmax())
        if token in decoders.STOP_IDS:
            break
        constraint.accept(token)
        ids.append(token)
    return text.decoder.decode(ids)


@pytest.mark.parametrize("seed", range(5))
def test_any_object(text: GenerationText, seed: int) -> None:
    assert isinstance(json.loads(drawn(text, made(text)[0], seed, 4000)), dict)


@pytest.mark.parametrize("seed", range(5))
def test_a_schema(text: GenerationText, seed: int) -> None:
    found = json.loads(drawn(text, made(text, SCHEMA)[0], seed, 4000))
    assert sorted(found) == ["a", "b"]
    assert isinstance(found["a"], int)
    assert found["b"] in ("the", "cat")


def test_choices_have_states_of_their_own(text: GenerationText) -> None:
    first, second = made(text, SCHEMA, choices=2)
    drawn(text, first, 0)
    assert first.finished
    assert not second.finished
    assert json.loads(drawn(text, second, 1))


def test_spaces_end(text: GenerationText) -> None:
    constraint = made(text)[0]
    constraint.accept(decoders.VOCABULARY["{"])
    for _ in range(8):
        constraint.accept(decoders.VOCABULARY["Ġ"])
    logits = np.zeros(VOCABULARY, dtype=np.float32)
    constraint.mask(logits)
    assert logits[decoders.VOCABULARY["Ġ"]] == -np.inf
    assert logits[decoders.VOCABULARY["}"]] == 0


def test_ids_that_the_tokenizer_does_not_know_never_come(text: GenerationText) -> None:
    logits = np.zeros(VOCABULARY, dtype=np.float32)
    made(text)[0].mask(logits)
    assert np.all(logits[-5:] == -np.inf)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "properties": 3},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.invalid/schema"},
        {"type": "string", "pattern": "(" * 100},
        {"$ref": "#"},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
    ],
    ids=range(7),
)
def test_a_bad_schema(text: GenerationText, schema: dict) -> None:
    with pytest.raises(InvalidRequestError, match="the schema cannot be followed") as caught:
        made(text, schema)
    assert caught.value.where == "response_format.json_schema.schema"


def test_a_deep_schema(text: GenerationText) -> None:
    schema: dict = {"type": "integer"}
    for _ in range(900):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidRequestError, match="the schema cannot be followed"):
        made(text, schema)


def test_a_token_that_must_not_come(text: GenerationText) -> None:
    with pytest.raises(InferenceError, match="cannot be followed any further"):
        made(text)[0].accept(decoders.VOCABULARY["x"])


def test_without_the_library(text: GenerationText, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'edgeonnx\[json\]'"):
        made(text)
