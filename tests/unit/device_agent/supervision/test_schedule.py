from __future__ import annotations

import pytest

from device_agent.supervision.schedule import first_wait, next_wait


def test_a_device_without_a_model_looks_at_once() -> None:
    assert first_wait(3600.0, 0.9, installed=False) == 0.0


@pytest.mark.parametrize(("interval", "chance", "wait"), [(3600.0, 0.0, 0.0), (3600.0, 0.5, 30.0), (10.0, 0.8, 4.0)])
def test_the_first_look_is_soon_and_spread(interval: float, chance: float, wait: float) -> None:
    assert first_wait(interval, chance, installed=True) == pytest.approx(wait)


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 1800.0), (0.5, 3600.0), (1.0, 5400.0)])
def test_each_wait_is_between_half_of_the_interval_and_one_and_a_half(chance: float, wait: float) -> None:
    assert next_wait(3600.0, chance) == wait


def test_after_a_failure_the_next_looks_come_sooner_and_then_as_rarely_as_ever() -> None:
    waits = [next_wait(3600.0, 0.5, failures=failures) for failures in range(1, 12)]
    assert waits[:4] == [30.0, 60.0, 120.0, 240.0]
    assert waits == sorted(waits)
    assert waits[-1] == 3600.0
    assert next_wait(10.0, 0.5, failures=3) == 10.0
    assert next_wait(3600.0, 0.5, failures=10_000) == 3600.0
