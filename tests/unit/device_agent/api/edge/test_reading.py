from __future__ import annotations

import asyncio
import socket

from device_agent.api.edge.reading import Reading, acknowledged_bytes


def looks(*seen: tuple[float, int, int]) -> list[bool]:
    """What a client with 10 seconds is found to be at each look: time, bytes that wait, bytes acknowledged."""
    reading = Reading(10)
    return [reading.stuck(*each) for each in seen]


def test_nothing_waits() -> None:
    assert looks((0, 0, 0), (100, 0, 0), (200, 0, 0)) == [False] * 3


def test_nothing_is_taken() -> None:
    assert looks((0, 5, 7), (10, 5, 7), (10.1, 5, 7)) == [False, False, True]


def test_a_silent_stream_is_not_waited_for() -> None:
    assert looks((0, 5, 0), (9, 0, 0), (100, 5, 0), (109, 5, 0)) == [False] * 4


def test_what_waits_shrinks() -> None:
    assert looks((0, 9, 0), (9, 8, 0), (18, 7, 0), (27, 6, 0)) == [False] * 4


def test_a_client_that_reads_more_slowly_than_the_model_writes() -> None:
    """What waits grows all the time, and so does what it has."""
    assert looks(*((9.0 * look, 10 * (1 + look), look) for look in range(9))) == [False] * 9


def test_what_waits_grows_and_nothing_is_taken() -> None:
    assert looks((0, 1, 3), (9, 2, 3), (18, 3, 3)) == [False, False, True]


def test_the_kernel_counts_what_the_client_has() -> None:
    async def run() -> list[int]:
        served: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        server = await asyncio.start_server(lambda _, writer: served.put_nowait(writer), "127.0.0.1", 0)
        reader, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer = await served.get()
        found = [acknowledged_bytes(writer.transport)]
        writer.write(b"x" * 1000)
        await reader.readexactly(1000)
        await asyncio.sleep(0.05)
        found.append(acknowledged_bytes(writer.transport))
        for each in (client, writer):
            each.close()
            await each.wait_closed()
        server.close()
        return found

    before, after = asyncio.run(run())
    assert after - before == 1000


def test_a_connection_that_is_none_of_tcp() -> None:
    async def run() -> int:
        left, right = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=left)
        found = acknowledged_bytes(writer.transport)
        writer.close()
        right.close()
        return found

    assert asyncio.run(run()) == 0
