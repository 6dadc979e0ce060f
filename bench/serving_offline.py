"""The least that must be done: the same bundle, tokenized and run in this process, without a server.

The model is opened as the agent opens it, with `device_agent.models.loading.load_model`; no request, queue or answer is
left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from device_agent.config import AgentConfig, RuntimeConfig
from device_agent.models.loading import load_model
from edgeonnx.evaluate.answers import plan_batches

RUNNERS = 2
TOKEN_BUDGET = 512
Inputs = dict[str, NDArray[np.int64]]


class Offline:
    """A loaded bundle; a context manager.

    Args:
        bundle: The bundle's folder.
        threads: Threads of one run; None: as the agent decides.
    """

    def __init__(self, bundle: Path, threads: int | None = None) -> None:
        self._loaded = load_model(bundle, AgentConfig(runtime=RuntimeConfig(threads=threads)))
        self._engine, self._text = self._loaded.engine, self._loaded.text
        self.name = self._loaded.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loaded.close(5.0)

    def alone(self, text: str) -> float:
        """Seconds to tokenize one text and run it."""
        begin = time.perf_counter()
        self._engine.run(self._inputs([text], [0]))
        return time.perf_counter() - begin

    def texts_per_second(self, texts: Sequence[str], seconds: float) -> float:
        """Throughput: tokenized beforehand, sorted by length, batches of 512 tokens, two threads.

        Args:
            texts: What one pass runs.
            seconds: At least so long; a pass that was begun is ended.
        """
        batches = self._batches(texts)
        for inputs in batches[:2]:
            self._engine.run(inputs)
        begin = time.perf_counter()
        passes = 0
        while (elapsed := time.perf_counter() - begin) < seconds:
            self._pass(batches)
            passes += 1
        return passes * len(texts) / elapsed

    def _pass(self, batches: Sequence[Inputs]) -> None:
        """Run all batches once, the longest first: no thread is then left with a long one in the end."""
        places = iter(range(len(batches) - 1, -1, -1))
        lock = threading.Lock()
        threads = [threading.Thread(target=self._work, args=(batches, places, lock)) for _ in range(RUNNERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, batches: Sequence[Inputs], places: Iterator[int], lock: threading.Lock) -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            self._engine.run(batches[place])

    def _batches(self, texts: Sequence[str]) -> list[Inputs]:
        lengths = [int(length) for length in self._text.rows(texts).lengths]
        return [self._inputs(texts, group) for group in plan_batches(lengths, budget=TOKEN_BUDGET)]

    def _inputs(self, texts: Sequence[str], rows: Sequence[int]) -> Inputs:
        """The graph's inputs for some of the texts, int64 (rows, longest), padded."""
        every = self._text.batch([texts[row] for row in rows])
        return {name: every[name] for name in self._engine.inputs}
