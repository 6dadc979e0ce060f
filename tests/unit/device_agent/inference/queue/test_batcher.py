from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from edgeonnx_ext import Padding

from device_agent.config import QueueConfig
from device_agent.inference.queue.batcher import RUNNER_NICE, Batcher
from device_agent.inference.rows import TokenRows
from edgeonnx.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    ProviderLostError,
)

BAD = 13
PADDING = Padding(pad_id=0, pad_type_id=0)


class Engine:
    """Sums each row's ids; a row that holds the id `BAD` is refused. `hold` keeps every call until `release`."""

    inputs = ("input_ids", "attention_mask")
    provider = "FakeProvider"

    def __init__(self, error: Exception | None = None, seconds: float = 0.0) -> None:
        self.batches: list[list[list[int]]] = []
        self.wanted: list[Sequence[str] | None] = []
        self.error = error
        self.seconds = seconds
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Semaphore(0)

    def hold(self) -> None:
        self.open.clear()

    def release(self) -> None:
        self.open.set()

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        self.batches.append([row[keep == 1].tolist() for row, keep in zip(ids, mask, strict=True)])
        self.wanted.append(outputs)
        self.began.release()
        assert self.open.wait(10)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        if (ids == BAD).any():
            raise InvalidRequestError("bad id")
        found = {"sum": (ids * mask).sum(axis=1, keepdims=True), "tokens": np.repeat(ids[:, :, None], 2, axis=2) + 1}
        return {name: value for name, value in found.items() if outputs is None or name in outputs}


def rows_of(*rows: list[int]) -> TokenRows:
    return TokenRows(rows, PADDING)


def run(
    scenario: Callable[[Batcher], Coroutine[Any, Any, None]], engine: Engine, *, runners: int = 1, **queue: Any
) -> Batcher:
    """Run a scenario against a batcher, and see that its threads end."""
    batcher = Batcher(engine, QueueConfig(**queue), runners=runners)

    async def main() -> None:
        async with asyncio.timeout(20):
            await scenario(batcher)

    try:
        asyncio.run(main())
    finally:
        engine.release()
        assert batcher.close(timeout=10)
    return batcher


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def occupied(batcher: Batcher, engine: Engine) -> Any:
    """A request that keeps the one runner busy until the engine is released."""
    engine.hold()
    ticket = batcher.submit(rows_of([1] * 100))
    await until(lambda: engine.began.acquire(blocking=False))
    return ticket


def test_answers_go_to_their_owners_however_they_are_batched() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        first = await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n], [n, n, n], [n, n])) for n in range(20, 40)]
        engine.release()
        for n, ticket in zip(range(20, 40), tickets, strict=True):
            answer = await ticket.future
            assert answer.outputs["sum"].tolist() == [[n], [3 * n], [2 * n]]
            assert answer.outputs["tokens"][:, :, 0].tolist() == [[n + 1, 0, 0], [n + 1] * 3, [n + 1, n + 1, 0]]
        assert (await first.future).outputs["sum"].tolist() == [[100]]

    batcher = run(scenario, engine, batch_tokens=16)
    assert max(len(batch) * max(map(len, batch)) for batch in engine.batches if len(batch) > 1) <= 16
    counts = batcher.state().counts
    assert (counts.accepted, counts.answered, counts.rows_run) == (21, 21, 61)
    assert counts.batch_rows.count == counts.batch_tokens.count == counts.runs == len(engine.batches)
    assert counts.batch_rows.total == 61


def test_requests_that_wait_together_run_together() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n, n])) for n in (1, 2, 3)]
        state = batcher.state()
        assert (state.requests, state.rows, state.tokens, state.running_tokens) == (3, 3, 6, 100)
        engine.release()
        answers = [await ticket.future for ticket in tickets]
        assert [(answer.runs, answer.batch_rows, answer.provider) for answer in answers] == [(1, 3, "FakeProvider")] * 3

    run(scenario, engine)
    assert engine.batches[1:] == [[[1, 1], [2, 2], [3, 3]]]


def test_where_calls_are_dear_rows_of_all_lengths_run_together() -> None:
    engine = Engine()
    batcher = Batcher(engine, QueueConfig(), call_tokens=4000)
    assert batcher.run_now(rows_of([5] * 3, [6] * 90)).runs == 1
    assert batcher.close(timeout=5)
    usual = Batcher(engine, QueueConfig())
    assert usual.run_now(rows_of([5] * 3, [6] * 90)).runs == 2
    assert usual.close(timeout=5)


def test_idle_runners_share_a_large_request() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await asyncio.sleep(0.02)  # both runners sleep
        engine.hold()
        ticket = batcher.submit(rows_of(*([n] * 20 for n in range(20, 40))))
        await until(lambda: len(engine.batches) == 2)
        engine.release()
        assert (await ticket.future).outputs["sum"].ravel().tolist() == [20 * n for n in range(20, 40)]

    run(scenario, engine, runners=2)
    assert sorted(map(len, engine.batches)) == [10, 10]


