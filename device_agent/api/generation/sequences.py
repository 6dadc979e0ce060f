"""From a checked request to the sequences that the generator is asked for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.generation.parameters import MAX_TOKENS
from device_agent.inference.generation.request import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.api.generation.parameters import Options
    from device_agent.inference.generation.request import Constraint


def requests_of(
    prompts: Sequence[Sequence[int]], options: Options, top_logprobs: int | None, constraints: Sequence[Constraint]
) -> list[GenerationRequest]:
    """The sequences of a request: each prompt's choices stand together.

    Args:
        prompts: Tokens of each prompt.
        options: What the request says.
        top_logprobs: Alternatives of each token; None: no log probabilities.
        constraints: The form of each choice; empty: none has one.
    """
    found = []
    for index in range(len(prompts) * options.choices):
        prompt, choice = divmod(index, options.choices)
        found.append(
            GenerationRequest(
                prompt=tuple(prompts[prompt]),
                max_tokens=MAX_TOKENS if options.max_tokens is None else options.max_tokens,
                sampling=options.sampling,
                seed=seed_of(options.seed, choice),
                stop=options.stop,
                ignore_stop_ids=options.ignore_stop_ids,
                top_logprobs=top_logprobs,
                presence_penalty=options.presence_penalty,
                frequency_penalty=options.frequency_penalty,
                logit_bias=options.logit_bias,
                constraint=constraints[index] if constraints else None,
            )
        )
    return found


def seed_of(seed: int | None, choice: int) -> int | None:
    """The seed of one choice: the first has the request's own, so that it is the answer to the same request without n.

    The others' are apart by a step of 2**64 / golden ratio (the increment of SplitMix64), modulo 2**64.
    """
    return None if seed is None else (seed + choice * 0x9E3779B97F4A7C15) % (1 << 64)
