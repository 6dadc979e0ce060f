from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import Padding
from starlette.requests import Request
from starlette.responses import Response

from device_agent.api import context as module
from device_agent.api.context import STARTED, Context, Job, Rendered
from device_agent.api.edge.exchange import EXTENSION, Exchange
from device_agent.config import AgentConfig, Limits, QueueConfig
from device_agent.inference.queue.batcher import Batcher
from device_agent.inference.rows import Answer, TokenRows
from device_agent.models.loaded import LoadedEncoder
from device_agent.models.memory import NOTHING
from device_agent.models.registry import LiveModel
from edgeonnx.errors import (
    ClientGoneError,
    DeadlineExceededError,
    InferenceError,
    InvalidRequestError,
    OverloadedError,
    RequestTooLargeError,
)
from edgeonnx.spec.manifest import Task
from tests.support import bundles

PADDING = Padding(pad_id=0, pad_type_id=0)


class Engine:
    """Answers each row with the sum of its ids; `hold` keeps calls until `release`."""

    inputs = ("input_ids", "attention_mask")
    provider = "FakeProvider"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.calls = 0
        self.error: Exception | None = None

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        self.calls += 1
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        return {"sentence_embedding": (inputs["input_ids"] * inputs["attention_mask"]).sum(axis=1, keepdims=True)}


