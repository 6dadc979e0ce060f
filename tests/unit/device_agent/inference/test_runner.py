from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from device_agent.inference.runner import Runner


@pytest.fixture
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    assert runner.close(timeout=5)


def test_work_is_done_in_the_thread(runner: Runner) -> None:
    async def ask() -> None:
        done = await runner.submit(lambda: threading.current_thread().name)
        assert done.result == "runner"
        assert done.queue_seconds >= 0

    asyncio.run(ask())


def test_an_error_goes_to_the_caller_and_the_thread_lives_on(runner: Runner) -> None:
    def fail() -> None:
        raise LookupError("mine")

    async def ask() -> None:
        with pytest.raises(LookupError, match="mine"):
            await runner.submit(fail)
        assert (await runner.submit(lambda: 1)).result == 1

    asyncio.run(ask())


def test_the_event_loop_runs_on_while_work_is_done(runner: Runner) -> None:
    async def ask() -> None:
        release = threading.Event()
        pending = asyncio.create_task(runner.submit(lambda: release.wait(5)))
        await asyncio.sleep(0.01)  # the loop got here although the thread is busy
        release.set()
        assert (await pending).result is True

    asyncio.run(ask())


def test_work_of_a_caller_that_left_is_never_begun(runner: Runner) -> None:
    async def ask() -> None:
        release, begun = threading.Event(), []
        first = asyncio.create_task(runner.submit(lambda: release.wait(5)))
        second = asyncio.create_task(runner.submit(lambda: begun.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await second
        release.set()
        await first
        await runner.submit(lambda: None)
        assert begun == []

    asyncio.run(ask())


def test_work_is_done_in_order(runner: Runner) -> None:
    async def ask() -> list[int]:
        seen: list[int] = []
        await asyncio.gather(*(runner.submit(lambda number=number: seen.append(number)) for number in range(50)))
        return seen

    assert asyncio.run(ask()) == list(range(50))


def test_a_result_after_the_loop_was_closed_harms_nobody() -> None:
    runner = Runner()
    release = threading.Event()

    async def ask_and_leave() -> None:
        task = asyncio.create_task(runner.submit(lambda: release.wait(5)))
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(ask_and_leave())
    release.set()
    assert runner.close(timeout=5)
