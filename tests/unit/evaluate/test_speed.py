"""The arithmetic of speed, with a clock that only the graph moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from edgeonnx.evaluate.speed import machine, measure_speed, measure_together
from edgeonnx.model.reference import Reference

Tensors = dict[str, np.ndarray]
Make = Callable[..., Reference]


class Bench:
    """A clock, and graphs that take a time for each token of a batch."""

    def __init__(self) -> None:
        self.now = 100.0
        self.order: list[str] = []
        self.shapes: list[tuple[int, int]] = []

    def clock(self) -> float:
        return self.now

    def graph(self, name: str, per_token: float, *, extra: Callable[[int], float] = lambda _call: 0.0):
        calls = 0

        def run(inputs: Tensors) -> Tensors:
            nonlocal calls
            self.now += inputs["input_ids"].size * per_token + extra(calls)
            calls += 1
            self.order.append(name)
            self.shapes.append(inputs["input_ids"].shape)
            return {}

        return run


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def texts(written_reference: Make) -> Reference:
    return written_reference([[0.0]] * 10, lengths=[4] * 5 + [8] * 5)


def test_throughput_and_latency(bench: Bench, texts: Reference) -> None:
    found = measure_speed(bench.graph("a", 0.001), texts, threads=2, clock=bench.clock)
    assert found.threads == 2
    assert found.texts == 10
    assert found.tokens == 60
    # one batch of 10 x 8 tokens: padding takes time, and is no token
    assert found.texts_per_second == pytest.approx(10 / 0.080)
    assert found.tokens_per_second == pytest.approx(60 / 0.080)
    assert found.latency_ms == pytest.approx(6.0)
    assert found.latency_p95_ms == pytest.approx(8.0)


def test_the_best_pass_counts_for_throughput(bench: Bench, texts: Reference) -> None:
    """The warm-up's two runs do not count; of the passes, the second is disturbed."""
    slow = {0: 5.0, 1: 5.0, 3: 0.4}
    run = bench.graph("a", 0.001, extra=lambda call: slow.get(call, 0.0))
    assert measure_speed(run, texts, threads=1, clock=bench.clock).texts_per_second == pytest.approx(125)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 3.0])
def test_the_time_is_kept(bench: Bench, texts: Reference, seconds: float) -> None:
    run = bench.graph("a", 0.001)
    measure_speed(run, texts, threads=1, seconds=seconds, clock=bench.clock)
    warm_up, least = 0.080 + 0.004, 0.080 + 0.060
    assert bench.now - 100 - warm_up <= max(seconds, least) + 1e-9
    assert bench.now - 100 - warm_up >= max(least, seconds * 0.6)


def test_graphs_are_measured_in_turn(bench: Bench, texts: Reference) -> None:
    runs = {"slow": bench.graph("slow", 0.002), "fast": bench.graph("fast", 0.001)}
    found = measure_together(runs, texts, threads=1, seconds=1.0, clock=bench.clock)
    assert list(found) == ["slow", "fast"]
    assert found["fast"].texts_per_second == pytest.approx(2 * found["slow"].texts_per_second)
    assert found["slow"].latency_ms == pytest.approx(2 * found["fast"].latency_ms)
    measured = bench.order[4:]  # after the warm-up
    assert measured[:8] == ["slow", "fast", "fast", "slow", "slow", "fast", "fast", "slow"]
    assert measured.count("slow") == measured.count("fast")
    assert 0.6 * 2.0 <= bench.now - 100 - 0.252 <= 2.0  # a second for each; the warm-up does not count
    assert measure_together({}, texts, threads=1, clock=bench.clock) == {}


def test_noise_that_grows_hits_both_graphs(bench: Bench, texts: Reference) -> None:
    """The machine becomes slower all the time: measured one after the other, equal graphs would differ by far."""
    start = bench.now

    def run(inputs: Tensors) -> Tensors:
        bench.now += 0.01 * (1 + (bench.now - start))
        return {}

    found = measure_together({"a": run, "b": run}, texts, threads=1, seconds=3.0, clock=bench.clock)
    assert found["a"].texts_per_second == pytest.approx(found["b"].texts_per_second, rel=0.03)
    assert found["a"].latency_ms == pytest.approx(found["b"].latency_ms, rel=0.15)


def test_the_texts_of_a_pass_are_bounded_and_spread(bench: Bench, written_reference: Make) -> None:
    made = written_reference([[0.0]] * 400, lengths=[1 + row % 100 for row in range(400)])
    found = measure_speed(bench.graph("a", 0.0001), made, threads=1, seconds=0, rows=20, clock=bench.clock)
    assert found.texts == 20
    assert found.tokens == sum(range(1, 100, 5))
    assert all(rows * width <= 512 for rows, width in bench.shapes)


def test_a_clock_that_does_not_move(bench: Bench, texts: Reference) -> None:
    readings = iter(range(10**6))

    def ticking() -> float:
        return next(readings) // 50  # coarse: most runs take no time at all

    found = measure_speed(bench.graph("a", 0.0), texts, threads=1, clock=ticking)
    assert np.isfinite(found.texts_per_second)
    assert found.texts_per_second > 0


def test_the_machine_is_described(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 2.0GHz : x\n\nprocessor\t: 1\n", encoding="utf-8")
    found = machine(cpuinfo)
    assert found["processor"] == "Fast CPU @ 2.0GHz : x"
    assert found["onnxruntime"] == onnxruntime.__version__
    assert int(found["cores"]) >= 1
    assert found["architecture"]
    cpuinfo.write_text("processor\t: 0\nModel\t\t: Raspberry Pi 5\n", encoding="utf-8")
    assert machine(cpuinfo)["processor"] == "Raspberry Pi 5"
    assert machine(tmp_path / "none")["processor"]
    assert all(isinstance(value, str) for value in machine().values())
