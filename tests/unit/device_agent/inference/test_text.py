from __future__ import annotations

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest

from device_agent.inference.text import TextPath, open_text_path, vocabulary_size
from edgeonnx.errors import InvalidRequestError, ManifestError
from edgeonnx.spec.manifest import TextProcessing
from tests.support import bundles

PROCESSING = TextProcessing(tokenizer="-", backend="wordpiece", max_length=bundles.MAX_LENGTH, pad_id=0)


def path() -> TextPath:
    return TextPath(bundles.tokenizer_json(), PROCESSING, bundles.INPUTS)


@pytest.mark.parametrize("pairs", [None, bundles.PAIRS])
def test_texts_become_what_the_tokenizers_library_makes_of_them(pairs: tuple[str, ...] | None) -> None:
    expected = bundles.tokens_of(bundles.TEXTS, pairs)
    batch = path().batch(bundles.TEXTS, pairs)
    assert set(batch) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name], value)


def test_an_empty_text_is_its_special_tokens() -> None:
    assert path().rows([""]).lengths.tolist() == [2]


def test_a_long_text_is_cut() -> None:
    assert path().rows(["cat " * 1000]).lengths.tolist() == [bundles.MAX_LENGTH]


def test_a_lone_surrogate_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        path().rows(["fine", "broken \ud800"])


def test_client_tokens_are_taken_as_they_are() -> None:
    rows = path().rows_of_tokens([[5, 6], [7]])
    assert rows.lengths.tolist() == [2, 1]


def test_a_graph_input_that_text_does_not_give_is_refused() -> None:
    with pytest.raises(ManifestError, match="position_ids"):
        TextPath(bundles.tokenizer_json(), PROCESSING, ("input_ids", "position_ids"))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"model": 1}', b'{"model": {"vocab": {"a": "b"}}}'])
def test_a_tokenizer_that_is_none_is_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError, match="tokenizer cannot be opened"):
        TextPath(data, PROCESSING, bundles.INPUTS)


def test_two_models_with_one_tokenizer_share_it_while_one_of_them_is_there() -> None:
    data = bundles.tokenizer_json()
    first = open_text_path(data, PROCESSING, bundles.INPUTS)
    assert open_text_path(bytes(bytearray(data)), replace(PROCESSING), list(bundles.INPUTS)) is first
    for other in (
        open_text_path(data + b" ", PROCESSING, bundles.INPUTS),
        open_text_path(data, replace(PROCESSING, prefix="query: "), bundles.INPUTS),
        open_text_path(data, PROCESSING, bundles.INPUTS[:2]),
    ):
        assert other is not first
    gone = weakref.ref(first)
    del first
    assert gone() is None
    with pytest.raises(ManifestError, match="tokenizer cannot be opened"):
        open_text_path(b"{}", PROCESSING, bundles.INPUTS)


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
