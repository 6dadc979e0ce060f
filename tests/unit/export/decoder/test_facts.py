"""Where answers end, how a conversation becomes a prompt, and how the makers sample."""

from __future__ import annotations

from typing import Any

import pytest

from edgeonnx.errors import CorruptSourceError
from edgeonnx.export.decoder.facts import (
    answer_end,
    read_sampling,
    read_special_tokens,
    read_stop_ids,
    read_template,
)
from edgeonnx.spec.generation import MAX_STOP_IDS, SamplingDefaults
from tests.support.tiny_decoders import TEMPLATE, tiny_tokenizer, vocabulary

ROWS = 1000
TURN_END = vocabulary()["<|im_end|>"]
END = vocabulary()["</s>"]


@pytest.fixture
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (TEMPLATE, TURN_END),
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }} </s>{% endfor %}", END),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", None),  # no token at all
        ("{% for m in messages %}{{ m.content }} the end {% endfor %}", None),  # text, no special token
        ("{{ messages[0].content }}<|im_end|>", None),  # the answer is not written
        ("{{ raise_exception('no') }}", None),
        ("{{ 1 / 0 }}", None),
        ("{% for %}", None),
        ({"default": TEMPLATE, "tool_use": "{{ 1 }}"}, TURN_END),
        ({"tool_use": TEMPLATE}, None),
        (None, None),
    ],
)
def test_the_template_shows_what_ends_an_answer(tokenizer: Any, template: Any, end: int | None) -> None:
    tokenizer.chat_template = template
    assert answer_end(tokenizer) == end


def test_a_token_of_the_text_ends_no_answer(tokenizer: Any) -> None:
    tokenizer.add_tokens(["<turn>"])  # in the vocabulary as one token, but not special: an answer may hold it
    tokenizer.chat_template = TEMPLATE.replace("<|im_end|>", "<turn>")
    assert answer_end(tokenizer) is None


@pytest.mark.parametrize(
    ("template", "read"),
    [("{{ 1 }}", "{{ 1 }}"), ({"default": "a", "rag": "b"}, "a"), ({"rag": "b"}, None), (None, None), (" \n", None)],
)
def test_the_template_for_plain_conversations_is_taken(tokenizer: Any, template: Any, read: str | None) -> None:
    tokenizer.chat_template = template
    assert read_template(tokenizer) == read


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ((None, {"eos_token_id": 7}), (TURN_END, 7)),
        (({"eos_token_id": [9, 7]}, {"eos_token_id": 7}), (TURN_END, 7, 9)),
        (({"eos_token_id": None}, {}), (TURN_END,)),
        (({"eos_token_id": [-1, ROWS, ROWS - 1]},), (TURN_END, ROWS - 1)),  # ids that never come
    ],
)
def test_stop_ids_are_those_of_all_files_and_of_the_template(
    tokenizer: Any, settings: tuple[Any, ...], ids: tuple[int, ...]
) -> None:
    assert read_stop_ids(tokenizer, settings, vocabulary=ROWS, where="m") == ids


def test_the_tokenizers_own_end_stands_in_where_nothing_else_is_stated(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    assert read_stop_ids(tokenizer, (None, {}), vocabulary=ROWS, where="m") == (END,)


@pytest.mark.parametrize("stated", ["2", 1.5, True, [1, "x"], list(range(MAX_STOP_IDS + 1))])
def test_stop_ids_that_are_none_are_corrupt(tokenizer: Any, stated: Any) -> None:
    with pytest.raises(CorruptSourceError, match=r"end an answer|token id"):
        read_stop_ids(tokenizer, ({"eos_token_id": stated},), vocabulary=ROWS, where="m")


def test_special_tokens_are_texts_by_the_names_that_templates_use(tokenizer: Any) -> None:
    assert read_special_tokens(tokenizer) == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("settings", "sampling"),
    [
        (None, SamplingDefaults()),
        ({"temperature": None, "top_k": None}, SamplingDefaults()),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1},
            SamplingDefaults(temperature=0.6, top_k=20, top_p=0.9, repetition_penalty=1.1),
        ),
        ({"do_sample": False, "temperature": 0.6}, SamplingDefaults(temperature=0.0)),
        ({"temperature": 0}, SamplingDefaults(temperature=0.0)),
    ],
)
def test_the_makers_sampling_is_taken_over(settings: Any, sampling: SamplingDefaults) -> None:
    assert read_sampling(settings, where="m") == sampling


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"temperature": True},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("inf")},
    ],
)
def test_sampling_out_of_range_is_corrupt(settings: dict[str, Any]) -> None:
    with pytest.raises(CorruptSourceError) as caught:
        read_sampling(settings, where="m")
    assert str(caught.value.where).endswith(next(iter(settings)))
