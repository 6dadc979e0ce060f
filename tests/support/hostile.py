"""What tests of hostile input share: a bystander who must go on being answered, and an eye on the agent's memory."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.support.agent import Agent

GOOD = b'{"model": "tiny", "input": "the cat"}'
SECONDS = 3.0
"""The longest that a bystander may wait: far more than an answer takes, far less than a hostile client can wait."""


class Bystander:
    """A client that asks a good question again and again while others misbehave.

    Args:
        agent: The agent.
        growth: Most bytes by which the agent's memory may grow meanwhile (the highest resident size, VmHWM).
        headers: Further headers of its requests.
    """

    def __init__(self, agent: Agent, *, growth: int, headers: dict[str, str] | None = None) -> None:
        self._agent = agent
        self._growth = growth
        self._headers = headers or {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.answers = 0
        self.slowest = 0.0
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._before = resident_bytes(self._agent)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(30)
        if kind is not None:
            return
        assert self._agent.process.poll() is None, self._agent.log
        assert not self.failures, self.failures[:5]
        assert self.answers > 0
        assert self.slowest < SECONDS, f"a bystander waited for {self.slowest:.1f} s"
        grown = resident_bytes(self._agent) - self._before
        assert grown < self._growth, f"the agent's memory grew by {grown >> 20} MiB"

    def _ask(self) -> None:
        with httpx.Client(base_url=self._agent.url, timeout=30, verify=False) as client:
            while not self._end.is_set():
                started = time.monotonic()
                try:
                    response = client.post("/v1/embeddings", content=GOOD, headers=self._headers)
                    if response.status_code != 200:
                        self.failures.append(f"{response.status_code} {response.text}")
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                self.slowest = max(self.slowest, time.monotonic() - started)
                self.answers += 1
                time.sleep(0.02)


def resident_bytes(agent: Agent) -> int:
    """The largest resident size that the agent had so far."""
    text = Path(f"/proc/{agent.process.pid}/status").read_text(encoding="utf-8")
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def connect(agent: Agent) -> socket.socket:
    """A plain connection to the agent."""
    host, port = agent.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def settings(folder: Path, text: str) -> tuple[str, ...]:
    """Options that give the agent these settings."""
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return ("--config", str(path))