def test_outputs_that_nobody_wants_are_not_computed() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n]), (name,)) for n, name in ((1, "sum"), (2, "sum"), (3, "tokens"))]
        engine.release()
        for ticket in tickets:
            assert list((await ticket.future).outputs) == list(ticket.outputs)
        assert list((await batcher.submit(rows_of([4]), ("sum",)).future).outputs) == ["sum"]

    run(scenario, engine)
    assert engine.wanted == [None, ("sum", "tokens"), ("sum",)]


def test_an_answer_is_no_view_of_a_batch_that_others_share() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n])) for n in (1, 2)]
        engine.release()
        for ticket in tickets:
            for value in (await ticket.future).outputs.values():
                assert value.base is None
        # What is a whole batch of its own is handed over as it came from the runtime.
        results = []
        engine_run = engine.run
        engine.run = lambda *given: results.append(engine_run(*given)) or results[-1]  # type: ignore[method-assign]
        answer = await batcher.submit(rows_of([1], [2])).future
        assert answer.outputs["sum"] is results[0]["sum"]

    run(scenario, engine)


def test_one_requests_error_is_not_its_neighbours() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n])) for n in (1, BAD, 2)]
        engine.release()
        assert (await tickets[0].future).outputs["sum"].tolist() == [[1]]
        assert (await tickets[2].future).outputs["sum"].tolist() == [[2]]
        with pytest.raises(InvalidRequestError):
            await tickets[1].future

    batcher = run(scenario, engine)
    assert engine.batches[1:] == [[[1], [BAD], [2]], [[1]], [[BAD]], [[2]]]
    counts = batcher.state().counts
    assert (counts.failed, counts.answered, counts.runs_alone) == (1, 3, 2)


@pytest.mark.parametrize(
    ("error", "calls"), [(InferenceError("x"), 4), (ValueError("x"), 4), (ProviderLostError("x"), 2)]
)
def test_each_request_of_a_failed_batch_is_tried_alone_once(error: Exception, calls: int) -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n])) for n in (1, 2)]
        engine.error = error
        engine.release()
        for ticket in tickets:
            with pytest.raises(type(error)):
                await ticket.future
        engine.error = None
        assert (await batcher.submit(rows_of([5])).future).outputs["sum"].tolist() == [[5]]

    run(scenario, engine)
    assert len(engine.batches) == calls + 1


def test_an_error_ends_all_of_its_request() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        ticket = batcher.submit(rows_of([BAD] * 60, *([n] * 60 for n in range(20, 30))))
        engine.release()
        with pytest.raises(InvalidRequestError):
            await ticket.future
        assert batcher.state().rows == 0

    run(scenario, engine, batch_tokens=60)


def test_a_request_that_waits_too_long_is_answered_at_its_deadline_and_never_run() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        ticket = batcher.submit(rows_of([7]), seconds=0.05)
        began = time.perf_counter()
        with pytest.raises(DeadlineExceededError, match=r"at most 0\.05 s"):
            await ticket.future
        assert 0.04 < time.perf_counter() - began < 2
        assert batcher.state().rows == 0

    batcher = run(scenario, engine)
    assert engine.batches == [[[1] * 100]]
    counts = batcher.state().counts
    assert (counts.expired, counts.rows_dropped, counts.answered) == (1, 1, 1)


def test_a_deadline_holds_while_the_request_runs() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        engine.hold()
        ticket = batcher.submit(rows_of([7]), seconds=0.05)
        with pytest.raises(DeadlineExceededError):
            await ticket.future
        assert len(engine.batches) == 1  # and the run goes on
        engine.release()
        assert (await batcher.submit(rows_of([8])).future).outputs["sum"].tolist() == [[8]]

    batcher = run(scenario, engine)
    counts = batcher.state().counts
    assert (counts.expired, counts.answered, counts.accepted) == (1, 1, 2)


def test_a_request_whose_time_is_over_is_not_run_although_the_event_loop_was_too_busy_to_say_so() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        late, other = batcher.submit(rows_of([7]), seconds=0.02), batcher.submit(rows_of([8]))
        time.sleep(0.05)
        engine.release()
        time.sleep(0.05)
        assert engine.batches[1:] == [[[8]]]
        await other.future
        with pytest.raises(DeadlineExceededError):
            await late.future

    batcher = run(scenario, engine)
    assert batcher.state().counts.expired == 1


def test_a_client_that_left_costs_nothing() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        running = await occupied(batcher, engine)
        waiting = batcher.submit(rows_of([7], [8]), seconds=30)
        batcher.cancel(waiting)
        assert batcher.state().rows == 0
        batcher.cancel(running)
        batcher.cancel(running)
        assert running.future.cancelled()
        assert waiting.future.cancelled()

    batcher = run(scenario, engine)
    assert engine.batches == [[[1] * 100]]
    counts = batcher.state().counts
    assert (counts.cancelled, counts.rows_dropped, counts.answered) == (2, 2, 0)


