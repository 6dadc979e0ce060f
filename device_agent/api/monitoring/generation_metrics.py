"""The metrics of models that generate text.

The names are vLLM's, after our own prefix, for what vLLM measures too: dashboards and alerts are soon rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

    from device_agent.api.monitoring.generation import GenerationCounters
    from device_agent.inference.generation.state import GeneratorState
    from device_agent.models.loaded import LoadedDecoder

    Found = Sequence[tuple[LoadedDecoder, GeneratorState, GenerationCounters]]

MODEL = ("model", "version")


def generation_metrics(found: Found) -> Iterator[Metric]:
    """The metrics of all models that generate text; nothing where there is none."""
    if not found:
        return
    yield from _gauges(found)
    yield from _counters(found)
    yield from _histograms(found)


def _key(loaded: LoadedDecoder) -> list[str]:
    return [loaded.name, loaded.version]


GAUGES: dict[str, tuple[str, Callable[[GeneratorState], float]]] = {
    "num_requests_running": ("Sequences that have a place in the running batch", lambda state: state.active),
    "num_requests_waiting": ("Sequences that wait for a place", lambda state: state.waiting),
    "num_sequences_kept": (
        "Ended sequences whose caches are kept for prompts that begin alike",
        lambda state: state.idle,
    ),
    "kv_cache_bytes": ("Memory that the caches take now", lambda state: state.cache_bytes),
    "kv_cache_rows": ("Sequences for which the caches have memory now", lambda state: state.rows),
    "kv_cache_places": ("Tokens of each sequence for which they have memory now", lambda state: state.places),
}

COUNTERS: dict[str, tuple[str, Callable[[GeneratorState], float]]] = {
    "prompt_tokens": ("Tokens of prompts", lambda state: state.prompt_tokens),
    "prompt_tokens_cached": (
        "Those of them that an earlier sequence had left in the caches",
        lambda state: state.cached_tokens,
    ),
    "generation_tokens": ("Tokens that were generated", lambda state: state.generated_tokens),
    "generation_steps": ("Runs that gave each running sequence a token", lambda state: state.steps),
    "generation_step_seconds": ("Time of these runs", lambda state: state.step_seconds),
    "num_preemptions": (
        "How often a sequence gave its memory to an older one and began anew later",
        lambda state: state.preempted,
    ),
    "generation_refusals": ("Sequences that were refused because too much waited", lambda state: state.refused),
    "prompt_seconds": ("Time of the runs that read prompts", lambda state: state.prompt_seconds),
}


def _gauges(found: Found) -> Iterator[Metric]:
    for name, (text, value) in GAUGES.items():
        family = GaugeMetricFamily(f"edgeonnx_{name}", text, labels=MODEL)
        for loaded, state, _ in found:
            family.add_metric(_key(loaded), value(state))
        yield family
    limit = GaugeMetricFamily("edgeonnx_kv_cache_limit_bytes", "Memory that the caches may take", labels=MODEL)
    context = GaugeMetricFamily("edgeonnx_context_length", "Most tokens of a sequence", labels=MODEL)
    for loaded, _, _ in found:
        limit.add_metric(_key(loaded), loaded.caches.limit)
        context.add_metric(_key(loaded), loaded.caches.context_length)
    yield from (limit, context)


def _counters(found: Found) -> Iterator[Metric]:
    for name, (text, value) in COUNTERS.items():
        family = CounterMetricFamily(f"edgeonnx_{name}", text, labels=MODEL)
        for loaded, state, _ in found:
            family.add_metric(_key(loaded), value(state))
        yield family
    ended = CounterMetricFamily(
        "edgeonnx_generation_finished", "Sequences that ended, by reason", labels=[*MODEL, "finished_reason"]
    )
    for loaded, state, _ in found:
        for reason, count in sorted(state.finished.items()):
            ended.add_metric([*_key(loaded), reason], count)
    yield ended


def _histograms(found: Found) -> Iterator[Metric]:
    first = HistogramMetricFamily(
        "edgeonnx_time_to_first_token_seconds", "From a request's head to its first token", labels=MODEL
    )
    token = HistogramMetricFamily(
        "edgeonnx_request_time_per_output_token_seconds",
        "Mean time of each token after the first, of each sequence",
        labels=MODEL,
    )
    for loaded, _, counters in found:
        first.add_metric(_key(loaded), counters.first.cumulative(), counters.first.total)
        token.add_metric(_key(loaded), counters.token.cumulative(), counters.token.total)
    yield from (first, token)
