"""Prompts equal those of transformers, text and tokens, for conversations that spell no special token."""

from __future__ import annotations

import json
import re

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.inference.generation.chat import ChatTemplate
from device_agent.inference.generation.text import GenerationText
from edgeonnx.errors import InvalidRequestError
from edgeonnx.spec.manifest import TextProcessing
from tests.support import decoders

# What real templates do, in our words: ChatML with a system prompt of its own; headers and trimmed contents; strict
# turns in brackets, the system prompt inside the first one; thoughts that are cut off; JSON and dates.
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nAnswer briefly.<|im_end|>\n' }}{% endif %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "headers": (
        "{{- bos_token }}\n{%- set ns = namespace(first=true) %}\n"
        "{%- for message in messages %}\n"
        "    {%- if ns.first %}\n        {{- 'Begin\n' }}\n        {%- set ns.first = false %}\n    {%- endif %}\n"
        "    {{- '<|im_start|>' + message.role + '\n\n' + message.content | trim + '<|im_end|>' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n\n' }}\n{%- endif %}\n"
    ),
    "brackets": (
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
        "{%- set rest = messages[1:] %}"
        "{%- else %}{%- set rest = messages %}{%- endif %}{{ bos_token }}"
        "{%- for message in rest %}"
        "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('After the system message, roles must alternate user/assistant/user/...') }}{%- endif %}"
        "{%- if message['role'] == 'user' %}{%- if loop.last and system is defined %}"
        "{{ '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}"
        "{%- else %}{{ '[INST] ' ~ message['content'] ~ '[/INST]' }}{%- endif %}"
        "{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
        "{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{%- endif %}{%- endfor %}"
    ),
    "thoughts": (
        "{%- macro turn(message) %}<|im_start|>{{ message.role }}\n"
        "{%- if message.role == 'assistant' and '</think>' in message.content %}"
        "{{ message.content.split('</think>')[-1].lstrip('\n') }}"
        "{%- else %}{{ message.content }}{%- endif %}<|im_end|>\n{% endmacro %}"
        "{%- for message in messages[::-1] %}{% if message.role == 'system' %}{% continue %}{% endif %}"
        "{% if loop.index > 5 %}{% break %}{% endif %}{{ turn(message) }}{%- endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n"
        "{%- if thinking is defined and thinking is false %}<think>\n\n</think>\n\n{%- endif %}{%- endif %}"
    ),
    "json": (
        "{% for group in messages | groupby('role') %}{{ group.grouper | upper }}: "
        "{{ group.list | map(attribute='content') | list | tojson(indent=2) }}\n{% endfor %}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ strftime_now('%Y') }}"
        "{% generation %}{{ messages[-1].content | replace('a', 'b') | length }}{% endgeneration %}"
    ),
}

NAMES = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
SPECIAL = decoders.SPECIAL
CONTENTS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(["<", "|", ">", "im_end", "</think>", "a", "\n", " ", "[INST]", "日", "\U000f0001"]),
        max_size=12,
    ).map("".join),
)
CONVERSATIONS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENTS}),
    min_size=1,
    max_size=7,
)


@pytest.fixture(scope="module")
def reference():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(decoders.tokenizer_json().decode()), **NAMES)


@pytest.fixture(scope="module")
def text() -> GenerationText:
    processing = TextProcessing(tokenizer="sha256:x/tokenizer.json", backend="bpe", max_length=256, pad_id=0)
    return GenerationText(decoders.tokenizer_json(), processing)


CHAT = ChatTemplate(decoders.TEMPLATE, names={}, special=SPECIAL)
OURS = {name: ChatTemplate(source, names=NAMES, special=SPECIAL) for name, source in TEMPLATES.items()}


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=15, deadline=None)
@given(messages=CONVERSATIONS, begin=st.booleans(), thinking=st.booleans())
def test_as_transformers(  # type: ignore[no-untyped-def]
    name: str, reference, text: GenerationText, messages: list[dict], begin: bool, thinking: bool
) -> None:
    source, ours = TEMPLATES[name], OURS[name]
    try:
        expected = reference.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=begin, thinking=thinking
        )
    except jinja2.TemplateError as error:
        with pytest.raises(InvalidRequestError, match=re.escape(str(error))):
            ours.render(messages, add_generation_prompt=begin, variables={"thinking": thinking})
        return
    spelled = any(token in message["content"] for token in SPECIAL for message in messages)
    try:
        prompt = ours.render(messages, add_generation_prompt=begin, variables={"thinking": thinking})
    except InvalidRequestError:
        assert spelled  # only then may who wrote what matter so much
        return
    assert prompt.text == expected
    if not spelled:
        assert text.encode_prompt(prompt) == decoders.encode(expected)


@settings(max_examples=15, deadline=None)
@given(contents=st.lists(st.sampled_from([*SPECIAL, "the", " ", "<|im_", "end|>", "\n", "é"]), min_size=1).map("".join))
def test_no_message_makes_a_special_token(text: GenerationText, contents: str) -> None:
    """Each section between the template's special tokens is what a tokenizer without any makes of it."""
    from tokenizers import Tokenizer

    plain = Tokenizer.from_str(json.dumps(json.loads(decoders.tokenizer_json()) | {"added_tokens": []}))
    chat = CHAT
    prompt = chat.render([{"role": "user", "content": contents}], add_generation_prompt=False)
    start, end = (decoders.VOCABULARY[token] for token in (decoders.TURN, decoders.END_OF_TURN))
    expected = [start, *plain.encode(f"user\n{contents}").ids, end, *plain.encode("\n").ids]
    assert text.encode_prompt(prompt) == expected