def test_of_a_failed_batch_nobody_that_left_is_tried_again() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([n])) for n in (1, BAD, 2)]
        engine.release()
        engine.hold()
        await until(lambda: len(engine.batches) == 2)
        batcher.cancel(tickets[0])
        engine.release()
        await tickets[2].future
        assert engine.batches[2:] == [[[BAD]], [[2]]]
        with pytest.raises(InvalidRequestError):
            await tickets[1].future

    run(scenario, engine)


def test_the_queue_is_bounded_but_takes_any_request_when_it_is_empty() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        batcher.submit(rows_of([1] * 500))  # nothing waits: taken, whatever its size
        with pytest.raises(OverloadedError, match="the queue is full") as refused:
            batcher.submit(rows_of([1]))
        assert refused.value.retry_after > 0
        assert batcher.state().requests == 1

    batcher = run(scenario, engine, max_tokens=50)
    assert batcher.state().counts.refused_full == 1


def test_what_could_not_be_answered_in_time_is_refused() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        engine.seconds = 0.02
        batcher.run_now(rows_of([1] * 100))  # 100 tokens in 20 ms
        engine.seconds = 0
        first = await occupied(batcher, engine)
        tickets = [batcher.submit(rows_of([2] * 100), seconds=5) for _ in range(10)]
        for rows in (rows_of([1] * 10), rows_of(*[[1]] * 10)):  # however its tokens are written
            with pytest.raises(OverloadedError, match="could not come in time") as refused:
                batcher.submit(rows, seconds=0.1)
            assert 0 < refused.value.retry_after < 5
        with pytest.raises(OverloadedError):
            batcher.check_chance(0.1)
        batcher.check_chance(20)
        engine.release()
        await asyncio.gather(first.future, *(ticket.future for ticket in tickets))
        batcher.check_chance(0.001)  # an idle model takes everything
        await batcher.submit(rows_of([5]), seconds=1).future

    batcher = run(scenario, engine)
    counts = batcher.state().counts
    assert (counts.refused_late, counts.refused_early, counts.accepted) == (3, 1, 12)


def test_the_speed_is_known_after_the_golden_replay() -> None:
    engine = Engine(seconds=0.01)

    async def scenario(batcher: Batcher) -> None:
        assert batcher.state().tokens_per_second == 0
        answer = batcher.run_now(rows_of([1] * 200, [2] * 200), ("sum",))
        assert answer.outputs["sum"].ravel().tolist() == [200, 400]
        assert (answer.runs, answer.batch_rows) == (2, 2)
        assert 10_000 < batcher.state().tokens_per_second < 40_000  # two runners, 200 tokens in 10 ms each

    run(scenario, engine, runners=2, batch_tokens=200)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no nice value of their own")
def test_runners_let_the_event_loop_go_first() -> None:
    nice: list[int] = []

    class Looking(Engine):
        def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
            nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().run(inputs, outputs)

    async def scenario(batcher: Batcher) -> None:
        await batcher.submit(rows_of([7])).future
        nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    run(scenario, Looking())
    assert nice[0] == min(nice[1] + RUNNER_NICE, 19)


def test_closing_finishes_what_waits() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await occupied(batcher, engine)
        ticket = batcher.submit(rows_of([7]))
        closing = asyncio.create_task(asyncio.to_thread(batcher.close, 10.0))
        await asyncio.sleep(0.02)
        with pytest.raises(NotReadyError):
            batcher.submit(rows_of([8]))
        engine.release()
        assert (await ticket.future).outputs["sum"].tolist() == [[7]]
        assert await closing

    run(scenario, engine)


def test_closing_fails_what_is_left_when_time_is_up() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        running = await occupied(batcher, engine)
        waiting = batcher.submit(rows_of([7]))
        assert not batcher.close(timeout=0.02)
        for ticket in (running, waiting):
            with pytest.raises(NotReadyError):
                await ticket.future

    run(scenario, engine)
    assert len(engine.batches) == 1


def test_nothing_keeps_a_closed_batcher_alive() -> None:
    engine = Engine()

    async def scenario(batcher: Batcher) -> None:
        await batcher.submit(rows_of([7]), seconds=30).future

    reference = weakref.ref(run(scenario, engine, runners=2))
    gc.collect()
    assert reference() is None


def test_a_result_after_the_event_loop_was_closed_harms_nobody() -> None:
    engine = Engine()
    batcher = Batcher(engine, QueueConfig())

    async def leave() -> None:
        await occupied(batcher, engine)

    asyncio.run(leave())
    engine.release()
    assert batcher.close(timeout=5)


def test_requests_of_several_event_loops() -> None:
    engine = Engine()
    batcher = Batcher(engine, QueueConfig(), runners=2)
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        async def main() -> None:
            tickets = [batcher.submit(rows_of([number] * (1 + at % 7))) for at in range(50)]
            found[number] = [int((await ticket.future).outputs["sum"][0, 0]) for ticket in tickets]

        asyncio.run(main())

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20, 24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert batcher.close(timeout=5)
    assert found == {number: [number * (1 + at % 7) for at in range(50)] for number in range(20, 24)}
