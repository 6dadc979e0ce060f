from __future__ import annotations

import copy

import pytest

from edgeonnx.errors import BundleError, ManifestError
from edgeonnx.spec.generation import CacheShape, Generation, SamplingDefaults
from edgeonnx.spec.parse import Node

TEMPLATE = "sha256:" + "a" * 64 + "/chat_template.jinja"
WHOLE = Generation(
    cache=CacheShape(layers=2, heads=3, head_size=64),
    context_length=8192,
    stop_ids=(2, 7),
    chat_template=TEMPLATE,
    special_tokens={"eos_token": "<|im_end|>"},
    sampling=SamplingDefaults(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1),
)


def read(document: object) -> Generation:
    return Generation.from_dict(Node(value=document, file="manifest.json", path="generation"))


@pytest.mark.parametrize("whole", [WHOLE, Generation(cache=WHOLE.cache, context_length=1, stop_ids=())])
def test_what_is_written_is_read_back(whole: Generation) -> None:
    assert read(whole.to_dict()) == whole


def test_the_caches_are_named_layer_by_layer_key_before_value() -> None:
    assert WHOLE.cache.past_names == (
        "past_key_values.0.key",
        "past_key_values.0.value",
        "past_key_values.1.key",
        "past_key_values.1.value",
    )
    assert WHOLE.cache.present_names == ("present.0.key", "present.0.value", "present.1.key", "present.1.value")


@pytest.mark.parametrize(("itemsize", "expected"), [(4, 2 * 2 * 3 * 64 * 4), (2, 2 * 2 * 3 * 64 * 2)])
def test_memory_of_a_token_counts_every_layer_and_both_parts(itemsize: int, expected: int) -> None:
    assert WHOLE.cache.bytes_per_token(itemsize) == expected


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cache.layers", 0),
        ("cache.layers", 1 << 20),
        ("cache.heads", 0),
        ("cache.head_size", -1),
        ("cache.head_size", 1.5),
        ("cache.places", 4),
        ("context_length", 0),
        ("context_length", True),
        ("stop_ids", [1, 1]),
        ("stop_ids", [-1]),
        ("stop_ids", [1 << 31]),
        ("stop_ids", list(range(257))),
        ("stop_ids", [2.0]),
        ("stop_ids", 2),
        ("chat_template", "chat_template.jinja"),
        ("chat_template", "sha256:" + "a" * 64 + "/../x"),
        ("special_tokens", {"eos_token": 2}),
        ("sampling.temperature", -0.1),
        ("sampling.temperature", 101),
        ("sampling.top_k", -1),
        ("sampling.top_p", 0),
        ("sampling.top_p", 1.01),
        ("sampling.repetition_penalty", 0),
        ("sampling.beams", 4),
        ("anything", 1),
    ],
)
def test_a_field_that_is_wrong_is_named(path: str, value: object) -> None:
    document = copy.deepcopy(WHOLE.to_dict())
    *parents, name = path.split(".")
    target = document
    for parent in parents:
        target = target[parent]  # type: ignore[assignment]
    target[name] = value
    with pytest.raises(BundleError, match=rf"manifest\.json: generation.*{name}"):
        read(document)


@pytest.mark.parametrize("name", ["cache", "context_length", "stop_ids", "special_tokens", "sampling"])
def test_a_field_that_is_missing_is_named(name: str) -> None:
    document = WHOLE.to_dict()
    del document[name]
    with pytest.raises(ManifestError, match=f"'{name}'"):
        read(document)
