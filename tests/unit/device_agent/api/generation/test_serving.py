"""What the agent does when a generator, or a client, does not do what it should; a script stands for the generator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from device_agent.api.app import create_app
from device_agent.api.edge.exchange import EXTENSION, Exchange
from device_agent.api.generation import inbox
from device_agent.api.monitoring.telemetry import SPAN
from device_agent.config import AgentConfig, GenerationConfig, LogConfig
from device_agent.inference.generation.request import Delta, Failed, Finished, GenerationRequest
from device_agent.models.loaded import LoadedDecoder
from device_agent.models.registry import Models
from edgeonnx.errors import DeadlineExceededError, EdgeOnnxError, InferenceError, NotReadyError, OverloadedError
from tests.support import decoders

END = Finished(
    reason="stop",
    prompt_tokens=4,
    completion_tokens=2,
    cached_tokens=0,
    queue_seconds=0.5,
    prompt_seconds=0.25,
    decode_seconds=0.125,
)


class Handle:
    def __init__(self) -> None:
        self.gone = threading.Event()

    def cancel(self) -> None:
        self.gone.set()


class Script:
    """A generator that sends what a test wrote, each answer from a thread of its own."""

    def __init__(self, *steps: object, refuses: EdgeOnnxError | None = None) -> None:
        self.steps = steps
        self.refuses = refuses
        self.requests: list[GenerationRequest] = []
        self.handles: list[Handle] = []
        self.go_on = threading.Event()

    def submit(self, request: GenerationRequest, sink: Callable[..., None]) -> Handle:
        if self.refuses is not None:
            raise self.refuses
        self.requests.append(request)
        self.handles.append(Handle())
        threading.Thread(target=self._run, args=(sink, self.handles[-1]), daemon=True).start()
        return self.handles[-1]

    def _run(self, sink: Callable[..., None], handle: Handle) -> None:
        for step in self.steps:
            if step == "wait":
                self.go_on.wait(10)
            elif step == "flood":
                while not handle.gone.is_set():
                    tell(sink, Delta(text="x"))
            else:
                tell(sink, step)


def tell(sink: Callable[..., Any], event: object) -> None:
    wake = sink([event])
    if wake is not None:
        wake()


@pytest.fixture
def scripted(serve, tiny_lm: LoadedDecoder) -> Callable[..., Any]:
    def make(*steps: object, config: AgentConfig | None = None, refuses: EdgeOnnxError | None = None) -> Any:
        script = Script(*steps, refuses=refuses)
        client = serve(replace(tiny_lm, generator=script), config)  # type: ignore[arg-type]
        client.script = script
        return client

    return make


def ask(client: Any, stream: bool = False, headers: dict[str, str] | None = None, **fields: object) -> Any:
    body = {"model": "tiny-lm", "prompt": "cat", "stream": stream, **fields}
    return client.post("/v1/completions", json=body, headers=headers)


A, B = Delta(text="a"), Delta(text="b")
LATE = DeadlineExceededError("the answer was not ready in time")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LATE, 504),
        (InferenceError("broken"), 500),
        (NotReadyError("unloaded"), 503),
    ],
    ids=["late", "broken", "unloaded"],
)
def test_an_error_before_the_first_piece_is_a_status(scripted, stream: bool, error: EdgeOnnxError, status: int) -> None:
    client = scripted(Failed(error))
    response = ask(client, stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == str(error)
    assert client.app.state.models.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_generator_that_takes_no_more(scripted, stream: bool) -> None:
    response = ask(scripted(refuses=OverloadedError("too many wait", retry_after=3)), stream)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


def test_an_error_in_mid_stream_is_an_event_and_the_end(scripted) -> None:
    client = scripted(A, "wait", Failed(LATE))
    threading.Timer(0.05, client.script.go_on.set).start()
    response = ask(client, stream=True)
    assert response.status_code == 200
    *pieces, error, rest = response.text.split("\n\n")
    assert json.loads(pieces[0].removeprefix("data: "))["choices"][0]["text"] == "a"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert rest == ""
    assert "[DONE]" not in response.text
    loaded = client.app.state.models.find("tiny-lm").loaded
    assert client.app.state.context.metrics.of(loaded).failures == {"REJECTED": 1}
    assert client.app.state.context.metrics.refusals == {"deadline": 1}


def test_a_whole_answer_is_none_if_it_breaks_off(scripted) -> None:
    response = ask(scripted(A, Failed(LATE)))
    assert response.status_code == 504


def test_one_choice_that_fails_ends_the_others(scripted) -> None:
    client = scripted(A, Failed(InferenceError("x")))
    assert ask(client, n=3).status_code == 500
    assert all(handle.gone.wait(5) for handle in client.script.handles)


def test_times(scripted) -> None:
    response = ask(scripted(A, B, END))
    assert "queue;dur=500.000, prompt;dur=250.000, decode;dur=125.000" in response.headers["server-timing"]


def test_the_time_to_the_first_token_is_that_of_the_first_piece(scripted) -> None:
    client = scripted(A, "wait", B, END)
    threading.Timer(0.3, client.script.go_on.set).start()
    assert ask(client).status_code == 200
    counters = client.app.state.context.metrics.of(client.app.state.models.find("tiny-lm").loaded)
    assert counters.generated.first.total < 0.2 < counters.duration.total


@pytest.mark.parametrize(
    ("stream", "headers", "most"),
    [
        (False, {}, 60),
        (False, {"x-stainless-read-timeout": "5"}, 5),
        (False, {"x-stainless-read-timeout": "600"}, 60),
        (True, {"x-stainless-read-timeout": "5"}, 60),
    ],
)
def test_deadlines(scripted, stream: bool, headers: dict[str, str], most: float) -> None:
    """A whole answer that comes later than its client waits is no answer; of a stream it says another thing."""
    client = scripted(END, config=AgentConfig(generation=GenerationConfig(deadline_seconds=60)))
    ask(client, stream, headers)
    assert most - 3 < client.script.requests[0].deadline <= most


def test_what_is_asked_of_the_generator(scripted) -> None:
    client = scripted(END)
    ask(client, seed=3, n=2, stop=["x"], logprobs=2, max_tokens=5, presence_penalty=1, logit_bias={"3": 1}, top_k=4)
    first, second = client.script.requests
    assert first.prompt == tuple(decoders.encode("cat"))
    assert (first.seed, first.stop, first.top_logprobs, first.max_tokens) == (3, ("x",), 2, 5)
    assert (first.presence_penalty, first.logit_bias, first.sampling.top_k) == (1, {3: 1}, 4)
    assert second.seed not in (None, 3)
    assert replace(second, seed=3, deadline=first.deadline) == first


def test_the_access_line_tells_what_a_request_took(scripted, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="edgeonnx.agent.access"), caplog.at_level("INFO"):
        client = scripted(A, B, END, config=AgentConfig(log=LogConfig(requests=True)))
        assert ask(client, stream=True).status_code == 200
    line = next(record.getMessage() for record in caplog.records if "path=/v1/completions" in record.getMessage())
    assert "model=tiny-lm" in line
    assert "tokens=6 queue_ms=500.0 run_ms=375.0" in line


class Connection:
    """One request by ASGI, with a client that the test moves."""

    def __init__(self, script: Script, loaded: LoadedDecoder, *, exchange: bool = True, **fields: object) -> None:
        config = AgentConfig()
        self.models = Models(config)
        self.models.serve(replace(loaded, generator=script))  # type: ignore[arg-type]
        self.app = create_app(self.models, config)
        self.exchange = Exchange()
        self.exchange.body_arrived = True
        self.body = json.dumps({"model": "tiny-lm", "prompt": "cat", "stream": True, **fields}).encode()
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "scheme": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [],
            "query_string": b"",
            "client": ("127.0.0.1", 1),
            "extensions": {EXTENSION: self.exchange} if exchange else {},
        }

    async def receive(self) -> dict[str, Any]:
        if self.body:
            body, self.body = self.body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self.writable.wait()
        self.sent.append(message)

    async def run(self) -> None:
        await asyncio.wait_for(self.app(self.scope, self.receive, self.send), 10)  # type: ignore[arg-type]

    def leave(self) -> None:
        self.left.set()
        self.exchange.leave()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_sequences(
    tiny_lm: LoadedDecoder, exchange: bool, begun: bool, stream: bool
) -> None:
    async def test() -> None:
        script = Script(*([A] if begun else []), "wait", B, END)
        connection = Connection(script, tiny_lm, exchange=exchange, stream=stream, n=2)
        running = asyncio.ensure_future(connection.run())
        await connection.until(lambda: len(script.handles) == 2)
        if begun and stream:
            await connection.until(lambda: len(connection.sent) > 1)
        connection.leave()
        await asyncio.wait_for(running, 3)
        assert all(handle.gone.is_set() for handle in script.handles)
        assert connection.models.in_flight == 0
        script.go_on.set()

    asyncio.run(test())


def test_a_client_that_reads_slowly_is_given_up(tiny_lm: LoadedDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_WAITING", 100)

    async def test() -> None:
        script = Script(A, "wait", "flood")
        connection = Connection(script, tiny_lm)
        running = asyncio.ensure_future(connection.run())
        await connection.until(lambda: len(connection.sent) > 1)
        connection.writable.clear()
        script.go_on.set()
        await connection.until(lambda: script.handles and script.handles[0].gone.is_set())
        connection.writable.set()
        await running
        assert b"reads its answer too slowly" in connection.sent[-1]["body"]
        assert connection.sent[-1]["more_body"] is False

    asyncio.run(test())


def test_a_model_is_in_use_until_the_last_piece(tiny_lm: LoadedDecoder) -> None:
    async def test() -> None:
        script = Script(A, "wait", END)
        connection = Connection(script, tiny_lm)
        running = asyncio.ensure_future(connection.run())
        await connection.until(lambda: len(connection.sent) > 1)
        assert connection.models.in_flight == 1
        connection.models.drain()
        assert not await connection.models.drained(0.02)
        script.go_on.set()
        await running
        assert await connection.models.drained(1)
        assert connection.sent[-1]["body"] == b"data: [DONE]\n\n"

    asyncio.run(test())


def test_the_stages_of_a_trace(tiny_lm: LoadedDecoder) -> None:
    class Span:
        def __init__(self) -> None:
            self.stages: dict[str, float] = {}

        def stage(self, name: str, start: float, end: float, attributes: object) -> None:
            self.stages[name] = end - start

    async def test() -> None:
        connection = Connection(Script(A, END), tiny_lm)
        span = connection.scope[SPAN] = Span()
        await connection.run()
        assert list(span.stages) == ["tokenize", "queue", "prompt", "decode"]
        assert [round(span.stages[name], 6) for name in ("queue", "prompt", "decode")] == [0.5, 0.25, 0.125]

    asyncio.run(test())


def test_a_server_that_gives_up_tells_its_clients(tiny_lm: LoadedDecoder) -> None:
    """At the end of a drain what still runs is cancelled."""

    async def test(stream: bool) -> bytes:
        script = Script(A, "wait")
        connection = Connection(script, tiny_lm, stream=stream)
        running = asyncio.ensure_future(connection.run())
        await connection.until(lambda: script.handles and (len(connection.sent) > 1 or not stream))
        await asyncio.sleep(0.01)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert script.handles[0].gone.is_set()
        script.go_on.set()
        body: bytes = connection.sent[-1]["body"]
        return body

    for stream in (True, False):
        assert b"the agent stopped before the answer was complete" in asyncio.run(test(stream))


def test_a_stream_is_sent_piece_by_piece(tiny_lm: LoadedDecoder) -> None:
    async def test() -> None:
        script = Script(A, "wait", B, END)
        connection = Connection(script, tiny_lm)
        running = asyncio.ensure_future(connection.run())
        await connection.until(lambda: len(connection.sent) > 1)
        await asyncio.sleep(0.02)
        assert b'"text":"a"' in connection.sent[-1]["body"]
        assert not running.done()
        script.go_on.set()
        await running

    asyncio.run(test())


def test_a_slow_template_is_not_the_event_loops(tiny_lm: LoadedDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = tiny_lm.text.encode

    def slowly(text: str, *, special_tokens: bool) -> list[int]:
        time.sleep(0.3)
        return encode(text, special_tokens=special_tokens)

    monkeypatch.setattr(tiny_lm.text, "encode", slowly)

    async def test() -> None:
        connection = Connection(Script(END), tiny_lm)
        running = asyncio.ensure_future(connection.run())
        gaps, last = [], time.perf_counter()
        while not running.done():
            await asyncio.sleep(0.005)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()
        assert max(gaps) < 0.25

    asyncio.run(test())
