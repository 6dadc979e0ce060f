"""The way of one request for generated text: read, checked, tokenized, generated, and answered whole or in pieces.

**What is told when.** Nothing is sent before the first event of the generator, so that whatever is wrong until then is
an HTTP status. Afterwards an error is an event of the stream, `data: {"error": ...}`, and the stream ends without
`data: [DONE]`.

**Times.** A request ends `generation.deadline_seconds` after it came. A client that says how long it waits
(`TIMEOUT_HEADERS`) shortens that for whole answers; in a stream it means the time between two pieces.

**Leaving.** A client that leaves ends its sequences at their next token, also those that wait for a place.

The model is in use, and the request counted, until the last byte is handed to the connection: a swap or a stop waits.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from starlette.responses import Response

from device_agent.api.context import STARTED
from device_agent.api.edge.body import of_type, parse_object, read_body, required
from device_agent.api.edge.errors import error_event, log_fault
from device_agent.api.edge.exchange import exchange
from device_agent.api.generation.answers import Choice, Head
from device_agent.api.generation.inbox import Inbox
from device_agent.api.monitoring.generation import Generated
from device_agent.api.monitoring.telemetry import SPAN, stage
from device_agent.api.openai import seconds_to_wait
from device_agent.inference.generation.request import Delta, Failed, GenerationRequest
from device_agent.logs import FACTS, note
from device_agent.models.loaded import decoder_of
from edgeonnx.errors import ClientGoneError, DeadlineExceededError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from device_agent.api.context import Context
    from device_agent.api.generation.answers import Answers
    from device_agent.inference.generation.request import Event
    from device_agent.models.loaded import LoadedDecoder

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Every piece is for now, and a proxy that holds pieces back defeats the purpose."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one request needs.

    Attributes:
        requests: The sequences, without their deadlines; one for each choice.
        answers: Makes the answer.
        stream: The answer comes in pieces.
    """

    requests: Sequence[GenerationRequest]
    answers: Answers
    stream: bool


class Prepare(Protocol):
    """Checks a body and tokenizes it: one for each route. It is called in a thread."""

    def __call__(self, context: Context, loaded: LoadedDecoder, body: dict[str, object], head: Head) -> Plan:
        """What the request needs."""
        ...


async def generate(context: Context, request: Request, prepare: Prepare, prefix: str) -> Response:
    """Answer a request.

    Args:
        context: The agent.
        request: The request, its body not yet read.
        prepare: The route's part.
        prefix: What the answer's id begins with.

    Raises:
        ServingError: The request is not answered with a result.
    """
    context.models.check_ready()
    data = await read_body(request, context.config.limits, context.config.server)
    body = parse_object(data)
    live = context.models.find(of_type(required(body, "model"), str, "model"))
    with ExitStack() as stack:
        loaded = decoder_of(stack.enter_context(live.use()))
        answering = _Answering(context, request, loaded)
        plan = await answering.plan(prepare, body, prefix)
        try:
            await answering.begin(stack, plan)
            if not plan.stream:
                return await answering.whole(plan)
            return EventStream(answering, plan, stack.pop_all())
        except Exception as error:
            answering.failed(error)
            raise


