"""What is asked of a generator, and what it tells of the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from edgeonnx_ext import SamplingParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgeonnx.errors import EdgeOnnxError

GREEDY = SamplingParameters(temperature=0.0)
"""Takes the most probable token."""

FOREVER = float("inf")

Reason = Literal["stop", "length", "cancelled"]
"""Why an answer ended: a stop token, a stop text or its constraint; its length; its client left."""


class Constraint(Protocol):
    """The form that an answer must have; one object for each answer, called in the generator's thread.

    What it raises ends its own answer, and no other.
    """

    @property
    def finished(self) -> bool:
        """Whether the answer is whole, so that no token follows."""
        ...

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of tokens that must not come next to -infinity, in place.

        Args:
            logits: float32 (vocabulary,): of the next token.
        """
        ...

    def accept(self, token: int) -> None:
        """Take note of the token that came."""
        ...


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One answer that is asked for.

    Attributes:
        prompt: Its tokens, at least one.
        max_tokens: Most tokens of the answer, at least 1. What the context has no room for is cut off.
        sampling: How tokens are drawn.
        seed: Where the draws begin; None: anywhere.
        stop: Texts that end the answer; they are not part of it.
        ignore_stop_ids: The model's own stop tokens end nothing.
        top_logprobs: How many of the most probable tokens to tell at each place, with the log probability of the one
            that came; None: tell nothing.
        presence_penalty: Taken from the logits of tokens that the answer has.
        frequency_penalty: Taken as often as it has them.
        logit_bias: Added to the logits, by token id.
        constraint: The form of the answer.
        deadline: Seconds from now in which it must be done.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParameters = GREEDY
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_stop_ids: bool = False
    top_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    constraint: Constraint | None = None
    deadline: float = FOREVER


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """A token of an answer, and how probable the model found it, before penalties, temperature and filters.

    Attributes:
        token: Its id.
        logprob: Natural logarithm of its probability.
        top: Ids and log probabilities of the most probable tokens, the most probable one first.
        offset: At which character of the answer its text begins.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """A piece of the answer's text that is final.

    Attributes:
        text: The text; empty only in a last piece that has the rest of the tokens.
        tokens: The tokens whose text ends in it; empty where no log probabilities are asked for. A token that spells
            nothing goes with the text that follows it. A stop token, and what a stop text cut off, is in no piece.
    """

    text: str
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The answer is whole. Times are in seconds.

    Attributes:
        reason: Why it ended.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens that were generated, a stop token too.
        cached_tokens: Tokens of the prompt that an earlier sequence had left in the caches.
        queue_seconds: Until it had a place.
        prompt_seconds: From then to its first token.
        decode_seconds: From its first token to its last.
    """

    reason: Reason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    prompt_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no (more of the) answer.

    Attributes:
        error: Why.
    """

    error: EdgeOnnxError


Event = Delta | Finished | Failed
"""Pieces come first; the last event is the only one that is no `Delta`."""

if TYPE_CHECKING:
    Sink = Callable[[Sequence[Event]], Callable[[], object] | None]
    """Takes the next events of a request. What it returns is called once all requests were told of theirs: one wake for
    whoever reads the events of many."""
