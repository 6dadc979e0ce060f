"""The routes: `/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.generation.answers import ChatAnswers, Head, TextAnswers
from device_agent.api.generation.conversation import parse_chat
from device_agent.api.generation.grammar import constrain
from device_agent.api.generation.prompts import check_prompt_length, parse_completion
from device_agent.api.generation.sequences import requests_of
from device_agent.api.generation.serving import Plan, generate
from edgeonnx.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context
    from device_agent.api.generation.grammar import JsonConstraint
    from device_agent.api.generation.parameters import Options
    from device_agent.inference.generation.chat import ChatTemplate
    from device_agent.models.loaded import LoadedDecoder


async def completions(context: Context, request: Request) -> Response:
    """`POST /v1/completions`."""
    return await generate(context, request, prepare_completion, "cmpl")


async def chat_completions(context: Context, request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    return await generate(context, request, prepare_chat, "chatcmpl")


def prepare_completion(context: Context, loaded: LoadedDecoder, body: dict[str, object], head: Head) -> Plan:
    """What a request for completions needs.

    Raises:
        InvalidRequestError: A field is wrong, or a prompt does not fit.
        RequestTooLargeError: A limit is exceeded.
    """
    asked = parse_completion(
        body,
        model=loaded.name,
        defaults=loaded.generation.sampling,
        vocabulary_size=_vocabulary(loaded),
        context_length=loaded.caches.context_length,
        limits=context.config.limits,
    )
    prompts, texts = [], []
    for index, prompt in enumerate(asked.prompts):
        ids = loaded.text.encode(prompt, special_tokens=True) if isinstance(prompt, str) else prompt
        where = "prompt" if len(asked.prompts) == 1 else f"prompt[{index}]"
        check_prompt_length(len(ids), where, loaded.caches.context_length)
        prompts.append(ids)
        if asked.echo:
            texts += [_text_of(prompt, loaded)] * asked.options.choices
    return Plan(
        requests=requests_of(prompts, asked.options, asked.logprobs, _constraints(loaded, asked.options, len(prompts))),
        answers=TextAnswers(
            head=head,
            decoder=loaded.text.decoder,
            logprobs=asked.logprobs is not None,
            choices_per_prompt=asked.options.choices,
            include_usage=asked.options.include_usage,
            echoes=tuple(texts),
        ),
        stream=asked.options.stream,
    )


def prepare_chat(context: Context, loaded: LoadedDecoder, body: dict[str, object], head: Head) -> Plan:
    """What a request for a chat completion needs.

    Raises:
        InvalidRequestError: A field is wrong, the model has no template, or the template refuses the conversation.
        RequestTooLargeError: A limit is exceeded.
    """
    chat = _template(loaded)
    asked = parse_chat(
        body,
        model=loaded.name,
        defaults=loaded.generation.sampling,
        vocabulary_size=_vocabulary(loaded),
        knows_developer=chat.knows_developer,
        limits=context.config.limits,
    )
    prompt = chat.render(asked.messages, variables=asked.variables, max_characters=context.config.limits.max_body_bytes)
    ids = loaded.text.encode_prompt(prompt)
    check_prompt_length(len(ids), "messages", loaded.caches.context_length)
    return Plan(
        requests=requests_of([ids], asked.options, asked.top_logprobs, _constraints(loaded, asked.options, 1)),
        answers=ChatAnswers(
            head=head,
            decoder=loaded.text.decoder,
            logprobs=asked.top_logprobs is not None,
            choices_per_prompt=asked.options.choices,
            include_usage=asked.options.include_usage,
        ),
        stream=asked.options.stream,
    )


def _template(loaded: LoadedDecoder) -> ChatTemplate:
    chat = loaded.text.chat
    if chat is None:
        raise InvalidRequestError(
            "this model has no chat template, so it takes no conversations",
            where="model",
            found=loaded.name,
            hint="use /v1/completions",
        )
    return chat


def _vocabulary(loaded: LoadedDecoder) -> int:
    """Number of logits; ids that the tokenizer does not know may be among them."""
    return int(loaded.manifest.entry_component.signature.outputs[0].shape[-1])


def _text_of(prompt: str | Sequence[int], loaded: LoadedDecoder) -> str:
    return prompt if isinstance(prompt, str) else loaded.text.decoder.decode(prompt, False)


def _constraints(loaded: LoadedDecoder, options: Options, prompts: int) -> list[JsonConstraint]:
    if options.format is None:
        return []
    choices = options.choices * prompts
    return constrain(options.format, loaded.text, _vocabulary(loaded), loaded.generation.stop_ids, choices)
