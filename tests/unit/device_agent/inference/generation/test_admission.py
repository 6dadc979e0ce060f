from __future__ import annotations

from typing import Any

import pytest

from device_agent.inference.generation.admission import Pace, decide
from edgeonnx.errors import OverloadedError


def decided(**changes: Any) -> OverloadedError | None:
    known: dict[str, Any] = {
        "tokens": 100, "seconds": 10.0, "ahead": 0, "waiting": 0, "free": 1, "max_waiting": 2,
        "pace": Pace(prompt_token=0.01, step=0.05), "shortest": 4,
    }  # fmt: skip
    return decide(**{**known, **changes})


def test_a_request_is_taken_while_places_are_free() -> None:
    assert decided() is None
    assert decided(waiting=2, free=1) is None


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    refusal = decided(waiting=2, free=0)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(0.2)  # the shortest answer ends after 4 steps
    assert "2 requests" in str(refusal)


def test_without_a_queue_only_free_places_are_given() -> None:
    assert decided(max_waiting=0, waiting=0, free=1) is None
    assert decided(max_waiting=0, waiting=0, free=0) is not None


def test_a_request_whose_first_token_cannot_come_in_time_is_refused() -> None:
    refusal = decided(ahead=1000, seconds=10.0)
    assert refusal is not None
    assert refusal.retry_after == pytest.approx(1.0)
    assert decided(ahead=1000, seconds=11.1) is None


def test_an_idle_model_takes_a_request_whatever_the_estimate_says() -> None:
    assert decided(tokens=10_000, seconds=1.0) is None


def test_nothing_is_refused_before_anything_was_measured() -> None:
    assert decided(ahead=10_000, seconds=0.1, pace=Pace()) is None


def test_the_pace_follows_what_was_measured_last() -> None:
    pace = Pace()
    pace.read(100, 1.0)
    assert pace.prompt_token == pytest.approx(0.01)
    for _ in range(50):
        pace.read(100, 2.0)
        pace.stepped(0.1)
    assert pace.prompt_token == pytest.approx(0.02, rel=1e-3)
    assert pace.step == pytest.approx(0.1)
