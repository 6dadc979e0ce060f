"""The request of `/v1/completions`: prompts, and what is asked of each one's continuation.

- `prompt` is a text, a list of texts, a list of token ids, or a list of such lists. Each gives `n` choices: those of
  the first prompt come first. Special tokens that a text spells become their ids: a prompt is the caller's whole
  affair, unlike a message in a conversation.
- A prompt that gives no token at all is refused; where the model's tokenizer puts a token before each text, an empty
  text has one.
- `max_tokens` is 16 where the request does not say, as it always was in this API.
- `logprobs` tells each token's log probability and those of the most probable ones, up to 5.
- `echo` puts the prompt before the answer; not together with `logprobs`, because the agent computes no logits for a
  prompt's tokens but the last. `suffix` is refused, and so is `best_of` beyond `n`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from device_agent.api.edge.body import check_ids, check_integers, check_row_count, check_texts, of_type, required
from device_agent.api.generation.parameters import (
    FIELDS,
    IGNORED,
    MAX_CHOICES,
    MAX_TOKENS,
    Options,
    integer,
    parse_options,
    refuse,
)
from device_agent.api.tasks import check_fields, optional_flag
from edgeonnx.errors import ContextLengthError, InvalidRequestError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.config import Limits
    from edgeonnx.spec.generation import SamplingDefaults

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5
REFUSED = {"suffix": "the agent continues texts and fills no gaps"}
COMPLETION_FIELDS = (*FIELDS, *IGNORED, *REFUSED, "prompt", "best_of", "echo")


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A checked request.

    Attributes:
        options: What both routes share.
        prompts: Texts, or lists of token ids.
        logprobs: Alternatives to tell of each token; None: no log probabilities at all.
        echo: The answer begins with the prompt.
    """

    options: Options
    prompts: Sequence[str | list[int]]
    logprobs: int | None
    echo: bool


def parse_completion(
    body: dict[str, object],
    *,
    model: str,
    defaults: SamplingDefaults,
    vocabulary_size: int,
    context_length: int,
    limits: Limits,
) -> CompletionRequest:
    """Check the body of a request.

    Args:
        body: The request.
        model: The name of its model.
        defaults: How the model's makers sample from it.
        vocabulary_size: Token ids are below this.
        context_length: Most tokens that a prompt may have.
        limits: The agent's limits.

    Raises:
        InvalidRequestError: A field is missing, unknown or wrong.
        RequestTooLargeError: A limit is exceeded.
    """
    check_fields(body, COMPLETION_FIELDS)
    refuse(body, REFUSED)
    max_tokens = integer(body, "max_tokens", least=1, most=MAX_TOKENS)
    options = parse_options(
        body, model, defaults, vocabulary_size, DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    )
    best_of = integer(body, "best_of", least=1, most=MAX_CHOICES)
    if best_of is not None and best_of != options.choices:
        raise InvalidRequestError("the agent ranks no answers", where="best_of", expected="null, or what n says")
    prompts = _prompts(required(body, "prompt"), vocabulary_size, context_length, limits)
    if len(prompts) * options.choices > MAX_CHOICES:
        raise RequestTooLargeError(
            "asks for too many choices",
            where="prompt",
            expected=f"at most {MAX_CHOICES} in one request",
            found=f"{len(prompts)} prompts with {options.choices} each",
        )
    logprobs = integer(body, "logprobs", least=0, most=MAX_LOGPROBS)
    echo = optional_flag(body, "echo", False)
    if echo and logprobs is not None:
        raise InvalidRequestError("cannot be told of a prompt", where="logprobs", hint="leave out echo or logprobs")
    return CompletionRequest(options=options, prompts=prompts, logprobs=logprobs, echo=echo)


def _prompts(value: object, vocabulary_size: int, context_length: int, limits: Limits) -> Sequence[str | list[int]]:
    """Texts or lists of ids; the first element tells which, and every other one must be like it."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise InvalidRequestError("is of the wrong type", where="prompt", expected="a text or an array")
    if value and isinstance(value[0], int | float):
        return (_ids(value, "prompt", vocabulary_size, context_length),)
    check_row_count(len(value), "prompt", limits)
    if not isinstance(value[0], list):
        return tuple(check_texts(value, "prompt", limits))
    return tuple(
        _ids(of_type(row, list, f"prompt[{index}]"), f"prompt[{index}]", vocabulary_size, context_length)
        for index, row in enumerate(value)
    )


def _ids(row: Sequence[object], where: str, vocabulary_size: int, context_length: int) -> list[int]:
    check_prompt_length(len(row), where, context_length)
    check_integers(row, where)
    try:
        check_ids(np.array(row, dtype=np.int64), where, vocabulary_size)
    except OverflowError:
        raise InvalidRequestError("holds an integer that is no token id", where=where) from None
    return list(row)  # type: ignore[arg-type]


def check_prompt_length(length: int, where: str, context_length: int) -> None:
    """Refuse a prompt without tokens, or one that leaves no room for an answer.

    Raises:
        InvalidRequestError: It has none.
        ContextLengthError: It leaves none.
    """
    if length == 0:
        raise InvalidRequestError(
            "the prompt gives no token", where=where, expected="at least one", hint="begin with some text"
        )
    if length >= context_length:
        raise ContextLengthError(
            "the prompt is longer than the model's context has room for",
            where=where,
            expected=f"at most {context_length - 1} tokens, so that one can follow",
            found=str(length),
            hint="shorten it; nothing is cut in silence",
        )
