"""What every endpoint shares: the live model, the limits, the metrics, and the way of one inference request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from device_agent.api.body import parse_object, read_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from device_agent.api.metrics import Metrics
    from device_agent.config import AgentConfig
    from device_agent.inference.processing import Answer
    from device_agent.models import LiveModel, LoadedModel

    Prepare = Callable[[dict[str, object], LoadedModel], "Task"]

STARTED = "edgeonnx.started"
"""Key of the ASGI scope: when the request's head was parsed, by `time.perf_counter`."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A checked request: the blocking work for the runner, and how its answer becomes the response's body."""

    work: Callable[[], Answer]
    render: Callable[[Answer], bytes]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The agent behind the endpoints."""

    live: LiveModel
    config: AgentConfig
    metrics: Metrics

    async def infer(
        self, request: Request, prepare: Prepare, *, name: str | None = None, version: str | None = None
    ) -> Response:
        """Answer one inference request.

        The response's `Server-Timing` header gives milliseconds: `tokenize` (text to tensors), `infer`
        (`InferenceSession.run`), `queue` (waiting for the runner) and `total` (from the parsed head to the finished
        body). What the agent adds is `total` less `tokenize` less `infer`.

        Args:
            request: The request, its body not yet read.
            prepare: Checks the parsed body against the model.
            name: Name of the model, where the path gives it.
            version: Version of the model, where the path gives it.

        Raises:
            ServingError: The request is not answered with a result.
        """
        try:
            with self.live.use(name, version) as loaded:
                body = parse_object(await read_body(request, self.config.max_body_bytes))
                task = prepare(body, loaded)
                done = await loaded.runner.submit(task.work)
                answered = time.perf_counter()
                data = task.render(done.result)
        except Exception:
            self.metrics.failed()
            raise
        answer, queue = done.result, done.queue_seconds
        now = time.perf_counter()
        total = now - request.scope[STARTED]
        self.metrics.succeeded(answer, queue=queue, output=now - answered, total=total)
        timing = (
            f"tokenize;dur={answer.tokenize_seconds * 1e3:.3f}, infer;dur={answer.infer_seconds * 1e3:.3f}, "
            f"queue;dur={queue * 1e3:.3f}, total;dur={total * 1e3:.3f}"
        )
        return Response(data, media_type="application/json", headers={"Server-Timing": timing})
