"""What every endpoint shares: the models, the limits, the metrics, and the way of one inference request."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from device_agent.api.edge.body import read_body
from device_agent.api.edge.exchange import exchange
from device_agent.api.monitoring.telemetry import SPAN, stage
from device_agent.config import usable_cpus
from device_agent.inference.rows import numbers_per_row
from device_agent.logs import FACTS, note
from device_agent.models.loaded import LoadedEncoder, encoder_of
from edgeonnx.errors import (
    ClientGoneError,
    DeadlineExceededError,
    InferenceError,
    InvalidRequestError,
    OverloadedError,
    RequestTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from starlette.requests import Request

    from device_agent.api.monitoring.metrics import Metrics
    from device_agent.config import AgentConfig
    from device_agent.inference.queue.tickets import Ticket
    from device_agent.inference.rows import Answer, Rows
    from device_agent.models.registry import LiveModel, Models

    Prepare = Callable[["Context", Request, bytes], "Job"]

STARTED = "edgeonnx.started"
"""Key of the ASGI scope: when the request's head was parsed, by `time.perf_counter`."""

INLINE_NUMBERS = 1 << 16
"""Answers of up to this many numbers are rendered in the event loop (a few milliseconds as JSON)."""


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
        tokenize: Makes the rows of `texts` and `pairs` where that differs from what the model's text path does; called
            in a thread for large requests.
        rows: Rows of a client that made its own tokens.
        outputs: Names of the outputs that the response needs; None for all.
        seconds: How long the request may take, as the client said it; None: the agent's default.
        render: Makes the response; called in the event loop, or in a thread for large answers.
    """

    live: LiveModel
    texts: Sequence[str] | None = None
    pairs: Sequence[str] | None = None
    tokenize: Callable[[], Rows] | None = None
    rows: Rows | None = None
    outputs: tuple[str, ...] | None = None
    seconds: float | None = None
    render: Callable[[Answer], Rendered]

    def render_in_thread(self, answer: Answer) -> bool:
        """Whether making the response would hold up other requests for too long."""
        return sum(value.size for value in answer.outputs.values()) > INLINE_NUMBERS


@dataclass(frozen=True, kw_only=True)
class Context:
    """The agent behind the endpoints.

    Attributes:
        models: The models that requests find.
        config: The settings.
        metrics: Where requests are counted.
        tokenizing: Threads for the texts of large requests; their number bounds how many are tokenized at once.
    """

    models: Models
    config: AgentConfig
    metrics: Metrics
    tokenizing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max(1, usable_cpus() // 2), thread_name_prefix="tokenize")
    )

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
        data = await read_body(request, self.config.limits, self.config.server)
        arrived = time.perf_counter()
        self._shed(request, data, arrived)
        job = prepare(self, request, data)
        served = await self._serve(job, arrived=arrived, started=request.scope[STARTED], request=request)
        answer, rendered = served.answer, served.rendered
        timing = (
            f"tokenize;dur={answer.tokenize_seconds * 1e3:.3f}, infer;dur={answer.infer_seconds * 1e3:.3f}, "
            f"queue;dur={answer.queue_seconds * 1e3:.3f}, total;dur={served.seconds * 1e3:.3f}"
        )
        return Response(
            rendered.data, media_type=rendered.media_type, headers={"Server-Timing": timing, **rendered.headers}
        )

    async def run(self, job: Job, *, started: float) -> Rendered:
        """Answer a checked request that came another way than over HTTP; cancelling it drops what still waits.

        Args:
            job: The request.
            started: When it came, by `time.perf_counter`.

        Raises:
            ServingError: The request is not answered with a result.
        """
        return (await self._serve(job, arrived=started, started=started)).rendered

    def _shed(self, request: Request, data: bytes, arrived: float) -> None:
        """Refuse before the body is parsed where the queue leaves no request a chance.

        At three times what the model can do most requests are refused, and what that costs is lost for the others. A
        body that speaks of a timeout may ask for more than the default time, so it is parsed.
        """
        name = request.path_params.get("name")
        candidates = self.models.all() if name is None else [self.models.find(name)]
        if len(candidates) != 1 or b"timeout" in data:
            return  # the model's name, or the time, is in the body
        loaded = candidates[0].loaded
        if not isinstance(loaded, LoadedEncoder):
            return  # `prepare` says which routes are for it
        try:
            loaded.batcher.check_chance(self.config.queue.deadline_seconds)
        except OverloadedError as error:
            self.metrics.failed(loaded, error, seconds=arrived - request.scope[STARTED])
            raise

    async def _serve(self, job: Job, *, arrived: float, started: float, request: Request | None = None) -> _Served:
        with job.live.use() as model:
            loaded = encoder_of(model)
            try:
                answer = await self._answer(job, loaded, arrived, request)
                answered = time.perf_counter()
                if job.render_in_thread(answer):
                    rendered = await asyncio.to_thread(job.render, answer)
                else:
                    rendered = job.render(answer)
                now = time.perf_counter()
            except Exception as error:
                self.metrics.failed(loaded, error, seconds=time.perf_counter() - started)
                raise
            self.metrics.succeeded(loaded, answer, output=now - answered, total=now - started)
            if request is not None:
                _record(request.scope, loaded, answer, arrived)
        return _Served(answer, rendered, now - started)

    async def _answer(self, job: Job, loaded: LoadedEncoder, arrived: float, request: Request | None) -> Answer:
        queue = self.config.queue
        seconds = min(job.seconds or queue.deadline_seconds, queue.max_deadline_seconds)
        rows, tokenize_seconds = await self._rows(job, loaded, seconds)
        check_answer_size(rows, job.outputs, loaded, self.config.limits.max_answer_numbers)
        left = seconds - (time.perf_counter() - arrived)
        if left <= 0:
            raise _too_late(seconds)
        ticket = loaded.batcher.submit(rows, job.outputs, seconds=left)
        try:
            answer = await (ticket.future if request is None else _await_unless_gone(request, ticket))
        except asyncio.CancelledError:
            loaded.batcher.cancel(ticket)
            if not ticket.gone:
                raise
            raise ClientGoneError("the client left before its answer was ready") from None
        except DeadlineExceededError:
            raise _too_late(seconds) from None  # in the words of the client's own time
        except InvalidRequestError as error:
            if job.texts is None:
                raise
            # The client chose no ids, so this is ours.
            raise InferenceError("the runtime refuses the tokenized text", found=str(error)) from None
        answer.tokenize_seconds = tokenize_seconds
        return answer

    async def _rows(self, job: Job, loaded: LoadedEncoder, seconds: float) -> tuple[Rows, float]:
        """The request's rows, and the seconds that tokenizing took."""
        if job.rows is not None:
            return job.rows, 0.0
        texts = job.texts or ()
        started = time.perf_counter()
        tokenize = job.tokenize or partial(loaded.text.rows, texts, job.pairs)
        characters = sum(map(len, texts)) + (sum(map(len, job.pairs)) if job.pairs else 0)
        if characters <= self.config.queue.inline_characters:
            return tokenize(), time.perf_counter() - started
        # Each text has a token at least, so what has no chance for that need not be tokenized.
        loaded.batcher.check_chance(seconds, tokens=len(texts))
        try:
            async with asyncio.timeout(seconds):
                rows = await asyncio.get_running_loop().run_in_executor(self.tokenizing, tokenize)
        except TimeoutError:
            raise _too_late(seconds) from None
        return rows, time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class _Served:
    """An answered request: the answer, its response's body, and the seconds from its head until then."""

    answer: Answer
    rendered: Rendered
    seconds: float


