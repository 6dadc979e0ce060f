"""What the agent counts: `exposition` writes it for Prometheus, `status` for people.

All counting happens in the event loop's thread, in plain numbers; what can be asked for when somebody looks (queues,
providers, memory) is not counted at all.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from device_agent.api.monitoring.generation import Generated, GenerationCounters
from device_agent.api.monitoring.histogram import Histogram, RecentValues
from device_agent.api.open_inference.statistics import Statistics
from edgeonnx.errors import (
    ClientGoneError,
    DeadlineExceededError,
    EdgeOnnxError,
    ForbiddenError,
    InferenceError,
    InvalidRequestError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    RequestTooLargeError,
    SlowClientError,
    UnauthorizedError,
    UnsupportedEncodingError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.monitoring.updates import UpdatesView
    from device_agent.inference.rows import Answer
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.registry import Models

    Handler = Callable[[Request, Exception], Awaitable[Response]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a fraction of a millisecond (a short text on a GPU) to a request of thousands of texts.
DURATION_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

REASONS: dict[type[EdgeOnnxError], str] = {
    InvalidRequestError: "invalid",
    RequestTooLargeError: "too_large",
    UnsupportedEncodingError: "unsupported_encoding",
    SlowClientError: "slow_client",
    ClientGoneError: "client_gone",
    UnauthorizedError: "unauthorized",
    ForbiddenError: "forbidden",
    ModelNotFoundError: "model_not_found",
    MemoryBudgetError: "memory_budget",
    OverloadedError: "overloaded",
    DeadlineExceededError: "deadline",
    NotReadyError: "not_ready",
    InferenceError: "runtime",
}
"""Why a request got no result, in a word; any other error is "internal"."""

FAULTS = frozenset({"runtime", "internal"})
"""Reasons that are the agent's own, and so perhaps the model's."""

REJECTED, CANCELED, BACKEND, OTHER = TRITON_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's words for why a model did not answer."""


def reason_of(error: BaseException) -> str:
    """The word of `REASONS` for an error."""
    return next((REASONS[kind] for kind in type(error).__mro__ if kind in REASONS), "internal")


def triton_reason_of(error: BaseException) -> str:
    """Triton's word: it was not run in time, its client left, the runtime failed, or something else."""
    if isinstance(error, DeadlineExceededError | OverloadedError):
        return REJECTED
    if isinstance(error, ClientGoneError):
        return CANCELED
    return BACKEND if isinstance(error, InferenceError) else OTHER


class ModelCounters:
    """What one version of a model did, beside Triton's statistics. Times are in seconds.

    Attributes:
        failures: Requests answered with an error, by Triton's reason.
        tokens: Tokens of the answered requests, without padding.
        duration: Time of each answered request in the agent.
        queue_wait: Time that each answered request waited for a runner.
        recent: The answered requests of the last minute.
        generated: What it generated, where it does.
    """

    __slots__ = ("duration", "failures", "generated", "queue_wait", "recent", "tokens")

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self.tokens = 0
        self.duration = Histogram(DURATION_BOUNDS)
        self.queue_wait = Histogram(DURATION_BOUNDS)
        self.recent = RecentValues(DURATION_BOUNDS)
        self.generated = GenerationCounters()


class Watcher(Protocol):
    """Is told of each inference request: whoever judges a new version."""

    def answered(self, loaded: LoadedModel, seconds: float) -> None:
        """A request was answered; it took so long, without the wait for a runner."""
        ...

    def generated(self, loaded: LoadedModel, sequence: Generated) -> None:
        """A sequence of a request came to its end."""
        ...

    def faulted(self, loaded: LoadedModel) -> None:
        """A request failed for a reason of `FAULTS`."""
        ...


