"""The generator as a server uses it: an event loop full of clients that come and go, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support import decoders

PROGRAM = """
import asyncio, json, sys, threading, time
from pathlib import Path

from device_agent.api.generation.inbox import Inbox
from device_agent.inference.generation.request import Delta, GenerationRequest
from tests.support.decoders import TEXTS, encode
from tests.support.generation import make_generator, open_session


async def client(generator, index, leave):
    text, count = TEXTS[index % 4], 10 + index % 7
    pieces, inbox = [], Inbox(generator)
    inbox.submit([GenerationRequest(prompt=tuple(encode(text)), max_tokens=count)])
    while True:
        for _, event in await inbox.take():
            if not isinstance(event, Delta):
                return [text, count, "".join(pieces), event.reason, event.completion_tokens]
            pieces.append(event.text)
            if leave and len(pieces) > 2:
                inbox.cancel()
                return None


async def ticks(late):
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.002)
        late.append(time.perf_counter() - began - 0.002)


async def main(generator):
    late = []
    clock = asyncio.create_task(ticks(late))
    answers = await asyncio.gather(*(client(generator, index, index % 5 == 4) for index in range(60)))
    clock.cancel()
    return answers, sorted(late)


generator = make_generator(open_session(Path(sys.argv[1])), max_sequences=4, cache_tokens=1024, max_waiting=100)
answers, late = asyncio.run(main(generator))
while generator.state().active:  # who left gives its place back at the next token
    time.sleep(0.001)
state = generator.state()
closed = generator.close(10.0)
print(json.dumps({
    "answers": answers, "finished": dict(state.finished), "waiting": state.waiting, "active": state.active,
    "cache": state.cache_bytes, "limit": state.cache_limit, "closed": closed,
    "threads": [thread.name for thread in threading.enumerate()], "late": late[len(late) // 2],
}))
"""


def test_sixty_clients_that_come_and_go(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    by_text: dict[str, set[str]] = {}
    for answer in found["answers"]:
        if answer is not None:
            text, count, given, reason, tokens = answer
            assert (reason, tokens) == ("length", count)
            by_text.setdefault(text, set()).add(given)
    assert set(by_text) == set(decoders.TEXTS)
    for given in by_text.values():  # each is the beginning of the longest: no answer depends on its neighbours
        longest = max(given, key=len)
        assert all(longest.startswith(each.rstrip("\ufffd")) for each in given)
    assert found["finished"] == {"length": 48, "cancelled": 12}
    assert (found["waiting"], found["active"], found["closed"]) == (0, 0, True)
    assert found["cache"] <= found["limit"]
    assert found["threads"] == ["MainThread"], "no thread is left"
    assert found["late"] < 0.05, "the event loop goes on meanwhile"
    assert not done.stderr
