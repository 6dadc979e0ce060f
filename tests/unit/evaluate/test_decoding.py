"""The speed of decoders, with a clock that the test moves: which runs are timed, and which round counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeonnx.evaluate.decoding import measure_decoding


class Clock:
    """Seconds that only work moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Paced:
    """A decoder whose runs take a known time, the first rounds longer."""

    def __init__(self, clock: Clock, prompt: float, step: float, slow_rounds: int = 0) -> None:
        self.clock, self.prompt, self.pace = clock, prompt, step
        self.slow = slow_rounds + 1  # the run before the clock starts, too
        self.places: list[int] = []

    def reserve(self, rows: int, places: int) -> None:
        self.room = (rows, places)

    def extend(self, row: int, ids: Sequence[int], start: int) -> NDArray[np.float32]:
        self.slow -= 1
        self.clock.now += self.prompt * (3 if self.slow >= 0 else 1)
        return np.eye(len(ids), 7, dtype=np.float32)

    def step(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        self.clock.now += self.pace * (3 if self.slow >= 0 else 1)
        self.places.append(int(lengths[0]))
        return np.eye(1, 7, dtype=np.float32)


def measure(decoders: dict[str, Any], clock: Clock, seconds: float = 1.0) -> dict[str, Any]:
    return measure_decoding(decoders, [1, 2, 3], threads=2, tokens=4, seconds=seconds, clock=clock)


def test_the_best_round_counts_and_the_prompt_is_apart() -> None:
    clock = Clock()
    decoders = {"fast": Paced(clock, 0.02, 0.01, slow_rounds=1), "slow": Paced(clock, 0.2, 0.1)}
    found = measure(decoders, clock)
    assert found["fast"].tokens_per_second == pytest.approx(100)
    assert found["fast"].prompt_ms == pytest.approx(20)
    assert found["slow"].tokens_per_second == pytest.approx(10)
    assert (found["fast"].threads, found["fast"].prompt_tokens, found["fast"].new_tokens) == (2, 3, 4)
    assert decoders["fast"].room == (1, 7)
    assert decoders["fast"].places[1:5] == [3, 4, 5, 6]


def test_two_rounds_are_made_however_long_they_take() -> None:
    clock = Clock()
    decoder = Paced(clock, 50.0, 10.0)
    measure({"one": decoder}, clock)
    assert len(decoder.places) == 1 + 2 * 4


def test_more_rounds_fit_into_the_time() -> None:
    clock = Clock()
    decoder = Paced(clock, 0.125, 0.125)  # exact in binary: a round takes 5/8 of a second
    measure({"one": decoder}, clock, seconds=5.0)
    assert len(decoder.places) == 1 + 8 * 4


def test_nothing_to_measure() -> None:
    assert measure({}, Clock()) == {}
