"""The side of `bench/decode.py` that runs inside a process of one runtime: it answers orders, a line each, as JSON.

Standard library and NumPy only, so that it runs in every peer's environment. What a runtime prints by itself goes to
stderr: stdout belongs to the orders.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, as its caller saw it.

    Attributes:
        first: Seconds until the first token of any prompt.
        rest: Seconds from the first token to the last one.
        seconds: Seconds in all.
        answers: The answers, as tokens or as their text, so that they can be compared.
    """

    first: float
    rest: float
    seconds: float
    answers: Sequence[object]


class Runtime(Protocol):
    """What a runtime can be asked for. Every answer is greedy, and stop tokens are ignored."""

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> Run:
        """Continue prompts, all at once, each by `count` tokens."""

    def caches(self) -> int:
        """Bytes of its key and value caches; 0: it does not say."""

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 (tokens, vocabulary): at every position of one text."""


def timed(tokens: Iterator[int]) -> Run:
    """Take the tokens of one answer as they are made."""
    begun = time.perf_counter()
    found, times = [], []
    for token in tokens:
        times.append(time.perf_counter())
        found.append(token)
    return Run(first=times[0] - begun, rest=times[-1] - times[0], seconds=times[-1] - begun, answers=[found])


def rss() -> int:
    """Resident memory of this process in bytes, anonymous and mapped."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmRSS")


def serve(load: Callable[[], Runtime]) -> None:
    """Load the runtime and answer orders until stdin ends.

    Args:
        load: Makes it; everything was imported before, so that only the model's own memory is counted.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    before = rss()
    runtime = load()

    def generate(prompts: list[list[int]], count: int) -> dict[str, Any]:
        return asdict(runtime.generate(prompts, count))

    def memory() -> dict[str, Any]:
        return {"grown": rss() - before, "caches": runtime.caches()}

    def logits(ids: list[int], file: str) -> dict[str, Any]:
        np.save(file, runtime.logits(ids))
        return {}

    orders: dict[str, Callable[..., dict[str, Any]]] = {"generate": generate, "memory": memory, "logits": logits}
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            reply = orders[order.pop("do")](**order)
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises, the bench names it
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)
