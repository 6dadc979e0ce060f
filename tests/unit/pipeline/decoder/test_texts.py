"""Which texts and ids decoders are compared on."""

from __future__ import annotations

import pytest

from edgeonnx.pipeline.decoder.texts import (
    COMPANY_LENGTHS,
    company_rows,
    golden_rows,
    open_show,
    parity_rows,
    path_texts,
)
from edgeonnx.pipeline.texts import calibration_texts, passages, shipped_texts
from tests.support.decoders import encode, tokenizer_json


def test_there_are_enough_passages_and_none_is_calibrated_on() -> None:
    assert sum(map(len, passages())) > 12_000
    assert set(passages()).isdisjoint({*calibration_texts(), *shipped_texts()})


def test_parity_begins_with_the_longest() -> None:
    rows = parity_rows(lambda texts: [[len(text)] * len(text) for text in texts])
    assert [len(row) for row in rows] == sorted((len(text) for text in passages()[:6]), reverse=True)


@pytest.mark.parametrize("context", [500, 20])
def test_company_has_different_lengths_within_the_context(context: int) -> None:
    rows = company_rows([list(range(100)), list(range(200, 300))], context)
    assert [len(row) for row in rows] == [min(length, context) for length in COMPANY_LENGTHS]
    assert len({tuple(row) for row in rows}) == len(rows) if context == 500 else True


class TestGoldenRows:
    def test_they_spread_over_the_lengths(self) -> None:
        lengths = [0, 3, 8, 90, 30, 300, 60, 12]
        chosen = golden_rows(lengths, 256)
        assert [lengths[row] for row in chosen] == [8, 90, 60, 12]

    def test_short_ones_do_where_there_is_nothing_else(self) -> None:
        assert golden_rows([0, 1, 3, 200], 256) == (1, 2)

    def test_the_context_is_kept(self) -> None:
        assert golden_rows([9, 50, 90], 40) == (0,)


def test_special_tokens_are_in_the_texts_of_the_path() -> None:
    texts = path_texts({"eos_token": "</s>", "pad_token": "</s>", "bos_token": ""})
    assert [text for text in texts if "</s>" in text] == ["</s>user\nHow are you?</s>\n"]


def test_tokens_are_shown_as_text() -> None:
    show = open_show(tokenizer_json())
    assert show(encode("the cat <|im_end|>")) == "the cat <|im_end|>"
    assert show(encode("é")[:1]) == "�"
