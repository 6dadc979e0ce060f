"""The state of the agent for people: `/status.json`, and the page `/` that `status_page` makes of it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from device_agent.api.monitoring.histogram import quantile
from device_agent.api.monitoring.status_generation import generation_view
from device_agent.inference.devices.providers import PREFERENCE, label_of, order_of
from device_agent.models import memory
from device_agent.models.loaded import LoadedDecoder, LoadedEncoder
from device_agent.models.states import ModelState
from edgeonnx import __version__
from edgeonnx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from device_agent.api.context import Context
    from device_agent.api.monitoring.metrics import ModelCounters
    from device_agent.api.monitoring.status_generation import GenerationView
    from device_agent.api.monitoring.updates import UpdatesView
    from device_agent.config import AgentConfig
    from device_agent.inference.engine import ServingGraph
    from device_agent.inference.queue.batcher import QueueState
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.states import ModelEntry

RATE_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class ProviderView:
    """What runs a model.

    Attributes:
        name: The execution provider that runs now, without ONNX Runtime's suffix.
        fallback: Why it is not the one that was preferred; None if it is.
        shares: For each provider the part of the graph's nodes that it runs, 0.0 to 1.0; empty if not recorded.
        replaced: How often a provider was replaced while it served.
    """

    name: str
    fallback: str | None
    shares: Mapping[str, float]
    replaced: int


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """What waits for a model, and how long a request that comes now will.

    Attributes:
        requests: Requests that wait.
        rows: Their rows.
        tokens: Their tokens.
        running_tokens: Tokens of the batches that run now.
        tokens_per_second: Measured speed of the runners; 0.0 before the first run.
        wait_seconds: Predicted wait until the first row runs.
        runners: Threads that run the model.
    """

    requests: int
    rows: int
    tokens: int
    running_tokens: int
    tokens_per_second: float
    wait_seconds: float
    runners: int


@dataclass(frozen=True, kw_only=True)
class LatencyView:
    """Time of the requests that were answered in the last minute, in the agent.

    Attributes:
        bounds: Upper bounds of the histogram, in seconds.
        counts: Requests in each place of it; one more than bounds.
        p50: Median in seconds, as exactly as the bounds tell; None without requests. So are the next two.
        p95: 95th percentile.
        p99: 99th percentile.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """A model that serves.

    Attributes:
        name: Its name.
        version: Its version.
        variant: The variant that serves.
        precision: That variant's precision.
        tokenizer: What tokenizes.
        provider: What runs it.
        not_used: Each other variant with the reason.
        requests_per_second: Answered requests, over the last 10 s; so are the next two.
        rows_per_second: Rows (texts, or generated sequences).
        tokens_per_second: Tokens, without padding; of prompts and answers.
        history: Answered requests in each of the last 60 s, the oldest first.
        latency: Times of the last minute.
        answered: Requests answered with a result since it was loaded first.
        failed: Requests answered with an error.
        rows: Rows that were answered.
        runs: Runs of the model.
        memory_bytes: Memory that it takes.
        loaded_at: When it was loaded, in seconds since 1970.
        queue: What waits for it; None: it generates text.
        generation: What it generates; None: it does not.
    """

    name: str
    version: str
    variant: str
    precision: str
    tokenizer: str
    provider: ProviderView
    not_used: Mapping[str, str]
    requests_per_second: float
    rows_per_second: float
    tokens_per_second: float
    history: Sequence[int]
    latency: LatencyView
    answered: int
    failed: int
    rows: int
    runs: int
    memory_bytes: int
    loaded_at: float
    queue: QueueView | None = None
    generation: GenerationView | None = None


@dataclass(frozen=True, kw_only=True)
class OtherModel:
    """A model of the repository that does not serve: its name, version (or ""), state and the reason (or "")."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class MemoryView:
    """Memory, in bytes; None: unknown.

    Attributes:
        resident: Of this process.
        mapped: The part of it that is pages of files.
        models: What the models take together, by measurement.
        budget: What they may take (`runtime.memory_bytes`); None: what is available.
        available: What the machine, or the container, has left.
    """

    resident: int | None
    mapped: int | None
    models: int
    budget: int | None
    available: int | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """The agent at one moment.

    Attributes:
        version: The agent's version.
        state: "loading", "ready" or "draining", or "failed".
        live: The event loop answers (or there would be no status).
        ready: Requests are taken.
        uptime_seconds: Since the agent began to serve.
        time: When this was, in seconds since 1970.
        requests_in_flight: Requests being answered.
        models: The models that serve.
        others: The other models of the repository.
        responses: HTTP responses by status.
        refusals: Requests that got no result, by reason.
        memory: Memory.
        updates: Updates; None: the agent has no state directory.
    """

    version: str
    state: str
    live: bool
    ready: bool
    uptime_seconds: float
    time: float
    requests_in_flight: int
    models: Sequence[ModelView]
    others: Sequence[OtherModel]
    responses: Mapping[str, int]
    refusals: Mapping[str, int]
    memory: MemoryView
    updates: UpdatesView | None = None


def read_status(context: Context, entries: Sequence[ModelEntry]) -> Status:
    """The agent as it is now; `entries` are the repository's index."""
    models, metrics = context.models, context.metrics
    serving = [live.loaded for live in models.all()]
    now = metrics.clock()
    return Status(
        version=__version__,
        state=models.state,
        live=True,
        ready=models.ready,
        uptime_seconds=round(now - metrics.started, 3),
        time=round(time.time(), 3),
        requests_in_flight=models.in_flight,
        models=[model_view(loaded, context, now) for loaded in serving],
        others=[
            OtherModel(name=entry.name, version=entry.version, state=entry.state.value, reason=entry.reason)
            for entry in entries
            if entry.state is not ModelState.READY
        ],
        responses={str(status): count for status, count in sorted(metrics.responses.items())},
        refusals=dict(sorted(metrics.refusals.items())),
        memory=_memory(serving, context.config),
        updates=None if metrics.updates is None else metrics.updates(),
    )


