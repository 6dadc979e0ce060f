"""How fast this machine reads and copies memory: decoding reads all weights for each token, so this is its limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

ROUNDS = 9


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bytes per second, the best of some rounds.

    Attributes:
        read: Read by all threads together.
        copied: Copied: each byte is read and written once.
    """

    read: float
    copied: float


def bandwidth(size: int, threads: int) -> Bandwidth:
    """Measure with NumPy, whose loops leave the interpreter lock.

    Args:
        size: Bytes that are read again and again, as weights are: some of them may stay in a cache.
        threads: Each reads a part.
    """
    source = np.ones(size // 4, dtype=np.int32)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:

        def best(work: Callable[[tuple[np.ndarray, np.ndarray]], object]) -> float:
            times = []
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                list(pool.map(work, parts))
                times.append(time.perf_counter() - begun)
            return source.nbytes / min(times)

        return Bandwidth(read=best(lambda part: part[0].max()), copied=best(lambda part: np.copyto(part[1], part[0])))
