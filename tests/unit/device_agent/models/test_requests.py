from __future__ import annotations

import asyncio

from device_agent.models.requests import Requests, came_in_time


def test_a_stop_waits_for_what_is_counted_and_knows_its_tasks() -> None:
    async def scenario() -> list[str]:
        requests, events, leave = Requests(), [], asyncio.Event()

        async def answer() -> None:
            with requests.counted():
                assert came_in_time()
                await leave.wait()
                events.append("answered")
            assert not came_in_time()

        await requests.none_left()
        tasks = [asyncio.ensure_future(answer()) for _ in range(2)]
        await asyncio.sleep(0)
        assert (requests.count, came_in_time()) == (2, False)
        stopping = asyncio.ensure_future(requests.none_left())
        await asyncio.sleep(0)
        assert not stopping.done()
        leave.set()
        await stopping
        events.append("stopped")
        await asyncio.gather(*tasks)
        return events

    assert asyncio.run(scenario()) == ["answered", "answered", "stopped"]