class _Answering:
    """One request while it is answered."""

    def __init__(self, context: Context, request: Request, loaded: LoadedDecoder) -> None:
        self.context = context
        self.request = request
        self.loaded = loaded
        self.started: float = request.scope[STARTED]
        self._inbox = Inbox(loaded.generator)
        self._first_events: list[tuple[int, Event]] = []
        self._choices: list[Choice] = []
        self._first_at: list[float | None] = []
        self._last_at: list[float] = []

    async def plan(self, prepare: Prepare, body: dict[str, object], prefix: str) -> Plan:
        """Check and tokenize, in a thread: a template's or a schema's time is not the event loop's."""
        head = Head(
            identity=f"{prefix}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=self.loaded.name,
            fingerprint=self.loaded.bundle.digest,
        )
        seconds = self.context.config.generation.deadline_seconds
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        try:
            async with asyncio.timeout(seconds):
                plan = await loop.run_in_executor(
                    self.context.tokenizing, prepare, self.context, self.loaded, body, head
                )
        except TimeoutError:
            raise DeadlineExceededError("the prompt was not ready in time", expected=f"at most {seconds:g} s") from None
        self._tokenize = (began, time.perf_counter())
        return plan

    async def begin(self, stack: ExitStack, plan: Plan) -> None:
        """Ask the generator, and wait for the first events, which are put back."""
        seconds = self.context.config.generation.deadline_seconds
        if not plan.stream:
            seconds = seconds_to_wait(self.request.headers, seconds)
        left = max(1e-3, seconds - (time.perf_counter() - self.started))
        count = len(plan.requests)
        self._choices = [Choice(keeps=not plan.stream) for _ in range(count)]
        self._first_at, self._last_at = [None] * count, [0.0] * count
        stack.callback(self._inbox.cancel)
        stack.enter_context(_watched(self.request, self._inbox.leave))
        self._inbox.submit([replace(each, deadline=left) for each in plan.requests])
        self._first_events = await self._take()

    async def events(self) -> list[tuple[int, Delta | Any]]:
        """Pieces and ends that have come since the last call.

        Raises:
            EdgeOnnxError: The generator failed; the client left, or reads too slowly.
        """
        if self._first_events:
            taken, self._first_events = self._first_events, []
            return taken
        return await self._take()

    async def _take(self) -> list[tuple[int, Event]]:
        try:
            taken = await self._inbox.take()
        except asyncio.CancelledError:
            # The time of a drain is over, and the server ends what still runs: the client is told why.
            raise NotReadyError("the agent stopped before the answer was complete") from None
        now = time.perf_counter()
        for index, event in taken:
            if isinstance(event, Failed):
                raise event.error
            self._choices[index].take(event)
            if self._first_at[index] is None:
                self._first_at[index] = now
            self._last_at[index] = now
        return taken

    def done(self) -> bool:
        """Whether every choice has ended, and its events were handed on."""
        return not self._first_events and all(choice.finished is not None for choice in self._choices)

    async def whole(self, plan: Plan) -> Response:
        """The answer in one piece."""
        while not self.done():
            await self.events()
        content = orjson.dumps(plan.answers.whole(self._choices))
        self.succeeded()
        return Response(content, media_type="application/json", headers={"Server-Timing": self._timing()})

    def bill(self, plan: Plan) -> dict[str, Any]:
        """The chunk with the usage."""
        return plan.answers.bill(self._choices)

    def succeeded(self) -> None:
        """Count the answer."""
        found = [
            Generated(
                prompt_tokens=end.prompt_tokens,
                completion_tokens=end.completion_tokens,
                queue=end.queue_seconds,
                first=None if first is None else first - self.started,
                total=last - self.started,
            )
            for end, first, last in zip(self._ends(), self._first_at, self._last_at, strict=True)
        ]
        self.context.metrics.generated(self.loaded, found)
        self._record()

    def failed(self, error: BaseException) -> None:
        """Count the request as one without an answer."""
        self.context.metrics.failed(self.loaded, error, seconds=time.perf_counter() - self.started)

    def broken_off(self, error: Exception) -> None:
        """Count a stream that did not come to its end; the status of its answer was good."""
        self.failed(error)
        self.context.metrics.refused(error)

    def _ends(self) -> list[Any]:
        return [choice.finished for choice in self._choices if choice.finished is not None]

    def _times(self) -> tuple[float, float, float]:
        """Seconds of the longest wait for a place, the longest prompt and the longest answer."""
        ends = self._ends()
        return (
            max(end.queue_seconds for end in ends),
            max(end.prompt_seconds for end in ends),
            max(end.decode_seconds for end in ends),
        )

    def _timing(self) -> str:
        queue, prompt, decode = self._times()
        total = time.perf_counter() - self.started
        tokenize = self._tokenize[1] - self._tokenize[0]
        parts = {"tokenize": tokenize, "queue": queue, "prompt": prompt, "decode": decode, "total": total}
        return ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in parts.items())

    def _record(self) -> None:
        """Tell the trace and the access line, where there are any."""
        scope = self.request.scope
        queue, prompt, decode = self._times()
        if SPAN in scope:
            at = self._tokenize[0]
            tokenize = self._tokenize[1] - at
            for name, seconds in (("tokenize", tokenize), ("queue", queue), ("prompt", prompt), ("decode", decode)):
                stage(scope, name, at, at + seconds)
                at += seconds
        if FACTS in scope:
            note(
                scope,
                model=self.loaded.name,
                provider=self.loaded.engine.provider,
                tokens=sum(end.prompt_tokens + end.completion_tokens for end in self._ends()),
                queue_ms=queue * 1e3,
                run_ms=(prompt + decode) * 1e3,
            )


class EventStream(Response):
    """An answer as server-sent events.

    Args:
        answering: The request, its first events there.
        plan: What it needs.
        stack: What is released in the end.
    """

    def __init__(self, answering: _Answering, plan: Plan, stack: ExitStack) -> None:
        super().__init__(None, media_type="text/event-stream", headers=STREAM_HEADERS)
        del self.headers["content-length"]
        self._answering = answering
        self._plan = plan
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Send it."""
        with self._stack:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await self._send_pieces(send)
            except ClientGoneError as error:
                self._answering.broken_off(error)
                # Where the server itself gives up the connection, it sees the end of the application's answer so.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            except Exception as error:  # noqa: BLE001 - the table of errors has a form for each
                self._answering.broken_off(error)
                log_fault(scope, error)
                last = event_of(error_event(scope["path"], error))
            else:
                self._answering.succeeded()
                last = DONE
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_pieces(self, send: Send) -> None:
        answers = self._plan.answers
        opened: set[int] = set()
        while not self._answering.done():
            chunks: list[dict[str, Any]] = []
            for index, event in await self._answering.events():
                if index not in opened:
                    opened.add(index)
                    opening = answers.opening(index)
                    chunks += [] if opening is None else [opening]
                if isinstance(event, Delta):
                    chunks.append(answers.piece(index, event))
                else:
                    chunks.append(answers.closing(index, event))
            if self._answering.done() and answers.include_usage:
                chunks.append(self._answering.bill(self._plan))
            await send({"type": "http.response.body", "body": events_of(chunks), "more_body": True})


def event_of(data: bytes) -> bytes:
    """One server-sent event; `data` is one line."""
    return b"data: " + data + b"\n\n"


def events_of(chunks: Iterable[dict[str, Any]]) -> bytes:
    """Objects as server-sent events."""
    return b"".join(event_of(orjson.dumps(chunk)) for chunk in chunks)


@contextmanager
def _watched(request: Request, leave: Callable[[], object]) -> Iterator[None]:
    """Call `leave` if the client goes away before the block ends."""
    connection = exchange(request.scope)
    if connection is not None:
        active = True

        def gone() -> None:
            if active:
                leave()

        connection.on_disconnect(gone)
        try:
            yield
        finally:
            active = False
        return
    # After the body, the only message that can still come says that the client left.
    left: asyncio.Future[object] = asyncio.ensure_future(request.receive())

    def on_left(_: asyncio.Future[object]) -> None:
        if not left.cancelled():
            leave()

    left.add_done_callback(on_left)
    try:
        yield
    finally:
        left.remove_done_callback(on_left)
        left.cancel()
