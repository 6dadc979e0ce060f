"""Prometheus metrics: Triton's names for what Triton measures too, names with `edgeonnx_` for the rest.

Dashboards made for Triton read `nv_inference_*` as they are. prometheus_client gives every counter the suffix
`_total`, which Triton's names do not have, so those few lines are written here; times are in microseconds, summed up.
All counting happens in the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

if TYPE_CHECKING:
    from device_agent.inference.rows import Answer
    from device_agent.loading import LoadedModel
    from device_agent.models import Models

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# From a fraction of a millisecond (a short text on a GPU) to a request of thousands of texts.
DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(kw_only=True)
class TritonCounters:
    """Triton's counters for the one model, in the order in which they are written."""

    nv_inference_request_success: int = 0
    nv_inference_request_failure: int = 0
    nv_inference_count: int = 0
    nv_inference_exec_count: int = 0
    nv_inference_request_duration_us: int = 0
    nv_inference_queue_duration_us: int = 0
    nv_inference_compute_input_duration_us: int = 0
    nv_inference_compute_infer_duration_us: int = 0
    nv_inference_compute_output_duration_us: int = 0

    HELP = {  # noqa: RUF012 - a table that nothing changes
        "nv_inference_request_success": "Requests that were answered with a result",
        "nv_inference_request_failure": "Requests that were answered with an error",
        "nv_inference_count": "Rows (texts) that were answered",
        "nv_inference_exec_count": "Runs of the model; smaller than the rows where rows were batched",
        "nv_inference_request_duration_us": "Time in the agent, from the request's head to its answer",
        "nv_inference_queue_duration_us": "Time that requests waited for the runner",
        "nv_inference_compute_input_duration_us": "Time for making input tensors (tokenizing)",
        "nv_inference_compute_infer_duration_us": "Time in the runtime",
        "nv_inference_compute_output_duration_us": "Time for making answers out of output tensors",
    }

    def render(self, model: str, version: str) -> str:
        """The counters in Prometheus' text format. Names and versions of bundles need no escaping."""
        lines = []
        for field in fields(self):
            lines.append(f"# HELP {field.name} {self.HELP[field.name]}")
            lines.append(f"# TYPE {field.name} counter")
            lines.append(f'{field.name}{{model="{model}",version="{version}"}} {getattr(self, field.name)}')
        return "\n".join(lines) + "\n"


class Metrics:
    """All metrics of one agent."""

    def __init__(self) -> None:
        self.triton = TritonCounters()
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._state = Gauge("edgeonnx_model_state", "1 for the model's state", ["state"], registry=self._registry)
        self._info = Gauge(
            "edgeonnx_model_info",
            "What serves: 1, with the facts as labels",
            ["model", "version", "variant", "precision", "provider", "tokenizer"],
            registry=self._registry,
        )
        self._variants = Gauge(
            "edgeonnx_variant_used",
            "1 for the variant that serves; 0 for each other one, with the reason as a label",
            ["variant", "precision", "reason"],
            registry=self._registry,
        )
        self._load = Gauge(
            "edgeonnx_model_load_seconds", "Time of each step of loading", ["step"], registry=self._registry
        )
        self._in_flight = Gauge("edgeonnx_requests_in_flight", "Requests being answered", registry=self._registry)
        self._tokens = Counter("edgeonnx_tokens", "Tokens that were answered, without padding", registry=self._registry)
        self._responses = Counter(
            "edgeonnx_http_responses", "HTTP responses by status", ["status"], registry=self._registry
        )
        self._duration = Histogram(
            "edgeonnx_request_duration_seconds",
            "Time of inference requests in the agent",
            buckets=DURATION_BUCKETS,
            registry=self._registry,
        )

    def succeeded(self, loaded: LoadedModel, answer: Answer, *, output: float, total: float) -> None:
        """Count an answered inference request; times in seconds."""
        triton = self.triton
        triton.nv_inference_request_success += 1
        triton.nv_inference_count += len(answer.lengths)
        triton.nv_inference_exec_count += answer.runs
        triton.nv_inference_request_duration_us += _microseconds(total)
        triton.nv_inference_queue_duration_us += _microseconds(answer.queue_seconds)
        triton.nv_inference_compute_input_duration_us += _microseconds(answer.tokenize_seconds)
        triton.nv_inference_compute_infer_duration_us += _microseconds(answer.infer_seconds)
        triton.nv_inference_compute_output_duration_us += _microseconds(output)
        self._tokens.inc(int(answer.lengths.sum()))
        self._duration.observe(total)

    def failed(self, loaded: LoadedModel) -> None:
        """Count an inference request that was answered with an error."""
        self.triton.nv_inference_request_failure += 1

    def responded(self, status: int) -> None:
        """Count an HTTP response."""
        self._responses.labels(status).inc()

    def render(self, models: Models) -> bytes:
        """Everything in Prometheus' text format; Triton's names appear once there is a model to label them with."""
        self._in_flight.set(models.in_flight)
        text = bytes(generate_latest(self._registry))
        for live in models.all():
            text = self.triton.render(live.loaded.name, live.loaded.version).encode() + text
        return text


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