def _too_late(seconds: float) -> DeadlineExceededError:
    return DeadlineExceededError("the answer was not ready in time", expected=f"at most {seconds:.3g} s")


def _record(scope: MutableMapping[str, Any], loaded: LoadedEncoder, answer: Answer, arrived: float) -> None:
    """Tell the trace and the access line, where there are any, what a request took."""
    if SPAN in scope:
        at = arrived
        for name, seconds in (
            ("tokenize", answer.tokenize_seconds),
            ("queue", answer.queue_seconds),
            ("run", answer.infer_seconds),
        ):
            stage(scope, name, at, at + seconds)
            at += seconds
    if FACTS in scope:
        note(
            scope,
            model=loaded.name,
            provider=answer.provider,
            tokens=int(answer.lengths.sum()),
            queue_ms=answer.queue_seconds * 1e3,
            run_ms=answer.infer_seconds * 1e3,
        )


async def _await_unless_gone(request: Request, ticket: Ticket) -> Answer:
    """The ticket's answer; its future is cancelled if the client leaves meanwhile."""

    def leave() -> None:
        if not ticket.future.done():
            ticket.gone = True
            ticket.future.cancel()

    connection = exchange(request.scope)
    if connection is not None:
        connection.on_disconnect(leave)
        return await ticket.future
    # After the body, the only message that can still come says that the client left.
    left: asyncio.Future[object] = asyncio.ensure_future(request.receive())

    def on_left(_: asyncio.Future[object]) -> None:
        if not left.cancelled():
            leave()

    left.add_done_callback(on_left)
    try:
        return await ticket.future
    finally:
        left.remove_done_callback(on_left)
        left.cancel()


def check_answer_size(rows: Rows, outputs: Sequence[str] | None, loaded: LoadedEncoder, limit: int) -> None:
    """Refuse a request whose answer would be too large.

    Raises:
        RequestTooLargeError: It would.
    """
    lengths = rows.lengths
    count = len(lengths)
    width = int(lengths[0] if count == 1 else lengths.max())
    numbers = 0
    for spec in loaded.manifest.entry_component.signature.outputs:
        if outputs is None or spec.name in outputs:
            numbers += count * numbers_per_row(spec, width)
    if numbers > limit:
        raise RequestTooLargeError(
            "the answer would be too large",
            where=f"{count} rows of up to {width} tokens",
            expected=f"at most {limit:,} numbers in one answer",
            found=f"{numbers:,}",
            hint="send fewer texts in one request, or ask for fewer outputs",
        )
