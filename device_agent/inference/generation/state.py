"""What a generator does and has done, for metrics and views."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class GeneratorLimits:
    """What a generator may take.

    Attributes:
        context: Most tokens of a sequence, prompt and answer together.
        cache_bytes: Memory that the caches may take.
        max_sequences: Sequences that are active at one time.
        max_waiting: Requests that may wait for others to end.
        prompt_chunk: Tokens of a prompt that one run reads while others wait for their next token.
        idle_rows: Ended sequences whose caches are kept for prompts that begin alike, as long as there is memory.
        prefix_reuse: Whether any are kept.
    """

    context: int
    cache_bytes: int
    max_sequences: int = 8
    max_waiting: int = 64
    prompt_chunk: int = 64
    idle_rows: int = 8
    prefix_reuse: bool = True


@dataclass(frozen=True, kw_only=True)
class GeneratorState:
    """What a generator does now, and what it did since it was made. Times are in seconds.

    Attributes:
        active: Sequences that have a row.
        waiting: Sequences that wait for one.
        idle: Ended sequences whose caches are kept.
        rows: Rows of the caches.
        places: Tokens for which a row has addresses; see `Memory.lazy` for what it takes.
        cache_bytes: Memory that the caches take.
        cache_limit: Memory that they may take.
        requests: Requests that were taken.
        refused: Requests that were refused because too much waited.
        finished: How many ended, by reason: "stop", "length", "cancelled", "failed".
        prompt_tokens: Tokens of the prompts that had a row, those that were found in the caches too.
        cached_tokens: How many of them were found in the caches.
        generated_tokens: Tokens of answers.
        prompts: Runs that read a piece of a prompt.
        prompt_seconds: Their time.
        steps: Runs that gave each running sequence a token.
        step_seconds: Their time.
        preempted: How often a sequence gave its memory to an older one, and began anew later.
        recovered: How often the caches were filled anew on another provider.
    """

    active: int
    waiting: int
    idle: int
    rows: int
    places: int
    cache_bytes: int
    cache_limit: int
    requests: int
    refused: int
    finished: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prompts: int
    prompt_seconds: float
    steps: int
    step_seconds: float
    preempted: int
    recovered: int


@dataclass(slots=True)
class Totals:
    """The counters of a generator; see `GeneratorState`."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prompts: int = 0
    prompt_seconds: float = 0.0
    steps: int = 0
    step_seconds: float = 0.0
    preempted: int = 0
    recovered: int = 0
    finished: Counter[str] = field(default_factory=Counter)

    def state(self, **now: int) -> GeneratorState:
        """The counters, with what is now: the attributes of `GeneratorState` that are no counters."""
        counted = {name: getattr(self, name) for name in self.__slots__ if name != "finished"}
        return GeneratorState(finished=dict(self.finished), **counted, **now)
