"""What is counted of the answers that a model generated: when their first token came, and how fast the others did.

`generation_metrics` writes it for Prometheus, `status` for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.api.monitoring.histogram import Histogram

if TYPE_CHECKING:
    from device_agent.inference.generation.request import Finished

# From a short prompt that is in the caches to one that fills the context of a slow box.
FIRST_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
# From a model of 100 M parameters on a GPU to one of 3 B on a slow CPU.
TOKEN_BOUNDS = (0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """One sequence that came to its end. Times are in seconds.

    Attributes:
        prompt_tokens: Tokens of its prompt.
        completion_tokens: Tokens that were generated.
        queue: Until it had a place.
        first: From the request's head to its first token; None: it has none.
        total: From the request's head to its last token.
    """

    prompt_tokens: int
    completion_tokens: int
    queue: float
    first: float | None
    total: float

    @classmethod
    def of(cls, finished: Finished, *, before: float) -> Generated:
        """A sequence as its generator tells it.

        Args:
            finished: Its last event.
            before: From the request's head until it was given to the generator.
        """
        first = before + finished.queue_seconds + finished.prompt_seconds
        return cls(
            prompt_tokens=finished.prompt_tokens,
            completion_tokens=finished.completion_tokens,
            queue=finished.queue_seconds,
            first=first if finished.completion_tokens else None,
            total=first + finished.decode_seconds,
        )

    @property
    def prompt_seconds(self) -> float | None:
        """To the first token, without the wait for a place."""
        return None if self.first is None else max(0.0, self.first - self.queue)

    @property
    def token_seconds(self) -> float | None:
        """The mean time of each token after the first; None where there is none."""
        if self.first is None or self.completion_tokens < 2:
            return None
        return max(0.0, self.total - self.first) / (self.completion_tokens - 1)


class GenerationCounters:
    """What one version of a model generated.

    Attributes:
        first: Times to the first token, from the request's head.
        token: Mean times of each further token, one for each sequence.
    """

    __slots__ = ("first", "token")

    def __init__(self) -> None:
        self.first = Histogram(FIRST_BOUNDS)
        self.token = Histogram(TOKEN_BOUNDS)

    def add(self, sequence: Generated) -> None:
        """Count a sequence."""
        if sequence.first is not None:
            self.first.observe(sequence.first)
        if (token := sequence.token_seconds) is not None:
            self.token.observe(token)
