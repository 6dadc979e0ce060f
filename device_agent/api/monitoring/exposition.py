"""The counters in Prometheus' text format: Triton's names for what Triton measures too, `edgeonnx_` for the rest.

Dashboards made for Triton read `nv_*` as they are: counters without the suffix `_total`, times in microseconds summed
up. prometheus_client writes every counter with that suffix, so those lines are written here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest

from device_agent.api.monitoring.generation_metrics import generation_metrics
from device_agent.api.monitoring.update_metrics import update_metrics
from device_agent.models.loaded import LoadedDecoder, LoadedEncoder
from device_agent.models.states import ModelState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from device_agent.api.monitoring.metrics import Metrics
    from device_agent.inference.queue.batcher import QueueState
    from device_agent.models.loaded import LoadedModel
    from device_agent.models.registry import Models

    Queues = Sequence[tuple[LoadedEncoder, QueueState]]
    Samples = Iterable[tuple[Mapping[str, str], float]]

MEMINFO = Path("/proc/meminfo")
MODEL = ("model", "version")

TRITON_DURATIONS = {
    "nv_inference_request_duration_us": ("success", "Time in the agent, from the request's head to its answer"),
    "nv_inference_queue_duration_us": ("queue", "Time that requests waited for a runner"),
    "nv_inference_compute_input_duration_us": ("compute_input", "Time for making input tensors (tokenizing)"),
    "nv_inference_compute_infer_duration_us": ("compute_infer", "Time in the runtime"),
    "nv_inference_compute_output_duration_us": ("compute_output", "Time for making answers out of output tensors"),
}
"""Triton's sums of times, each with the field of `ModelStatistics`; all are of requests answered with a result."""


QUEUE_REFUSALS = {"full": "refused_full", "late": "refused_late", "expired": "expired", "cancelled": "cancelled"}
"""Why a queue did not answer, each with the field of `Counts`."""


def exposition(metrics: Metrics, models: Models, cpu_utilization: float | None) -> bytes:
    """Everything in Prometheus' text format, version 0.0.4.

    Args:
        metrics: The counters.
        models: The models that serve.
        cpu_utilization: Of the machine, 0.0 to 1.0; None: unknown.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Collector(metrics, models))
    serving = [live.loaded for live in models.all()]
    return "".join(_triton(metrics, serving, cpu_utilization)).encode() + bytes(generate_latest(registry))


def _triton(metrics: Metrics, serving: Sequence[LoadedModel], cpu_utilization: float | None) -> Iterator[str]:
    found = [(labels_of(loaded), metrics.statistics.of(loaded), loaded) for loaded in serving]

    def each(value: str) -> Samples:
        return [(labels, getattr(stats, value)) for labels, stats, _ in found]

    yield triton_family(
        "nv_inference_request_success",
        "Requests that were answered with a result",
        [(labels, stats.success.count) for labels, stats, _ in found],
    )
    yield triton_family(
        "nv_inference_request_failure",
        "Requests that were answered with an error, by Triton's reason",
        [
            ({**labels, "reason": reason}, count)
            for labels, _, loaded in found
            for reason, count in sorted(_failures(metrics, loaded).items())
        ],
    )
    yield triton_family("nv_inference_count", "Rows (texts) that were answered", each("inference_count"))
    yield triton_family(
        "nv_inference_exec_count",
        "Runs of the model; smaller than the rows where rows were batched",
        [(labels, loaded.runs) for labels, _, loaded in found],
    )
    for name, (field, text) in TRITON_DURATIONS.items():
        yield triton_family(
            name, text, [(labels, round(getattr(stats, field).seconds * 1e6)) for labels, stats, _ in found]
        )
    yield triton_family(
        "nv_inference_pending_request_count",
        "Requests that wait for a runner",
        [(labels, loaded.pending) for labels, _, loaded in found],
        kind="gauge",
    )
    for name, (value, text) in _machine(cpu_utilization).items():
        yield triton_family(name, text, [({}, value)], kind="gauge")


def _machine(cpu_utilization: float | None) -> dict[str, tuple[float, str]]:
    """Triton's metrics of the machine; what is not known is left out."""
    values = parse_memory(_read(MEMINFO))
    found = {}
    if cpu_utilization is not None:
        text = "CPU utilization of the machine since the last scrape, 0 to 1"
        found["nv_cpu_utilization"] = (round(cpu_utilization, 4), text)
    if values is not None:
        found["nv_cpu_memory_total_bytes"] = (values[0], "Memory of the machine")
        found["nv_cpu_memory_used_bytes"] = (values[0] - values[1], "Memory of the machine that is not available")
    return found


