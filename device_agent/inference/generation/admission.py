"""Whether a request for an answer may wait. Pure: numbers in, a decision out; no clock, no thread.

How long an answer becomes is not known before, so nothing is promised about its end. What is known is the work that
surely comes first: the prompts that wait ahead, and its own. A request whose first token cannot come within its time
even so is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import InvalidRequestError, OverloadedError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.inference.generation.request import GenerationRequest

KEEP = 0.8
"""How much of what was known an average keeps with each new measurement."""


def check(request: GenerationRequest, *, vocabulary: int, context: int, fits: Callable[[int], bool]) -> int:
    """Whether a request can be answered at all.

    Args:
        request: The request.
        vocabulary: Token ids are below this.
        context: Most tokens of a sequence.
        fits: Whether there is memory for a sequence of so many tokens, where nothing else is.

    Returns:
        Most tokens of prompt and answer together; what the context or the memory has no room for is cut off.

    Raises:
        InvalidRequestError: An empty prompt, a token that the model does not have, or no token asked for.
        RequestTooLargeError: The prompt leaves no room for an answer.
    """
    prompt = request.prompt
    if not prompt:
        raise InvalidRequestError("the prompt is empty", where="prompt", expected="at least one token")
    if request.max_tokens < 1:
        found = str(request.max_tokens)
        raise InvalidRequestError("no token is asked for", where="max_tokens", expected="at least 1", found=found)
    if not 0 <= min(prompt) <= max(prompt) < vocabulary:
        expected = f"ids from 0 to {vocabulary - 1}"
        raise InvalidRequestError("the model does not have such a token", where="prompt", expected=expected)
    room = context if fits(context) else _largest(fits, context)
    if len(prompt) >= room:
        bound = "the model's context" if room == context else "the memory that the caches may take"
        raise RequestTooLargeError(
            f"the prompt is too long for {bound}",
            where="prompt",
            expected=f"at most {max(0, room - 1):,} tokens",
            found=f"{len(prompt):,}",
        )
    return min(room, len(prompt) + request.max_tokens)


def _largest(fits: Callable[[int], bool], bound: int) -> int:
    """The largest number below `bound` that fits; 0 if none does. What is smaller than one that fits, fits."""
    low, high = 0, bound
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(slots=True)
class Pace:
    """How fast a model is, as it was lately; 0.0 before anything was measured.

    Attributes:
        prompt_token: Seconds for one token of a prompt.
        step: Seconds for a step of all running sequences.
    """

    prompt_token: float = 0.0
    step: float = 0.0

    def read(self, tokens: int, seconds: float) -> None:
        """Learn from a run that put `tokens` tokens of a prompt into the caches."""
        each = seconds / tokens
        self.prompt_token = each if not self.prompt_token else KEEP * self.prompt_token + (1 - KEEP) * each

    def stepped(self, seconds: float) -> None:
        """Learn from a step."""
        self.step = seconds if not self.step else KEEP * self.step + (1 - KEEP) * seconds


def decide(
    *, tokens: int, seconds: float, ahead: int, waiting: int, free: int, max_waiting: int, pace: Pace, shortest: int
) -> OverloadedError | None:
    """Whether a request may wait.

    Args:
        tokens: Tokens of its prompt.
        seconds: How long it may take from now on.
        ahead: Tokens of prompts that were not read yet, of all sequences before it.
        waiting: Sequences that wait for a place.
        free: Places that are free: so many of those that wait are about to begin.
        max_waiting: How many may wait for others to end.
        pace: The model's speed.
        shortest: Tokens that the running sequence which is nearest to its end may still generate.

    Returns:
        None if it may, otherwise the refusal.
    """
    first = (ahead + tokens) * pace.prompt_token
    if waiting >= free + max_waiting:
        # A place is free when the shortest answer ends, at the latest, or when a prompt ahead was read and ended soon.
        soon = max(pace.step * shortest, ahead * pace.prompt_token / (waiting + 1), 0.1)
        return OverloadedError(
            "the queue is full", retry_after=soon, expected=f"at most {max_waiting:,} requests in it"
        )
    if ahead and first > seconds:
        return OverloadedError(
            "the answer could not come in time",
            retry_after=max(0.1, first - seconds),
            expected=f"at most {seconds:.3g} s",
            found=f"at least {first:.2g} s until its first token",
        )
    return None
