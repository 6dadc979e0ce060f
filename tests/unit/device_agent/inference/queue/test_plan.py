from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from device_agent.inference.queue import plan
from device_agent.inference.queue.plan import Measurement


def found(runners: int, threads: int, speed: float, solo: float) -> Measurement:
    return Measurement(runners=runners, threads=threads, tokens_per_second=speed, solo_seconds=solo)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (1, [(1, 1)]),
        (2, [(2, 1), (1, 2)]),
        (4, [(4, 1), (2, 2), (1, 4)]),
        (6, [(6, 1), (3, 2), (1, 6), (1, 4)]),
        (16, [(16, 1), (8, 2), (4, 4), (1, 16)]),
    ],
)
def test_candidates(cpus: int, expected: list[tuple[int, int]]) -> None:
    assert plan.candidates(cpus) == expected


def chosen(*measurements: Measurement) -> tuple[int, int]:
    best = plan.choose(measurements)
    return best.runners, best.threads


def test_throughput_decides() -> None:
    assert chosen(found(2, 1, 20_000, 0.003), found(1, 2, 11_000, 0.002)) == (2, 1)


def test_where_throughput_is_equal_single_texts_decide() -> None:
    assert chosen(found(2, 1, 20_000, 0.003), found(1, 2, 19_000, 0.002)) == (1, 2)


def test_half_the_time_of_a_single_text_is_worth_a_quarter_of_the_throughput() -> None:
    slow = found(16, 1, 20_000, 1.6)
    assert chosen(slow, found(4, 4, 16_000, 0.4)) == (4, 4)
    assert chosen(slow, found(4, 4, 14_000, 0.4)) == (16, 1)
    assert chosen(slow, found(4, 4, 16_000, 0.9)) == (16, 1)


def test_the_reason_has_the_figures() -> None:
    reason = plan.choose([found(2, 1, 20_000, 0.003), found(1, 2, 11_000, 0.002)]).reason
    assert "2 x 1 threads 20000 tokens/s and 3.0 ms" in reason
    assert "against 1 x 2 threads 11000" in reason


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"runners": 3}, (3, 2)),
        ({"threads": 4}, (2, 4)),
        ({"runners": 1, "threads": 1}, (1, 1)),
        ({"runners": 30}, (30, 1)),
        ({"cpus": 1}, (1, 1)),
        ({"on_cpu": False}, (1, 1)),
        ({"on_cpu": False, "runners": 2}, (2, 1)),
    ],
)
def test_what_is_not_measured(settings: dict[str, int | bool], expected: tuple[int, int]) -> None:
    fixed = plan.fixed_plan(**{"cpus": 8, "runners": None, "threads": None, "on_cpu": True, **settings})  # type: ignore[arg-type]
    assert fixed is not None
    assert (fixed.runners, fixed.threads) == expected


def test_everything_else_is_measured() -> None:
    assert plan.fixed_plan(cpus=8, runners=None, threads=None, on_cpu=True) is None


MEASURED = [found(2, 1, 20_000, 0.003), found(1, 2, 11_000, 0.002)]


def test_measurements_survive_the_cache() -> None:
    data = json.loads(json.dumps(plan.to_dict(MEASURED, cpus=2, budget=512)))
    assert plan.from_dict(data, cpus=2, budget=512) == MEASURED


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"cpus": 4},
        {"budget": 256},
        {"measurements": []},
        {"measurements": None},
        {"measurements": [{"runners": 2}]},
        {"measurements": [{"runners": 2, "threads": 1, "tokens_per_second": "fast", "solo_seconds": 1}] * 2},
    ],
)
def test_what_does_not_fit_is_measured_again(change: dict[str, object]) -> None:
    data = {**plan.to_dict(MEASURED, cpus=2, budget=512), **change}
    assert plan.from_dict(data, cpus=2, budget=512) is None


@pytest.mark.parametrize("data", [None, [], "x", {}])
def test_what_is_no_measurement(data: object) -> None:
    assert plan.from_dict(data, cpus=2, budget=512) is None


def test_a_figure_that_cannot_be_is_measured_again() -> None:
    data = plan.to_dict([replace(MEASURED[0], solo_seconds=0.0), MEASURED[1]], cpus=2, budget=512)
    assert plan.from_dict(data, cpus=2, budget=512) is None


class Engine:
    """Takes 20 microseconds a token; with two threads 15. Counts the most calls at one time."""

    inputs = ("input_ids",)
    provider = "FakeProvider"

    def __init__(self, threads: int) -> None:
        self.seconds = {1: 20e-6, 2: 15e-6}[threads]
        self.rows: list[int] = []
        self.together = self.most = 0
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        with self._lock:
            self.rows.append(len(inputs["input_ids"]))
            self.together += 1
            self.most = max(self.most, self.together)
        time.sleep(self.seconds * inputs["input_ids"].size)
        with self._lock:
            self.together -= 1
        return {}


def test_each_way_is_measured_with_its_runners_and_threads() -> None:
    engines: dict[int, Engine] = {}

    def open_runs(threads: int) -> Engine:
        return engines.setdefault(threads, Engine(threads))

    row = {"input_ids": np.ones((1, 25), dtype=np.int64)}
    began = time.perf_counter()
    measured = plan.measure(open_runs, row, cpus=2, budget=512)
    assert time.perf_counter() - began < 0.5
    assert [(each.runners, each.threads) for each in measured] == plan.candidates(2)
    assert [engines[threads].most for threads in (1, 2)] == [2, 1]
    assert max(engines[1].rows) * 25 <= 512
    # Two at 20 against one at 15: 1.33 times as much; with one runner counted it would be 0.67.
    assert measured[0].tokens_per_second > 0.9 * measured[1].tokens_per_second
    assert measured[0].solo_seconds >= 25 * 20e-6


def test_a_slow_model_is_measured_with_small_batches() -> None:
    engine = Engine(1)
    engine.seconds = 1e-3
    measured = plan.measure(lambda _: engine, {"input_ids": np.ones((1, 20), dtype=np.int64)}, cpus=1, budget=512)
    assert max(engine.rows) <= 2
    assert measured[0].tokens_per_second == pytest.approx(1000, rel=0.3)