def parse_memory(text: str) -> tuple[int, int] | None:
    """Total and available bytes in the text of /proc/meminfo (proc_meminfo(5)); None if they are not there."""
    values = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable") and value.endswith(" kB"):
            values[name] = int(value.removesuffix(" kB")) * 1024
    return (values["MemTotal"], values["MemAvailable"]) if len(values) == 2 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _failures(metrics: Metrics, loaded: LoadedModel) -> dict[str, int]:
    from device_agent.api.monitoring.metrics import TRITON_REASONS

    # Every reason is there from the start, as in Triton: a rate over a series that begins at 1 misses the first.
    return {reason: metrics.of(loaded).failures[reason] for reason in TRITON_REASONS}


def triton_family(name: str, text: str, samples: Samples, *, kind: str = "counter") -> str:
    """One metric in Prometheus' text format, its name as it is; empty without samples."""
    lines = []
    for labels, value in samples:
        pairs = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {value:.15g}" if pairs else f"{name} {value:.15g}")
    return "\n".join([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]) + "\n" if lines else ""


def escape(value: str) -> str:
    """A label's value as the text format wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels_of(loaded: LoadedModel) -> dict[str, str]:
    """The labels of a model."""
    return {"model": loaded.name, "version": loaded.version}


class _Collector:
    """Gives prometheus_client our metrics when it asks."""

    def __init__(self, metrics: Metrics, models: Models) -> None:
        self._metrics = metrics
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        serving = [live.loaded for live in self._models.all()]
        queues = [(each, each.batcher.state()) for each in serving if isinstance(each, LoadedEncoder)]
        decoders = [each for each in serving if isinstance(each, LoadedDecoder)]
        yield from _agent(self._metrics, self._models)
        yield from _queues(queues)
        yield from _batches(queues)
        yield from generation_metrics(
            [(each, each.generator.state(), self._metrics.of(each).generated) for each in decoders]
        )
        yield from _requests(self._metrics, serving)
        yield from _engines(serving)
        yield from _loading(self._models, serving)
        if self._metrics.updates is not None:
            yield from update_metrics(self._metrics.updates())


def _key(loaded: LoadedModel) -> list[str]:
    return [loaded.name, loaded.version]


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _agent(metrics: Metrics, models: Models) -> Iterator[Metric]:
    states = [state.value for state in (ModelState.LOADING, ModelState.READY, ModelState.DRAINING)]
    yield _gauge(
        "edgeonnx_agent_state",
        "1 for the state of the agent as a whole",
        ["state"],
        [([state], float(models.state == state)) for state in states],
    )
    yield _gauge("edgeonnx_requests_in_flight", "Requests being answered", [], [([], models.in_flight)])
    yield _counter(
        "edgeonnx_http_responses",
        "HTTP responses by status",
        ["status"],
        [([str(status)], count) for status, count in sorted(metrics.responses.items())],
    )
    yield _counter(
        "edgeonnx_refusals",
        "Requests that got no result, by reason",
        ["reason"],
        [([reason], count) for reason, count in sorted(metrics.refusals.items())],
    )


def _queues(queues: Queues) -> Iterator[Metric]:
    table = {
        "queue_requests": ("Requests that wait for a runner", "requests"),
        "queue_rows": ("Rows that wait for a runner", "rows"),
        "queue_tokens": ("Tokens that wait for a runner", "tokens"),
        "running_tokens": ("Tokens of the batches that run now, padding included", "running_tokens"),
        "queue_wait_predicted_seconds": ("Predicted wait of a request that comes now", "wait_seconds"),
        "tokens_per_second": ("Speed of all runners together, as the last batches went", "tokens_per_second"),
        "runners": ("Threads that run the model", "runners"),
    }
    for name, (text, field) in table.items():
        yield _gauge(
            f"edgeonnx_{name}", text, MODEL, [(_key(loaded), getattr(state, field)) for loaded, state in queues]
        )


def _batches(queues: Queues) -> Iterator[Metric]:
    found = [(_key(loaded), state.counts) for loaded, state in queues]
    rows = HistogramMetricFamily("edgeonnx_batch_rows", "Rows of each run of the model", labels=MODEL)
    tokens = HistogramMetricFamily("edgeonnx_batch_tokens", "Tokens of each run, padding included", labels=MODEL)
    for key, counts in found:
        rows.add_metric(key, counts.batch_rows.cumulative(), counts.batch_rows.total)
        tokens.add_metric(key, counts.batch_tokens.cumulative(), counts.batch_tokens.total)
    yield rows
    yield tokens
    yield _counter(
        "edgeonnx_batch_useful_tokens",
        "Tokens of all runs, padding left out",
        MODEL,
        [(k, c.tokens_run) for k, c in found],
    )
    yield _counter(
        "edgeonnx_runner_seconds", "Time of all runners in the runtime", MODEL, [(k, c.run_seconds) for k, c in found]
    )
    yield _counter(
        "edgeonnx_queue_refusals",
        "Requests that the queue refused or dropped, by reason",
        [*MODEL, "reason"],
        [([*key, reason], getattr(counts, field)) for key, counts in found for reason, field in QUEUE_REFUSALS.items()],
    )


def _requests(metrics: Metrics, serving: Sequence[LoadedModel]) -> Iterator[Metric]:
    duration = HistogramMetricFamily(
        "edgeonnx_request_duration_seconds", "Time of answered requests in the agent", labels=MODEL
    )
    wait = HistogramMetricFamily(
        "edgeonnx_queue_wait_seconds", "Time that answered requests waited for a runner", labels=MODEL
    )
    for loaded in serving:
        counters = metrics.of(loaded)
        duration.add_metric(_key(loaded), counters.duration.cumulative(), counters.duration.total)
        wait.add_metric(_key(loaded), counters.queue_wait.cumulative(), counters.queue_wait.total)
    yield duration
    yield wait
    yield _counter(
        "edgeonnx_tokens",
        "Tokens that were answered, without padding",
        MODEL,
        [(_key(loaded), metrics.of(loaded).tokens) for loaded in serving],
    )


def _engines(serving: Sequence[LoadedModel]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "edgeonnx_model_info",
        "What serves: 1, with the facts as labels",
        labels=[*MODEL, "variant", "precision", "provider", "tokenizer"],
    )
    variants = GaugeMetricFamily(
        "edgeonnx_variant_used",
        "1 for the variant that serves; 0 for each other one, with the reason as a label",
        labels=[*MODEL, "variant", "precision", "reason"],
    )
    share = GaugeMetricFamily(
        "edgeonnx_assignment_share", "Part of the graph's nodes that a provider runs", labels=[*MODEL, "provider"]
    )
    fallbacks = CounterMetricFamily(
        "edgeonnx_provider_fallbacks", "Providers that failed while serving and were replaced", labels=MODEL
    )
    for loaded in serving:
        engine, key = loaded.engine, _key(loaded)
        info.add_metric([*key, engine.variant.name, engine.variant.precision, engine.provider, loaded.tokenizer], 1)
        for name, precision, reason in loaded.variants():
            variants.add_metric([*key, name, precision, reason or ""], float(reason is None))
        for provider in engine.assignment.nodes:
            share.add_metric([*key, provider], engine.assignment.share(provider))
        fallbacks.add_metric(key, engine.fallbacks)
    yield from (info, variants, share, fallbacks)


def _loading(models: Models, serving: Sequence[LoadedModel]) -> Iterator[Metric]:
    yield _gauge(
        "edgeonnx_model_memory_bytes",
        "Memory that loading the model took, measured",
        MODEL,
        [(_key(loaded), loaded.memory_bytes) for loaded in serving],
    )
    yield _gauge(
        "edgeonnx_model_load_seconds",
        "Time of each step of loading",
        [*MODEL, "step"],
        [([*_key(loaded), step], seconds) for loaded in serving for step, seconds in loaded.seconds.items()],
    )
    yield _counter(
        "edgeonnx_model_events",
        "Models that were loaded, those of them that took another version's place, and loads that failed",
        ["event"],
        [(["loaded"], models.loads), (["swapped"], models.swaps), (["failed"], models.failed_loads)],
    )