class Text:
    """A text becomes one token for each character; `threads` are those that did it."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.seconds = 0.0

    def rows(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> TokenRows:
        self.threads.append(threading.current_thread().name)
        time.sleep(self.seconds)
        return TokenRows([[1] * len(text) for text in texts], PADDING)


class Metrics:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.counted: list[Any] = []

    def succeeded(self, loaded: Any, answer: Answer, *, output: float, total: float) -> None:
        assert 0 <= output <= total
        self.counted.append("ok")

    def failed(self, loaded: Any, error: BaseException | None = None, *, seconds: float = 0.0) -> None:
        assert seconds >= 0
        self.counted.append(type(error))


@dataclass
class Agent:
    """A context over one model, or several, with a fake engine."""

    engine: Engine
    text: Text
    metrics: Metrics
    context: Context
    live: LiveModel
    batcher: Batcher
    prepared: list[bytes] = field(default_factory=list)

    async def ask(self, body: bytes = b"{}", *, exchange: Exchange | None = None, **job: Any) -> Response:
        """Send a request with this body; `job` says what `prepare` makes of it."""
        gone = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await gone.wait()
                return {"type": "http.disconnect"}
            return messages.pop()

        scope = {"type": "http", "headers": [], "path_params": {}, STARTED: time.perf_counter()}
        if exchange is not None:
            scope["extensions"] = {EXTENSION: exchange}
        if "gone" in job:
            job.pop("gone").append(gone)

        def prepare(_context: Context, _request: Request, data: bytes) -> Job:
            self.prepared.append(data)
            return self.job(**job)

        return await self.context.infer(Request(scope, receive), prepare)

    def job(self, **job: Any) -> Job:
        return Job(**{"live": self.live, "texts": ["ab"], "render": render, **job})


def render(answer: Answer) -> Rendered:
    sums = answer.outputs["sentence_embedding"].ravel().tolist()
    return Rendered(data=f"{sums} {threading.current_thread().name}".encode(), headers={"x-runs": str(answer.runs)})


@asynccontextmanager
async def agent(*, models: int = 1, limits: Limits | None = None, **queue: Any) -> AsyncIterator[Agent]:
    config = AgentConfig(queue=QueueConfig(**queue), limits=limits or Limits())
    engine, text, metrics = Engine(), Text(), Metrics()
    batcher = Batcher(engine, config.queue)
    component = SimpleNamespace(signature=bundles.signature(Task.EMBEDDING))
    manifest = SimpleNamespace(name="tiny", entry_component=component)
    loaded = LoadedEncoder(
        bundle=SimpleNamespace(manifest=manifest),  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
        text=text,  # type: ignore[arg-type]
        batcher=batcher,
        verifier=None,  # type: ignore[arg-type]
        plan=None,  # type: ignore[arg-type]
        loaded_at=0.0,
        memory=NOTHING,
        seconds={},
    )
    live = LiveModel(loaded)
    registry = SimpleNamespace(check_ready=lambda: None, all=lambda: [live] * models, find=lambda _name: live)
    context = Context(models=registry, config=config, metrics=metrics)  # type: ignore[arg-type]
    try:
        yield Agent(engine, text, metrics, context, live, batcher)
    finally:
        engine.open.set()
        assert batcher.close(timeout=5)
        assert live.in_flight == 0


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def fill(found: Agent) -> list[asyncio.Task[Response]]:
    """Requests that keep the model busy, with a queue behind it that takes ten seconds."""
    found.engine.open.clear()
    tasks = [asyncio.create_task(found.ask(texts=["x" * 100] * 10, seconds=100.0)) for _ in range(2)]
    await until(lambda: found.engine.calls and found.batcher.state().rows >= 10)
    for _ in range(20):
        found.batcher._pace.prime(padded=100, seconds=1.0)
    return tasks


def test_a_request_is_answered_with_its_times() -> None:
    async def scenario() -> None:
        async with agent() as found:
            response = await found.ask(texts=["abc", "a"])
            assert bytes(response.body) == b"[3, 1] MainThread"
            assert response.headers["x-runs"] in {"1", "2"}
            timing = response.headers["server-timing"]
            assert all(f"{name};dur=" in timing for name in ("tokenize", "infer", "queue", "total"))
            assert found.metrics.counted == ["ok"]

    asyncio.run(scenario())


def test_large_requests_are_tokenized_in_a_few_threads_of_their_own() -> None:
    async def scenario() -> None:
        async with agent(inline_characters=10) as found:
            found.text.seconds = 0.005
            await asyncio.gather(*(found.ask(texts=["abcdef", "abcdef"]) for _ in range(8)))
            await found.ask(texts=["abcdef"])
            *large, small = found.text.threads
            assert {name.split("_")[0] for name in large} == {"tokenize"}
            assert len(set(large)) <= found.context.tokenizing._max_workers
            assert small == "MainThread"

    asyncio.run(scenario())


def test_a_job_that_tokenizes_in_its_own_way() -> None:
    async def scenario() -> None:
        async with agent() as found:
            response = await found.ask(tokenize=lambda: TokenRows([[7, 7]], PADDING))
            assert bytes(response.body).startswith(b"[14]")
            response = await found.ask(texts=None, rows=TokenRows([[9]], PADDING))
            assert bytes(response.body).startswith(b"[9]")
            assert found.text.threads == []

    asyncio.run(scenario())


def test_a_large_answer_is_rendered_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INLINE_NUMBERS", 2)

    async def scenario() -> None:
        async with agent() as found:
            assert b"MainThread" in (await found.ask(texts=["a", "b"])).body
            assert b"MainThread" not in (await found.ask(texts=["a", "b", "c"])).body

    asyncio.run(scenario())


@pytest.mark.parametrize("texts", [["x" * 100], ["x" * 50] * 2])
def test_where_there_is_no_chance_requests_are_refused_before_they_are_parsed(texts: list[str]) -> None:
    async def scenario() -> None:
        async with agent(deadline_seconds=1.0) as found:
            tasks = await fill(found)
            found.prepared.clear()
            with pytest.raises(OverloadedError) as refused:
                await found.ask(texts=texts)
            assert refused.value.retry_after > 0
            assert found.prepared == []
            with pytest.raises(OverloadedError):
                await found.ask(b'{"timeout": 1}', texts=texts)
            assert found.prepared == [b'{"timeout": 1}']
            assert found.metrics.counted == [OverloadedError] * 2
            counts = found.batcher.state().counts
            assert (counts.refused_late, counts.refused_early) == (2, 1)
            # One that has the time may wait.
            task = asyncio.create_task(found.ask(b'{"timeout": 200}', texts=texts, seconds=200.0))
            await until(lambda: found.batcher.state().requests == 3)
            found.engine.open.set()
            await asyncio.gather(task, *tasks)

    asyncio.run(scenario())


def test_with_several_models_the_body_says_which_queue_counts() -> None:
    async def scenario() -> None:
        async with agent(models=2, deadline_seconds=1.0) as found:
            tasks = await fill(found)
            found.prepared.clear()
            with pytest.raises(OverloadedError):
                await found.ask(b"{}")
            assert found.prepared == [b"{}"]
            found.engine.open.set()
            await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_large_request_without_a_chance_is_not_even_tokenized() -> None:
    async def scenario() -> None:
        async with agent(deadline_seconds=1.0, inline_characters=10) as found:
            tasks = await fill(found)
            found.text.threads.clear()
            with pytest.raises(OverloadedError):
                await found.ask(b"timeout", texts=["x" * 20])
            assert found.text.threads == []
            found.engine.open.set()
            await asyncio.gather(*tasks)

    asyncio.run(scenario())


@pytest.mark.parametrize(("asked", "kept"), [(None, 0.05), (0.02, 0.02), (60.0, 0.08)])
def test_the_clients_own_time_counts_up_to_the_operators_limit(asked: float | None, kept: float) -> None:
    async def scenario() -> None:
        async with agent(deadline_seconds=0.05, max_deadline_seconds=0.08) as found:
            found.engine.open.clear()
            began = time.perf_counter()
            with pytest.raises(DeadlineExceededError):
                await found.ask(seconds=asked)
            assert kept - 0.01 < time.perf_counter() - began < kept + 1
            assert found.metrics.counted == [DeadlineExceededError]

    asyncio.run(scenario())


def test_time_spent_tokenizing_counts() -> None:
    async def scenario() -> None:
        async with agent(deadline_seconds=0.05, inline_characters=1) as found:
            found.text.seconds = 0.5
            began = time.perf_counter()
            with pytest.raises(DeadlineExceededError):
                await found.ask()
            assert time.perf_counter() - began < 0.5
            found.text.seconds, found.engine.calls = 0.1, 0
            with pytest.raises(DeadlineExceededError):
                await found.ask(texts=["a"])  # inline
            assert found.engine.calls == 0
            # Its time is over, so that is what it is told, whatever the queue would say.
            tasks = await fill(found)
            with pytest.raises(DeadlineExceededError):
                await found.ask(b"timeout", texts=["a"])
            found.engine.open.set()
            found.text.seconds = 0
            await asyncio.gather(*tasks)

    asyncio.run(scenario())


@pytest.mark.parametrize("with_exchange", [True, False])
def test_a_client_that_leaves_is_dropped_at_once(with_exchange: bool) -> None:
    async def scenario() -> None:
        async with agent() as found:
            found.engine.open.clear()
            first = asyncio.create_task(found.ask())
            await until(lambda: found.engine.calls == 1)
            gone: list[asyncio.Event] = []
            exchange = Exchange() if with_exchange else None
            second = asyncio.create_task(found.ask(exchange=exchange, gone=gone))
            await until(lambda: found.batcher.state().rows == 1)
            exchange.leave() if exchange else gone[0].set()
            with pytest.raises(ClientGoneError):
                await second
            assert found.batcher.state().rows == 0
            assert found.batcher.state().counts.cancelled == 1
            found.engine.open.set()
            await first
            assert found.engine.calls == 1

    asyncio.run(scenario())


def test_a_client_that_left_before_its_request_was_queued() -> None:
    async def scenario() -> None:
        async with agent() as found:
            found.engine.open.clear()
            exchange = Exchange()
            exchange.leave()
            with pytest.raises(ClientGoneError):
                await found.ask(exchange=exchange)
            assert found.batcher.state().counts.cancelled == 1

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_leaves_the_queue() -> None:
    async def scenario() -> None:
        async with agent() as found:
            found.engine.open.clear()
            tasks = [
                asyncio.create_task(found.context.run(found.job(), started=time.perf_counter())),
                asyncio.create_task(found.ask()),
            ]
            await until(lambda: found.batcher.state().counts.accepted == 2)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(outcome, asyncio.CancelledError)
            assert found.batcher.state().counts.cancelled == 2

    asyncio.run(scenario())


def test_a_request_of_another_protocol() -> None:
    async def scenario() -> None:
        async with agent() as found:
            rendered = await found.context.run(found.job(texts=["abcd"]), started=time.perf_counter())
            assert rendered.data.startswith(b"[4]")
            assert found.metrics.counted == ["ok"]

    asyncio.run(scenario())


def test_tokens_that_the_runtime_refuses_are_the_clients_fault_only_if_they_are_the_clients() -> None:
    async def scenario() -> None:
        async with agent() as found:
            found.engine.error = InvalidRequestError("bad id")
            with pytest.raises(InferenceError):
                await found.ask()
            with pytest.raises(InvalidRequestError):
                await found.ask(texts=None, rows=TokenRows([[9]], PADDING))
            assert found.metrics.counted == [InferenceError, InvalidRequestError]

    asyncio.run(scenario())


def test_an_answer_that_would_be_too_large_is_refused_before_it_is_computed() -> None:
    async def scenario() -> None:
        async with agent(limits=Limits(max_answer_numbers=3 * bundles.DIM)) as found:
            with pytest.raises(RequestTooLargeError, match=rf"at most {3 * bundles.DIM} numbers"):
                await found.ask(texts=["a"] * 4)
            assert found.engine.calls == 0
            await found.ask(texts=["a"] * 3)

    asyncio.run(scenario())
