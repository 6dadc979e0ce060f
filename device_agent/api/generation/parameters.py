"""What `/v1/completions` and `/v1/chat/completions` take in common: how to sample, when to stop, what comes back.

Fields are those of OpenAI's API, and `top_k`, `min_p`, `repetition_penalty` and `ignore_eos` as vLLM and llama.cpp
spell them. What a request does not say is as the model's makers say (the manifest's `sampling`). Defined here:

- null counts as absent, everywhere;
- fields that only tell the service who asks, or how it may work, change no answer and are ignored (`IGNORED`); a field
  that asks for something that the agent does not do is refused (`REFUSED`); so is every other one;
- `max_tokens` below 1 is refused: there is no answer of no tokens;
- a prompt and `max_tokens` that together exceed the model's context are no error: the answer ends where the context
  does, with the finish reason "length";
- `temperature` 0 takes the most probable token, and `top_p`, `top_k` and `min_p` then do nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx_ext import SamplingParameters

from device_agent.api.edge.body import JSON_NAMES, of_type
from device_agent.api.tasks import check_fields, optional_flag, optional_text
from edgeonnx.errors import InvalidRequestError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx.spec.generation import SamplingDefaults

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_CHOICES = 16
MAX_TOKENS = 1 << 24
MAX_BIASES = 1024
LEAST_TEMPERATURE = 1e-6
"""Below this, the most probable token is all but certain: it counts as 0."""

FIELDS = (
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "n",
    "seed",
    "stop",
    "ignore_eos",
    "stream",
    "stream_options",
    "logprobs",
    "response_format",
)
IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "prediction",
    "parallel_tool_calls",
)
"""Who asks, how the service may bill, keep or speed up the answer: nothing that changes it."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """The form that an answer must have.

    Attributes:
        schema: The JSON schema that it follows; None: any JSON object.
    """

    schema: dict[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a request says beside its prompt.

    Attributes:
        model: The model's name.
        max_tokens: Most tokens of an answer; None: as many as the context has room for.
        sampling: How tokens are drawn.
        presence_penalty: Taken from the logits of tokens that the answer has.
        frequency_penalty: Taken as often as it has them.
        logit_bias: Added to logits, by token id.
        choices: Answers to each prompt.
        seed: Where the draws begin; None: anywhere.
        stop: Texts that end an answer.
        ignore_stop_ids: The model's own stop tokens end nothing.
        stream: The answer comes in pieces.
        include_usage: A stream ends with its usage.
        format: The form of the answer; None: text.
    """

    model: str
    max_tokens: int | None
    sampling: SamplingParameters
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    choices: int
    seed: int | None
    stop: tuple[str, ...]
    ignore_stop_ids: bool
    stream: bool
    include_usage: bool
    format: Format | None


def parse_options(
    body: dict[str, object], model: str, defaults: SamplingDefaults, vocabulary_size: int, max_tokens: int | None
) -> Options:
    """Check what both routes share.

    Args:
        body: The request.
        model: The name of the model, which was looked up.
        defaults: How the model's makers sample from it.
        vocabulary_size: Token ids are below this.
        max_tokens: The route's own field for it, checked; or None.

    Raises:
        InvalidRequestError: A field is wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    stream = optional_flag(body, "stream", False)
    return Options(
        model=model,
        max_tokens=max_tokens,
        sampling=_sampling(body, defaults),
        presence_penalty=number(body, "presence_penalty", 0.0, least=-2, most=2),
        frequency_penalty=number(body, "frequency_penalty", 0.0, least=-2, most=2),
        logit_bias=_logit_bias(body, vocabulary_size),
        choices=integer(body, "n", least=1, most=MAX_CHOICES) or 1,
        seed=integer(body, "seed", least=-(1 << 63), most=(1 << 64) - 1),
        stop=_stop(body),
        ignore_stop_ids=optional_flag(body, "ignore_eos", False),
        stream=stream,
        include_usage=_include_usage(body, stream=stream),
        format=_format(body),
    )


def number(body: Mapping[str, object], name: str, default: float, *, least: float, most: float) -> float:
    """A field that is a number within bounds; null counts as absent.

    Raises:
        InvalidRequestError: It is something else. Infinities, which JSON can spell ("1e999"), are no numbers.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequestError(
            "is of the wrong type", where=name, expected="a number", found=JSON_NAMES.get(type(value), "another type")
        )
    found = float(value) if abs(value) < 1 << 53 else math.inf
    if not least <= found <= most:  # nor is it if it is no number
        raise InvalidRequestError(
            "is out of range", where=name, expected=f"a number from {least:g} to {most:g}", found=str(value)[:40]
        )
    return found