class Metrics:
    """Everything that one agent counts.

    Args:
        clock: Seconds of a clock that never goes back.

    Attributes:
        statistics: Triton's statistics of each model.
        responses: HTTP responses by status.
        refusals: Requests that got no result, by the word of `REASONS`.
        started: When the agent began to count, by `clock`.
        watcher: Is told of each inference request, or None.
        updates: Tells about updates; None: there are none.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.statistics = Statistics()
        self.responses: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()
        self.clock = clock
        self.started = clock()
        self.watcher: Watcher | None = None
        self.updates: Callable[[], UpdatesView] | None = None
        self._models: dict[tuple[str, str], ModelCounters] = {}
        self._cpu = CpuMeter()

    def of(self, loaded: LoadedModel) -> ModelCounters:
        """The counters of a model; they begin at 0."""
        key = (loaded.name, loaded.version)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelCounters()
        return found

    def succeeded(self, loaded: LoadedModel, answer: Answer, *, output: float, total: float) -> None:
        """Count an inference request that was answered with a result.

        Args:
            loaded: The model.
            answer: The answer.
            output: Seconds that making the response took.
            total: Seconds from the request's head to its response.
        """
        self.statistics.of(loaded).succeeded(answer, output, total)
        counters = self.of(loaded)
        tokens = int(answer.lengths.sum())
        counters.tokens += tokens
        counters.duration.observe(total)
        counters.queue_wait.observe(answer.queue_seconds)
        counters.recent.add(self.clock(), total, len(answer.lengths), tokens)
        if self.watcher is not None:
            self.watcher.answered(loaded, total - answer.queue_seconds)

    def generated(self, loaded: LoadedModel, sequences: Sequence[Generated]) -> None:
        """Count a request for generated text that came to its end.

        Args:
            loaded: The model.
            sequences: What was generated: one for each choice, at least one.
        """
        total = max(sequence.total for sequence in sequences)
        queue = max(sequence.queue for sequence in sequences)
        tokens = sum(sequence.prompt_tokens + sequence.completion_tokens for sequence in sequences)
        self.statistics.of(loaded).generated(len(sequences), queue, total)
        counters = self.of(loaded)
        counters.tokens += tokens
        counters.duration.observe(total)
        counters.queue_wait.observe(queue)
        counters.recent.add(self.clock(), total, len(sequences), tokens)
        for sequence in sequences:
            counters.generated.add(sequence)
            if self.watcher is not None:
                self.watcher.generated(loaded, sequence)

    def failed(self, loaded: LoadedModel, error: BaseException | None = None, *, seconds: float = 0.0) -> None:
        """Count an inference request that was answered with an error.

        Args:
            loaded: The model.
            error: The error; None: unknown.
            seconds: From the request's head to the error.
        """
        self.statistics.of(loaded).failed(seconds)
        self.of(loaded).failures[OTHER if error is None else triton_reason_of(error)] += 1
        if self.watcher is not None and error is not None and reason_of(error) in FAULTS:
            self.watcher.faulted(loaded)

    def refused(self, error: BaseException) -> None:
        """Count a request, to whatever route, that was answered with an error."""
        self.refusals[reason_of(error)] += 1

    def counting(self, handler: Handler) -> Handler:
        """An exception handler that counts what it answers."""

        async def counted(request: Request, error: Exception) -> Response:
            self.refused(error)
            return await handler(request, error)

        return counted

    def responded(self, status: int) -> None:
        """Count an HTTP response."""
        self.responses[status] += 1

    def render(self, models: Models) -> bytes:
        """Everything in Prometheus' text format."""
        # It is imported by the first scrape: a start needs none of it.
        from device_agent.api.monitoring.exposition import exposition

        self.forget_all_but(models)
        return exposition(self, models, self._cpu.utilization())

    def forget_all_but(self, models: Models) -> None:
        """Drop the counters of models that no longer serve."""
        serving = [live.loaded for live in models.all()]
        self.statistics.forget_all_but(serving)
        for key in self._models.keys() - {(loaded.name, loaded.version) for loaded in serving}:
            del self._models[key]


class CpuMeter:
    """The machine's CPU utilization between two looks, from /proc/stat (proc_stat(5))."""

    def __init__(self) -> None:
        self._last = (0, 0)

    def utilization(self) -> float | None:
        """0.0 to 1.0 since the last look, or since the machine's start; None where there is no /proc."""
        try:
            with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123 - a scrape opens nothing slower
                times = parse_cpu_times(file.readline())
        except (OSError, ValueError):
            return None
        (busy, total), self._last = (times[0] - self._last[0], times[1] - self._last[1]), times
        return min(1.0, max(0.0, busy / total)) if total > 0 else 0.0


def parse_cpu_times(line: str) -> tuple[int, int]:
    """Busy and total time of all CPUs in the first line of /proc/stat, in ticks.

    Raises:
        ValueError: The line is not that.
    """
    values = line.split()
    if values[:1] != ["cpu"] or len(values) < 9:
        raise ValueError(f"not the line of all CPUs: {line[:40]!r}")
    # user nice system idle iowait irq softirq steal; what follows is part of user and nice.
    times = [int(value) for value in values[1:9]]
    return sum(times) - times[3] - times[4], sum(times)
