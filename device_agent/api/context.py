"""What every endpoint shares: the models, the limits, the metrics, and the way of one inference request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.responses import Response

from device_agent.api.body import read_body
from device_agent.inference.rows import numbers_per_row
from edgeonnx.errors import ClientGoneError, InferenceError, InvalidRequestError, RequestTooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request

    from device_agent.api.metrics import Metrics
    from device_agent.config import AgentConfig
    from device_agent.inference.batcher import Ticket
    from device_agent.inference.rows import Answer, Rows
    from device_agent.loading import LoadedModel
    from device_agent.models import LiveModel, Models

    Prepare = Callable[["Context", Request, bytes], "Job"]

STARTED = "edgeonnx.started"
"""Key of the ASGI scope: when the request's head was parsed, by `time.perf_counter`."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A response's body.

    Attributes:
        data: The bytes.
        media_type: Their type.
        headers: Further headers.
    """

    data: bytes
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A checked request: what is to run, and how the answer becomes a response.

    Attributes:
        live: The model.
        texts: Texts, which are tokenized when the request is admitted; or None, where `rows` are given.
        pairs: The second text of each pair, or None.
        rows: Rows of a client that made its own tokens.
        outputs: Names of the outputs that the response needs; None for all.
        seconds: How long the request may take, as the client said it; None: the agent's default.
        render: Makes the response; called in the event loop, or in a thread for large answers.
    """

    live: LiveModel
    texts: Sequence[str] | None = None
    pairs: Sequence[str] | None = None
    rows: Rows | None = None
    outputs: tuple[str, ...] | None = None
    seconds: float | None = None
    render: Callable[[Answer], Rendered]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The agent behind the endpoints."""

    models: Models
    config: AgentConfig
    metrics: Metrics

    async def infer(self, request: Request, prepare: Prepare) -> Response:
        """Answer one inference request.

        The response's `Server-Timing` header gives milliseconds: `tokenize` (text to tokens), `infer`
        (`InferenceSession.run`), `queue` (waiting for a runner) and `total` (from the parsed head to the finished
        body). What the agent adds is `total` less `tokenize` less `infer`.

        Args:
            request: The request, its body not yet read.
            prepare: Checks the body, and finds the model.

        Raises:
            ServingError: The request is not answered with a result.
        """
        self.models.check_ready()
        data = await read_body(request, self.config.limits.max_body_bytes)
        job = prepare(self, request, data)
        with job.live.use() as loaded:
            try:
                return await self._answer(request, job, loaded)
            except Exception:
                self.metrics.failed(loaded)
                raise

    async def _answer(self, request: Request, job: Job, loaded: LoadedModel) -> Response:
        rows, tokenize_seconds = await self._rows(job, loaded)
        check_answer_size(rows, job.outputs, loaded, self.config.limits.max_answer_numbers)
        queue = self.config.queue
        seconds = min(job.seconds or queue.deadline_seconds, queue.max_deadline_seconds)
        ticket = loaded.batcher.submit(rows, job.outputs, seconds=seconds)
        try:
            answer = await _await_unless_gone(request, ticket)
        except asyncio.CancelledError:
            loaded.batcher.cancel(ticket)
            if not ticket.gone:
                raise
            raise ClientGoneError("the client left before its answer was ready") from None
        except InvalidRequestError as error:
            if job.texts is None:
                raise
            # The client chose no ids, so this is ours.
            raise InferenceError("the runtime refuses the tokenized text", found=str(error)) from None
        answer.tokenize_seconds = tokenize_seconds
        answered = time.perf_counter()
        rendered = job.render(answer)
        now = time.perf_counter()
        total = now - request.scope[STARTED]
        self.metrics.succeeded(loaded, answer, output=now - answered, total=total)
        timing = (
            f"tokenize;dur={answer.tokenize_seconds * 1e3:.3f}, infer;dur={answer.infer_seconds * 1e3:.3f}, "
            f"queue;dur={answer.queue_seconds * 1e3:.3f}, total;dur={total * 1e3:.3f}"
        )
        return Response(
            rendered.data, media_type=rendered.media_type, headers={"Server-Timing": timing, **rendered.headers}
        )

    async def _rows(self, job: Job, loaded: LoadedModel) -> tuple[Rows, float]:
        """The request's rows, and the seconds that tokenizing took."""
        if job.rows is not None:
            return job.rows, 0.0
        texts = job.texts or ()
        started = time.perf_counter()
        characters = sum(map(len, texts)) + (sum(map(len, job.pairs)) if job.pairs else 0)
        if characters <= self.config.queue.inline_characters:
            rows = loaded.text.rows(texts, job.pairs)
        else:
            rows = await asyncio.to_thread(loaded.text.rows, texts, job.pairs)
        return rows, time.perf_counter() - started


async def _await_unless_gone(request: Request, ticket: Ticket) -> Answer:
    """The ticket's answer; its future is cancelled if the client leaves meanwhile."""
    # After the body, the only message that can still come says that the client left.
    left: asyncio.Future[object] = asyncio.ensure_future(request.receive())

    def on_left(_: asyncio.Future[object]) -> None:
        if not left.cancelled():
            ticket.gone = True
            ticket.future.cancel()

    left.add_done_callback(on_left)
    try:
        return await ticket.future
    finally:
        left.remove_done_callback(on_left)
        left.cancel()


def check_answer_size(rows: Rows, outputs: Sequence[str] | None, loaded: LoadedModel, limit: int) -> None:
    """Refuse a request whose answer would be too large.

    Raises:
        RequestTooLargeError: It would.
    """
    specs = loaded.manifest.entry_component.signature.outputs
    wanted = [spec for spec in specs if outputs is None or spec.name in outputs]
    count, width = len(rows.lengths), int(rows.lengths.max())
    numbers = count * sum(numbers_per_row(spec, width) for spec in wanted)
    if numbers > limit:
        raise RequestTooLargeError(
            "the answer would be too large",
            where=f"{count} rows of up to {width} tokens",
            expected=f"at most {limit:,} numbers in one answer",
            found=f"{numbers:,}",
            hint="send fewer texts in one request, or ask for fewer outputs",
        )