def integer(body: Mapping[str, object], name: str, *, least: int, most: int) -> int | None:
    """A field that is an integer within bounds, or None where it is absent or null.

    Raises:
        InvalidRequestError: It is something else.
    """
    value = body.get(name)
    if value is None:
        return None
    found = of_type(value, int, name)
    if not least <= found <= most:
        raise InvalidRequestError(
            "is out of range", where=name, expected=f"an integer from {least} to {most}", found=str(found)[:40]
        )
    return found


def refuse(body: Mapping[str, object], refused: Mapping[str, str]) -> None:
    """Refuse fields that ask for what the agent does not do, each with its reason; null asks for nothing.

    Raises:
        InvalidRequestError: There is one.
    """
    for name, reason in refused.items():
        if body.get(name) is not None:
            raise InvalidRequestError(reason, where=name)


def _sampling(body: Mapping[str, object], defaults: SamplingDefaults) -> SamplingParameters:
    temperature = number(body, "temperature", defaults.temperature, least=0, most=2)
    top_k = integer(body, "top_k", least=-1, most=MAX_TOKENS)
    return SamplingParameters(
        repetition_penalty=number(body, "repetition_penalty", defaults.repetition_penalty, least=0.01, most=100),
        temperature=0.0 if temperature < LEAST_TEMPERATURE else temperature,
        top_k=defaults.top_k if top_k is None else max(0, top_k),
        top_p=number(body, "top_p", defaults.top_p, least=0, most=1),
        min_p=number(body, "min_p", 0.0, least=0, most=1),
    )


def _logit_bias(body: Mapping[str, object], vocabulary_size: int) -> dict[int, float]:
    value = body.get("logit_bias")
    if value is None:
        return {}
    entries: dict[str, object] = of_type(value, dict, "logit_bias")
    if len(entries) > MAX_BIASES:
        raise RequestTooLargeError(
            "has too many tokens", where="logit_bias", expected=f"at most {MAX_BIASES:,}", found=f"{len(entries):,}"
        )
    found = {}
    for key in entries:
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 12 else -1
        if not 0 <= token < vocabulary_size:
            raise InvalidRequestError(
                "is not a token id of this model",
                where="logit_bias",
                expected=f"0 to {vocabulary_size - 1}, in quotes",
                found=repr(key[:40]),
            )
        found[token] = number({f"logit_bias.{key}": entries[key]}, f"logit_bias.{key}", 0.0, least=-100, most=100)
    return found


def _stop(body: Mapping[str, object]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else of_type(value, list, "stop")
    if len(texts) > MAX_STOPS:
        raise RequestTooLargeError(
            "has too many texts", where="stop", expected=f"at most {MAX_STOPS}", found=f"{len(texts):,}"
        )
    for index, each in enumerate(texts):
        where = "stop" if isinstance(value, str) else f"stop[{index}]"
        text = of_type(each, str, where)
        if not text:
            raise InvalidRequestError("is empty", where=where, expected="at least one character")
        if len(text) > MAX_STOP_CHARACTERS:
            raise RequestTooLargeError(
                "the text is too long",
                where=where,
                expected=f"at most {MAX_STOP_CHARACTERS} characters",
                found=f"{len(text):,}",
            )
    return tuple(texts)


def _include_usage(body: Mapping[str, object], *, stream: bool) -> bool:
    value = body.get("stream_options")
    if value is None:
        return False
    options: dict[str, object] = of_type(value, dict, "stream_options")
    if not stream:
        raise InvalidRequestError("is for streams alone", where="stream_options", hint='set "stream": true')
    # Obfuscation pads a stream against those who watch the wire: an operator who fears them uses TLS on the box itself.
    check_fields(options, ("include_usage", "include_obfuscation"), "stream_options.")
    optional_flag(options, "include_obfuscation", False, "stream_options.")
    return optional_flag(options, "include_usage", False, "stream_options.")


def _format(body: Mapping[str, object]) -> Format | None:
    value = body.get("response_format")
    if value is None:
        return None
    fields: dict[str, object] = of_type(value, dict, "response_format")
    kind = optional_text(fields, "type", "response_format.")
    if kind in ("text", "json_object"):
        check_fields(fields, ("type",), "response_format.")
        return Format() if kind == "json_object" else None
    if kind != "json_schema":
        raise InvalidRequestError(
            "unknown type",
            where="response_format.type",
            expected="text, json_object or json_schema",
            found=repr(kind)[:40],
        )
    check_fields(fields, ("type", "json_schema"), "response_format.")
    where = "response_format.json_schema"
    named: dict[str, object] = of_type(fields.get("json_schema"), dict, where)
    check_fields(named, ("name", "description", "schema", "strict"), f"{where}.")
    optional_text(named, "name", f"{where}.")
    optional_text(named, "description", f"{where}.")
    optional_flag(named, "strict", False, f"{where}.")
    return Format(schema=of_type(named.get("schema"), dict, f"{where}.schema"))
