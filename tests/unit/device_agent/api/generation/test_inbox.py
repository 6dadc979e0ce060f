from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from device_agent.api.generation import inbox as module
from device_agent.api.generation.inbox import Inbox
from device_agent.inference.generation.request import Delta, GenerationRequest
from edgeonnx.errors import ClientGoneError, OverloadedError, SlowClientError

REQUEST = GenerationRequest(prompt=(1,), max_tokens=1)


class Handle:
    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


class Generator:
    """Takes `room` requests; a test sends their events."""

    def __init__(self, room: int = 9) -> None:
        self.room = room
        self.sinks: list[Callable[..., None]] = []
        self.handles: list[Handle] = []

    def submit(self, request: GenerationRequest, sink: Callable[..., None]) -> Handle:
        if len(self.sinks) == self.room:
            raise OverloadedError("too many", retry_after=1)
        self.sinks.append(sink)
        self.handles.append(Handle())
        return self.handles[-1]

    def send(self, index: int, *texts: str) -> None:
        """Events as they come: from another thread."""
        thread = threading.Thread(target=tell, args=(self.sinks[index], [Delta(text=text) for text in texts]))
        thread.start()
        thread.join()


def tell(sink: Callable[..., Callable[[], object] | None], events: list[Delta]) -> None:
    wake = sink(events)
    if wake is not None:
        wake()


def run(test: Callable[[Generator, Inbox], object], generator: Generator | None = None) -> Generator:
    made = generator or Generator()

    async def main() -> None:
        await test(made, Inbox(made))  # type: ignore[arg-type, misc]

    asyncio.run(asyncio.wait_for(main(), 10))
    return made


def test_events_come_in_order_with_their_places() -> None:
    async def test(generator: Generator, inbox: Inbox) -> None:
        inbox.submit([REQUEST] * 2)
        generator.send(1, "a", "b")
        generator.send(0, "c")
        assert [(index, event.text) for index, event in await inbox.take()] == [(1, "a"), (1, "b"), (0, "c")]
        waiting = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        generator.send(0, "d")
        assert [event.text for _, event in await waiting] == ["d"]

    run(test)


def test_nothing_is_lost_between_many_threads() -> None:
    async def test(generator: Generator, inbox: Inbox) -> None:
        inbox.submit([REQUEST] * 4)
        threads = [
            threading.Thread(target=lambda sink=sink: [tell(sink, [Delta(text="x")]) for _ in range(500)])
            for sink in generator.sinks
        ]
        for thread in threads:
            thread.start()
        seen = 0
        while seen < 2000:
            seen += len(await inbox.take())
        for thread in threads:
            thread.join()
        assert seen == 2000

    run(test)


def test_one_wake_is_enough_for_many_requests() -> None:
    """As a generator calls it: all are told, then each wake that differs."""

    async def test(generator: Generator, inbox: Inbox) -> None:
        others = [Inbox(generator) for _ in range(3)]  # type: ignore[arg-type]
        for each in (inbox, *others):
            each.submit([REQUEST])
        wakes = {sink([Delta(text="a")]) for sink in generator.sinks}
        assert len(wakes) == 1
        assert {sink([Delta(text="b")]) for sink in generator.sinks} == {None}  # they have been called for
        wakes.pop()()
        for each in (inbox, *others):
            assert [event.text for _, event in await each.take()] == ["a", "b"]

    run(test)


def test_all_or_none_is_asked_for() -> None:
    async def test(generator: Generator, inbox: Inbox) -> None:
        with pytest.raises(OverloadedError):
            inbox.submit([REQUEST] * 3)

    generator = run(test, Generator(room=2))
    assert [handle.cancelled for handle in generator.handles] == [1, 1]


def test_a_client_that_leaves_while_nothing_comes() -> None:
    async def test(generator: Generator, inbox: Inbox) -> None:
        inbox.submit([REQUEST] * 2)
        asyncio.get_running_loop().call_later(0.01, inbox.leave)
        with pytest.raises(ClientGoneError):
            await inbox.take()

    assert [handle.cancelled for handle in run(test).handles] == [1, 1]


def test_a_client_that_left_gets_nothing_more() -> None:
    async def test(generator: Generator, inbox: Inbox) -> None:
        inbox.submit([REQUEST])
        generator.send(0, "a")
        inbox.leave()
        generator.send(0, "b")
        with pytest.raises(ClientGoneError):
            await inbox.take()

    run(test)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)

    async def test(generator: Generator, inbox: Inbox) -> None:
        inbox.submit([REQUEST])
        for _ in range(10):
            generator.send(0, "a")
        await asyncio.sleep(0)
        assert generator.handles[0].cancelled == 0
        generator.send(0, "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert generator.handles[0].cancelled == 1
        with pytest.raises(SlowClientError, match="at most 10 pieces"):
            await inbox.take()

    run(test)


def test_events_after_the_loop_are_dropped() -> None:
    kept: list[Generator] = []

    async def test(generator: Generator, inbox: Inbox) -> None:
        inbox.submit([REQUEST])
        kept.append(generator)

    run(test)
    kept[0].send(0, "late")
