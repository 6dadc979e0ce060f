"""The statistics extension: what each model answered and how long that took, in Triton's form.

The number of runs comes from the batcher, which makes them. For the times of each batch size, a request brings its
share of the runs that held its rows, so that the shares of all requests of one run are one run together. That is exact
for requests that ran in one batch; for those that were split over several it takes the batches as equally large.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_agent.api.open_inference.replies import json_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context
    from device_agent.inference.rows import Answer
    from device_agent.models.loaded import LoadedModel


@dataclass(kw_only=True)
class Durations:
    """How often something was done, and how long that took together."""

    count: float = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: float = 1) -> None:
        """Count it, `count` times, in `seconds` together."""
        self.count += count
        self.seconds += seconds

    def as_dict(self) -> dict[str, int]:
        """Triton's form: whole numbers, nanoseconds."""
        return {"count": round(self.count), "ns": round(self.seconds * 1e9)}


@dataclass(kw_only=True)
class BatchDurations:
    """The runs of one batch size."""

    compute_input: Durations = field(default_factory=Durations)
    compute_infer: Durations = field(default_factory=Durations)
    compute_output: Durations = field(default_factory=Durations)


class ModelStatistics:
    """The counters of one version of a model. All times are in seconds; to be used in the event loop's thread.

    Args:
        now: Seconds since 1970.

    Attributes:
        success: Requests answered with a result, and their time in the agent.
        fail: Requests answered with an error, and their time in the agent.
        queue: Waiting for a runner, of the requests answered with a result, as are the following.
        compute_input: Making input tensors: tokenizing.
        compute_infer: In the runtime.
        compute_output: Making responses.
        inference_count: Rows that were answered.
        last_inference: When the last request was answered, in milliseconds since 1970; 0: never.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.success = Durations()
        self.fail = Durations()
        self.queue = Durations()
        self.compute_input = Durations()
        self.compute_infer = Durations()
        self.compute_output = Durations()
        self.inference_count = 0
        self.last_inference = 0
        self._batches: dict[int, BatchDurations] = {}

    def succeeded(self, answer: Answer, output_seconds: float, total_seconds: float) -> None:
        """Count a request that was answered with a result.

        Args:
            answer: The answer.
            output_seconds: Making the response.
            total_seconds: From the request's head to its response.
        """
        rows = len(answer.lengths)
        self.success.add(total_seconds)
        self.queue.add(answer.queue_seconds)
        self.compute_input.add(answer.tokenize_seconds)
        self.compute_infer.add(answer.infer_seconds)
        self.compute_output.add(output_seconds)
        self.inference_count += rows
        self.last_inference = int(self._now() * 1e3)
        if answer.runs:
            self._count_runs(answer, rows, output_seconds)

    def generated(self, rows: int, queue_seconds: float, total_seconds: float) -> None:
        """Count a request for generated text: what is not the wait for a place is taken for the runtime's.

        Args:
            rows: Sequences.
            queue_seconds: Until the last of them had a place.
            total_seconds: From the request's head to the last token.
        """
        self.success.add(total_seconds)
        self.queue.add(queue_seconds)
        self.compute_infer.add(max(0.0, total_seconds - queue_seconds))
        self.inference_count += rows
        self.last_inference = int(self._now() * 1e3)

    def _count_runs(self, answer: Answer, rows: int, output_seconds: float) -> None:
        batch_rows = max(answer.batch_rows, rows)
        part = rows / batch_rows
        share = part * answer.runs
        size = round(batch_rows / answer.runs)
        batch = self._batches.get(size)
        if batch is None:
            batch = self._batches[size] = BatchDurations()
        batch.compute_input.add(answer.tokenize_seconds, share)
        batch.compute_infer.add(answer.infer_seconds * part, share)
        batch.compute_output.add(output_seconds, share)

    def failed(self, seconds: float) -> None:
        """Count a request that was answered with an error, `seconds` after its head came."""
        self.fail.add(seconds)

    def as_dict(self, name: str, version: str, *, runs: int, memory_bytes: int = 0) -> dict[str, object]:
        """Triton's form of one model's statistics.

        Args:
            name: The model's name.
            version: Its version.
            runs: Calls of the runtime.
            memory_bytes: Memory that loading it took; 0: not measured.
        """
        memory = [{"type": "CPU", "id": 0, "byte_size": memory_bytes}] if memory_bytes else []
        nothing = Durations().as_dict()
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.inference_count,
            "execution_count": runs,
            "inference_stats": {
                "success": self.success.as_dict(),
                "fail": self.fail.as_dict(),
                "queue": self.queue.as_dict(),
                "compute_input": self.compute_input.as_dict(),
                "compute_infer": self.compute_infer.as_dict(),
                "compute_output": self.compute_output.as_dict(),
                "cache_hit": nothing,
                "cache_miss": nothing,
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": batch.compute_input.as_dict(),
                    "compute_infer": batch.compute_infer.as_dict(),
                    "compute_output": batch.compute_output.as_dict(),
                }
                for size, batch in sorted(self._batches.items())
            ],
            "memory_usage": memory,
        }


class Statistics:
    """The statistics of all models, by name and version."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], ModelStatistics] = {}

    def of(self, loaded: LoadedModel) -> ModelStatistics:
        """The counters of a model; they begin at 0."""
        key = (loaded.name, loaded.version)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = ModelStatistics()
        return found

    def forget_all_but(self, serving: list[LoadedModel]) -> None:
        """Drop the counters of models that no longer serve."""
        kept = {(loaded.name, loaded.version) for loaded in serving}
        for key in self._models.keys() - kept:
            del self._models[key]


def model_statistics(context: Context, name: str | None = None, version: str | None = None) -> list[dict[str, object]]:
    """The statistics of one model, or of all that serve, in Triton's form.

    Raises:
        ModelNotFoundError: There is none of that name or version.
    """
    lives = context.models.all() if not name else [context.models.find(name, version)]
    found = []
    for live in lives:
        loaded = live.loaded
        counters = context.metrics.statistics.of(loaded)
        found.append(counters.as_dict(loaded.name, loaded.version, runs=loaded.runs, memory_bytes=loaded.memory_bytes))
    return found


async def statistics(context: Context, request: Request) -> Response:
    """`GET /v2/models/{name}/stats`, of one version, or `GET /v2/models/stats`."""
    params = request.path_params
    return json_response({"model_stats": model_statistics(context, params.get("name"), params.get("version"))})
