from __future__ import annotations

import inspect

import pytest
from openai.resources.chat.completions import Completions as ChatResource
from openai.resources.completions import Completions as TextResource

from device_agent.api.generation.conversation import CHAT_FIELDS, parse_chat
from device_agent.api.generation.parameters import MAX_BIASES, MAX_STOPS, Format, Options, parse_options
from device_agent.api.generation.prompts import COMPLETION_FIELDS, parse_completion
from device_agent.config import Limits
from edgeonnx.errors import ContextLengthError, InvalidRequestError, RequestTooLargeError
from edgeonnx.spec.generation import SamplingDefaults

DEFAULTS = SamplingDefaults(temperature=0.6, top_k=40, top_p=0.9, repetition_penalty=1.1)
LIMITS = Limits()
CLIENTS_OWN = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def options(defaults: SamplingDefaults = DEFAULTS, **fields: object) -> Options:
    return parse_options({"model": "m", **fields}, "m", defaults, 100, None)


def chat(limits: Limits = LIMITS, **fields: object):  # type: ignore[no-untyped-def]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(body, model="m", defaults=DEFAULTS, vocabulary_size=100, knows_developer=False, limits=limits)


def text(limits: Limits = LIMITS, **fields: object):  # type: ignore[no-untyped-def]
    body = {"model": "m", "prompt": "hi", **fields}
    return parse_completion(body, model="m", defaults=DEFAULTS, vocabulary_size=100, context_length=8, limits=limits)


def test_every_field_of_the_openai_client_is_decided_on() -> None:
    """A new release of the client may bring a new one: then decide on it, here and in the schema."""
    assert set(inspect.signature(ChatResource.create).parameters) - CLIENTS_OWN <= set(CHAT_FIELDS)
    assert set(inspect.signature(TextResource.create).parameters) - CLIENTS_OWN <= set(COMPLETION_FIELDS)


def test_what_a_request_does_not_say_is_the_models_own() -> None:
    found = options()
    assert (found.sampling.temperature, found.sampling.top_k, found.sampling.top_p) == (0.6, 40, 0.9)
    assert found.sampling.repetition_penalty == 1.1
    assert (found.choices, found.seed, found.stop, found.stream, found.format) == (1, None, (), False, None)


def test_null_is_as_good_as_absent() -> None:
    assert chat(**dict.fromkeys(set(CHAT_FIELDS) - {"model", "messages"})) == chat()
    assert text(**dict.fromkeys(set(COMPLETION_FIELDS) - {"model", "prompt"})) == text()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, 0.0),
        ({"temperature": 2}, 2.0),
        ({"temperature": 1e-300}, 0.0),
        ({"temperature": -0.0}, 0.0),
        ({"temperature": 0.25}, 0.25),
    ],
)
def test_temperature(fields: dict[str, float], expected: float) -> None:
    assert options(**fields).sampling.temperature == expected


def test_sampling_fields() -> None:
    found = options(top_k=-1, top_p=0, min_p=0.05, repetition_penalty=2, presence_penalty=-2, frequency_penalty=0.5)
    assert (found.sampling.top_k, found.sampling.top_p, found.sampling.min_p) == (0, 0, 0.05)
    assert (found.sampling.repetition_penalty, found.presence_penalty, found.frequency_penalty) == (2, -2, 0.5)
    assert options(logit_bias={"7": -100, "99": 3.5}).logit_bias == {7: -100.0, 99: 3.5}
    assert options(stop="a").stop == ("a",)
    assert options(stop=["a", "b"]).stop == ("a", "b")
    assert options(stop=[]).stop == ()
    assert options(seed=-1).seed == -1
    assert options(ignore_eos=True).ignore_stop_ids
    assert options(stream=True, stream_options={"include_usage": True, "include_obfuscation": False}).include_usage


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_formats() -> None:
    assert options(response_format={"type": "text"}).format is None
    assert options(response_format={"type": "json_object"}).format == Format()
    named = {"name": "x", "schema": SCHEMA, "strict": True, "description": None}
    assert options(response_format={"type": "json_schema", "json_schema": named}).format == Format(schema=SCHEMA)


WRONG = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"top_p": -1}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": "2"}, "n"),
    ({"seed": 1 << 64}, "seed"),
    ({"seed": 1.0}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop": 3}, "stop"),
    ({"stop": {}}, "stop"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"100": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"1": "1"}}, "logit_bias.1"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
]


@pytest.mark.parametrize(("fields", "where"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named(fields: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        options(**fields)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"stop": ["a"] * 1000}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"logit_bias": {str(token): 1 for token in range(MAX_BIASES + 1)}}, "logit_bias"),
    ],
    ids=range(3),
)
def test_limits_are_named(fields: dict[str, object], where: str) -> None:
    with pytest.raises(RequestTooLargeError, match="at most") as caught:
        options(**fields)
    assert caught.value.where == where
    assert MAX_STOPS == 16


