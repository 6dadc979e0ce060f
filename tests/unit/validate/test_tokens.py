"""Which text path a bundle may use: the compiled one only where it is identical."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeonnx.errors import ParityError
from edgeonnx.validate import tokens
from edgeonnx.validate.tokens import TextPath, choose_text_path
from tests.support.bundles import MAX_LENGTH, PAIRS, TEXTS, tokenizer_json, tokens_of


def rows(texts: tuple[str, ...] = TEXTS, pairs: tuple[str, ...] | None = None) -> list[dict[str, np.ndarray]]:
    return [tokens_of((text,), None if pairs is None else (pairs[index],)) for index, text in enumerate(texts)]


def choose(document: bytes | None = None, **changes: Any) -> TextPath:
    arguments: dict[str, Any] = {
        "max_length": MAX_LENGTH,
        "pad_id": 0,
        "pad_type_id": 0,
        "prefix": "",
        "texts": TEXTS,
        "pairs": None,
        "expected": rows(),
    }
    return choose_text_path(tokenizer_json() if document is None else document, **{**arguments, **changes})


def test_the_compiled_path_is_chosen_where_it_is_identical() -> None:
    assert choose() == TextPath(backend="wordpiece", reason=None, texts=len(TEXTS))


def test_pairs_are_compared_too() -> None:
    assert choose(pairs=PAIRS, expected=rows(TEXTS, PAIRS)).backend == "wordpiece"


def test_a_tokenizer_that_the_compiled_path_does_not_know_goes_to_the_library() -> None:
    document = json.loads(tokenizer_json())
    document["pre_tokenizer"] = {"type": "Whitespace"}
    found = choose(json.dumps(document).encode())
    assert found.backend == "tokenizers"
    assert found.reason
    assert found.to_dict()["texts_compared"] == len(TEXTS)


def lying(honest: Any, backends: set[str]) -> Any:
    """`open_text_encoder`, but the given paths change the last id of the third row."""

    def opened(document: bytes, **options: Any) -> Any:
        encoder = honest(document, **options)
        if options["backend"] not in backends:
            return encoder

        def encode(texts: Any, pairs: Any) -> Any:
            batch = encoder.encode(texts, pairs)
            ids = batch.input_ids.copy()
            ids[2, batch.lengths[2] - 1] += 1
            return replace(batch, input_ids=ids)

        return SimpleNamespace(encode=encode, backend=encoder.backend, reason=encoder.reason)

    return opened


def test_a_compiled_path_that_differs_is_not_used_and_the_difference_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "open_text_encoder", lying(tokens.open_text_encoder, {"auto"}))
    found = choose()
    assert found.backend == "tokenizers"
    assert f"row 2: input_ids of {TEXTS[2]!r}" in (found.reason or "")


def test_no_path_that_agrees_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "open_text_encoder", lying(tokens.open_text_encoder, {"auto", "tokenizers"}))
    with pytest.raises(ParityError, match="no text path gives the ids") as caught:
        choose()
    assert f"row 2: input_ids of {TEXTS[2]!r}" in (caught.value.found or "")
    assert caught.value.hint is not None


def test_a_row_that_is_longer_than_the_sources_is_a_difference() -> None:
    shorter = rows()
    shorter[0] = {name: value[:, :-1] for name, value in shorter[0].items()}
    with pytest.raises(ParityError):
        choose(expected=shorter)


def test_an_input_that_no_text_path_gives_fails_the_build() -> None:
    expected = [{**row, "position_ids": row["input_ids"]} for row in rows()]
    with pytest.raises(ParityError, match="takes position_ids"):
        choose(expected=expected)


def test_a_document_that_is_no_tokenizer_fails_the_build() -> None:
    with pytest.raises(ParityError):
        choose(b"{}")
