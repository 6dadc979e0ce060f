"""What the status tells of a model that generates text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.api.monitoring.histogram import quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from device_agent.api.context import Context
    from device_agent.models.loaded import LoadedDecoder


@dataclass(frozen=True, kw_only=True)
class GenerationView:
    """What a model generates, and what its caches take.

    Attributes:
        active: Sequences that have a place now.
        waiting: Sequences that wait for one.
        most: Sequences that may have a place at one time.
        context_length: Most tokens of a sequence.
        cache_bytes: Memory of the caches now.
        cache_limit_bytes: Memory that they may take.
        prompt_tokens: Tokens of prompts since it was loaded; so are the next three.
        cached_tokens: Those of them that were in the caches already.
        generated_tokens: Tokens that were generated.
        finished: Sequences that ended, by reason.
        first_p50: Median time to the first token in seconds, as exactly as the histogram's bounds tell; None: there was
            none. So are the next two.
        first_p95: 95th percentile.
        token_p50: Median time of each further token.
    """

    active: int
    waiting: int
    most: int
    context_length: int
    cache_bytes: int
    cache_limit_bytes: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    finished: Mapping[str, int]
    first_p50: float | None
    first_p95: float | None
    token_p50: float | None


def generation_view(loaded: LoadedDecoder, context: Context) -> GenerationView:
    """What a model generates."""
    state, counters = loaded.generator.state(), context.metrics.of(loaded).generated
    first, token = counters.first, counters.token
    return GenerationView(
        active=state.active,
        waiting=state.waiting,
        most=context.config.generation.max_sequences,
        context_length=loaded.caches.context_length,
        cache_bytes=state.cache_bytes,
        cache_limit_bytes=loaded.caches.limit,
        prompt_tokens=state.prompt_tokens,
        cached_tokens=state.cached_tokens,
        generated_tokens=state.generated_tokens,
        finished=dict(sorted(state.finished.items())),
        first_p50=quantile(first.bounds, first.counts, 0.5),
        first_p95=quantile(first.bounds, first.counts, 0.95),
        token_p50=quantile(token.bounds, token.counts, 0.5),
    )