def model_view(loaded: LoadedModel, context: Context, now: float) -> ModelView:
    """A model at one moment; `now` is by the clock of the metrics."""
    counters = context.metrics.of(loaded)
    statistics = context.metrics.statistics.of(loaded)
    requests, rows, tokens = counters.recent.rates(now, RATE_SECONDS)
    engine = loaded.engine
    return ModelView(
        name=loaded.name,
        version=loaded.version,
        variant=engine.variant.name,
        precision=engine.variant.precision,
        tokenizer=loaded.tokenizer,
        provider=ProviderView(
            name=label_of(engine.provider),
            fallback=fallback_of(loaded, context.config),
            shares={label_of(name): round(engine.assignment.share(name), 4) for name in engine.assignment.nodes},
            replaced=engine.fallbacks,
        ),
        not_used=engine.not_used,
        queue=queue_view(loaded.batcher.state()) if isinstance(loaded, LoadedEncoder) else None,
        generation=generation_view(loaded, context) if isinstance(loaded, LoadedDecoder) else None,
        requests_per_second=requests,
        rows_per_second=rows,
        tokens_per_second=tokens,
        history=counters.recent.per_second(now),
        latency=latency_view(counters, now),
        answered=round(statistics.success.count),
        failed=counters.failures.total(),
        rows=statistics.inference_count,
        runs=loaded.runs,
        memory_bytes=loaded.memory_bytes,
        loaded_at=round(loaded.loaded_at, 3),
    )


def queue_view(state: QueueState) -> QueueView:
    """What waits for a model."""
    return QueueView(
        requests=state.requests,
        rows=state.rows,
        tokens=state.tokens,
        running_tokens=state.running_tokens,
        tokens_per_second=round(state.tokens_per_second, 1),
        wait_seconds=round(state.wait_seconds, 4),
        runners=state.runners,
    )


def latency_view(counters: ModelCounters, now: float) -> LatencyView:
    """The times of the last minute."""
    bounds, counts = counters.recent.bounds, counters.recent.counts(now)
    p50, p95, p99 = (quantile(bounds, counts, share) for share in (0.5, 0.95, 0.99))
    return LatencyView(bounds=bounds, counts=counts, p50=p50, p95=p95, p99=p99)


def fallback_of(loaded: LoadedModel, config: AgentConfig) -> str | None:
    """Why a model does not run on the provider that was preferred for it; None if it does.

    It is a fallback where a provider was lost while it served, or where the bundle has a variant for a provider that
    comes earlier in the operator's order and cannot be used. A variant that the operator chose is none.
    """
    engine = loaded.engine
    if engine.replacements:
        last = engine.replacements[-1]
        return f"{label_of(last.lost)} was lost while serving: {last.cause}"
    if config.runtime.variant is not None:
        return None
    return earlier_variant(
        engine, {each.name: each.requirements.provider for each in loaded.manifest.entry_component.variants}, config
    )


def earlier_variant(engine: ServingGraph, needs: Mapping[str, str], config: AgentConfig) -> str | None:
    """The variant for an earlier provider that is not used, with the reason; None if there is none.

    Args:
        engine: What serves.
        needs: The provider that each variant of the bundle was made for.
        config: The operator's order of providers.
    """
    try:
        order = order_of(config.runtime.providers)
    except UsageError:  # such an order does not serve at all
        order = PREFERENCE
    here = order.index(engine.provider) if engine.provider in order else len(order)
    for variant, reason in engine.not_used.items():
        provider = needs.get(variant)
        if provider in order and order.index(provider) < here:
            return f"{variant}: {reason}"
    return None


def _memory(serving: Sequence[LoadedModel], config: AgentConfig) -> MemoryView:
    used = memory.usage()
    return MemoryView(
        resident=None if used is None else used.total,
        mapped=None if used is None else used.mapped,
        models=sum(loaded.memory_bytes for loaded in serving),
        budget=config.runtime.memory_bytes,
        available=memory.available(),
    )


async def _index(context: Context) -> list[ModelEntry]:
    """The repository's index; it reads metadata on disk, which may take long."""
    return await asyncio.to_thread(context.models.index)


async def status_json(context: Context, _request: Request) -> Response:
    """`GET /status.json`: the status as plain data."""
    data = orjson.dumps(read_status(context, await _index(context)))
    return Response(data, media_type="application/json", headers={"Cache-Control": "no-store"})


async def status_page(context: Context, _request: Request) -> Response:
    """`GET /`: the status as a page."""
    # Somebody who looks is rare, and a start needs none of it.
    from device_agent.api.monitoring.status_page import HEADERS, render_page

    return Response(render_page(read_status(context, await _index(context))), media_type="text/html", headers=HEADERS)


STATUS_ROUTES: tuple[tuple[str, str, Callable[[Context, Request], Awaitable[Response]]], ...] = (
    ("GET", "/", status_page),
    ("GET", "/status.json", status_json),
)