class TestChat:
    def test_messages_of_all_kinds(self) -> None:
        messages = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": None},
            {"role": "tool", "content": "d", "tool_call_id": "7"},
        ]
        assert chat(messages=messages).messages == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a\nb", "name": "me"},
            {"role": "assistant", "content": "c"},
            {"role": "tool", "content": "d", "tool_call_id": "7"},
        ]

    def test_a_template_that_knows_developers(self) -> None:
        body = {"model": "m", "messages": [{"role": "developer", "content": "x"}]}
        found = parse_chat(body, model="m", defaults=DEFAULTS, vocabulary_size=9, knows_developer=True, limits=Limits())
        assert found.messages[0]["role"] == "developer"

    def test_most_tokens_have_two_names(self) -> None:
        assert chat().options.max_tokens is None
        assert chat(max_tokens=3).options.max_tokens == 3
        assert chat(max_completion_tokens=4).options.max_tokens == 4
        assert chat(max_completion_tokens=4, max_tokens=4).options.max_tokens == 4

    def test_log_probabilities(self) -> None:
        assert chat().top_logprobs is None
        assert chat(logprobs=True).top_logprobs == 0
        assert chat(logprobs=True, top_logprobs=20).top_logprobs == 20
        assert chat(logprobs=False, top_logprobs=0).top_logprobs is None

    def test_what_goes_to_the_template(self) -> None:
        found = chat(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
        assert found.variables == {"reasoning_effort": "low", "enable_thinking": False}

    def test_what_clients_send_without_meaning_much(self) -> None:
        harmless = {
            "user": "me",
            "metadata": {"a": "b"},
            "store": False,
            "service_tier": "auto",
            "tools": [],
            "tool_choice": "none",
            "parallel_tool_calls": True,
            "modalities": ["text"],
            "verbosity": "medium",
            "prediction": {"type": "content", "content": "x"},
        }
        assert chat(**harmless) == chat()

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"messages": []}, "messages"),
            ({"messages": None}, "messages"),
            ({"messages": "hi"}, "messages"),
            ({"messages": ["hi"]}, "messages[0]"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"messages": [{"content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
            ({"messages": [{"role": "user", "content": "x", "name": 1}]}, "messages[0].name"),
            ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
            (
                {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
                "messages[0].tool_calls",
            ),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_completion_tokens": 0}, "max_completion_tokens"),
            ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
            ({"logprobs": 3}, "logprobs"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"tools": [{"type": "function"}]}, "tools"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"functions": []}, "functions"),
            ({"audio": {}}, "audio"),
            ({"modalities": ["text", "audio"]}, "modalities"),
            ({"verbosity": "low"}, "verbosity"),
            ({"web_search_options": {}}, "web_search_options"),
            ({"chat_template_kwargs": []}, "chat_template_kwargs"),
            ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
            ({"chat_template_kwargs": {"a b": "x"}}, "chat_template_kwargs.a b"),
            ({"chat_template_kwargs": {"a": []}}, "chat_template_kwargs.a"),
            ({"prompt": "x"}, "prompt"),
            ({"temprature": 1}, "temprature"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_is_wrong_is_named(self, fields: dict[str, object], where: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            chat(**fields)
        assert caught.value.where == where

    def test_long_texts(self) -> None:
        small = Limits(max_text_characters=3, max_texts=2)
        with pytest.raises(RequestTooLargeError):
            chat(small, messages=[{"role": "user", "content": "long"}])
        parts = [{"type": "text", "text": "ab"}] * 2
        with pytest.raises(RequestTooLargeError):
            chat(small, messages=[{"role": "user", "content": parts}])
        with pytest.raises(RequestTooLargeError):
            chat(small, messages=[{"role": "user", "content": ""}] * 3)


class TestText:
    def test_prompts_of_all_kinds(self) -> None:
        assert text(prompt="a").prompts == ("a",)
        assert text(prompt="").prompts == ("",)
        assert text(prompt=["a", "b"]).prompts == ("a", "b")
        assert text(prompt=[1, 2]).prompts == ([1, 2],)
        assert text(prompt=[[1, 2], [3]]).prompts == ([1, 2], [3])

    def test_defaults(self) -> None:
        found = text()
        assert (found.options.max_tokens, found.logprobs, found.echo) == (16, None, False)

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"prompt": None}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [[]]}, "prompt[0]"),
            ({"prompt": ["a", 1]}, "prompt[1]"),
            ({"prompt": [1, "a"]}, "prompt[1]"),
            ({"prompt": [1.5]}, "prompt[0]"),
            ({"prompt": [100]}, "prompt"),
            ({"prompt": [-1]}, "prompt"),
            ({"prompt": [1 << 70]}, "prompt"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"suffix": "x"}, "suffix"),
            ({"best_of": 2}, "best_of"),
            ({"logprobs": 6}, "logprobs"),
            ({"logprobs": True}, "logprobs"),
            ({"echo": True, "logprobs": 1}, "logprobs"),
            ({"messages": []}, "messages"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_is_wrong_is_named(self, fields: dict[str, object], where: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            text(**fields)
        assert caught.value.where == where

    def test_best_of_as_many_as_n(self) -> None:
        assert text(best_of=2, n=2).options.choices == 2

    def test_a_prompt_longer_than_the_context(self) -> None:
        assert text(prompt=[1] * 7).prompts == ([1] * 7,)
        with pytest.raises(ContextLengthError, match="at most 7 tokens"):
            text(prompt=[1] * 8)

    def test_many_choices(self) -> None:
        with pytest.raises(RequestTooLargeError, match="at most 16"):
            text(prompt=["a"] * 6, n=3)
