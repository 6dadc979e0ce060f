from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from device_agent.api.monitoring.metrics import Metrics
from device_agent.api.monitoring.status_updates import MOST_BLOCKED, updates_section, whole_seconds
from device_agent.api.monitoring.update_metrics import update_metrics
from device_agent.api.monitoring.updates import AttemptView, BlockedView, InstalledView, UpdatesView
from device_agent.slots.states import AttemptState
from edgeonnx.errors import (
    ClientGoneError,
    DeadlineExceededError,
    InferenceError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
)

ATTEMPT = AttemptView(
    version="2.0.0", state="probation", reason="", since=1.8e9, tries_left=2, probation_seconds_left=312.4
)
MODEL = InstalledView(name="tiny", active="2.0.0", serving="2.0.0", previous="1.0.0", attempt=ATTEMPT)
UPDATES = UpdatesView(
    enrolled=True,
    running=False,
    checked_at=1.8e9,
    message="tiny: 2.0.0 is offered",
    received_bytes=12345,
    next_seconds=1000.0,
    counts={"ok": 3, "unreachable": 1},
    models=[MODEL],
)


class Collected(Collector):
    def __init__(self, updates: UpdatesView) -> None:
        self.updates = updates

    def collect(self) -> Iterator[Metric]:
        return update_metrics(self.updates)


def exposed(updates: UpdatesView) -> set[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(updates))
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def test_the_metrics() -> None:
    lines = exposed(UPDATES)
    assert {
        "edgeonnx_update_enrolled 1.0",
        "edgeonnx_update_running 0.0",
        "edgeonnx_update_last_timestamp_seconds 1.8e+09",
        "edgeonnx_update_last_ok 1.0",
        "edgeonnx_update_received_bytes_total 12345.0",
        'edgeonnx_update_runs_total{outcome="ok"} 3.0',
        'edgeonnx_update_runs_total{outcome="unreachable"} 1.0',
        'edgeonnx_update_state{model="tiny",state="probation",version="2.0.0"} 1.0',
        'edgeonnx_update_state{model="tiny",state="committed",version="2.0.0"} 0.0',
        'edgeonnx_update_probation_seconds_left{model="tiny",version="2.0.0"} 312.4',
        'edgeonnx_update_degraded{model="tiny"} 0.0',
        'edgeonnx_update_blocked{model="tiny"} 0.0',
        'edgeonnx_update_rollbacks_total{model="tiny"} 0.0',
    } <= lines
    states = [line for line in lines if line.startswith("edgeonnx_update_state")]
    assert len(states) == len(AttemptState)


def test_the_metrics_of_a_device_with_troubles() -> None:
    blocked = [BlockedView(version="2.0.0", reason="it failed", at=1.8e9)]
    model = replace(MODEL, active="1.0.0", degraded="damaged", blocked=blocked, rollbacks=1, attempt=None)
    lines = exposed(UpdatesView(enrolled=False, running=True, models=[model]))
    assert {
        "edgeonnx_update_enrolled 0.0",
        "edgeonnx_update_running 1.0",
        'edgeonnx_update_degraded{model="tiny"} 1.0',
        'edgeonnx_update_blocked{model="tiny"} 1.0',
        'edgeonnx_update_rollbacks_total{model="tiny"} 1.0',
    } <= lines
    assert not [line for line in lines if "timestamp" in line or "update_state" in line or "seconds_left" in line]


@pytest.mark.parametrize(
    ("updates", "texts"),
    [
        (UPDATES, ("last look 2027-01-15 08:00:00 UTC", "in order", "the next one in 16 min", "5 min left", "1.0.0")),
        (replace(UPDATES, running=True, ok=False, message="<no route>"), ("failed", "&lt;no route&gt;", "goes on now")),
        (UpdatesView(enrolled=False, running=False), ("not enrolled", "no model is installed yet")),
        (UpdatesView(enrolled=True, running=False), ("no look yet",)),
    ],
)
def test_the_section_of_the_status_page(updates: UpdatesView, texts: tuple[str, ...]) -> None:
    page = updates_section(updates)
    for text in texts:
        assert text in page


def test_the_page_tells_what_is_wrong_and_escapes_what_comes_from_outside() -> None:
    evil = "<script>alert(1)</script>"
    blocked = [BlockedView(version=str(number), reason=evil, at=1.8e9) for number in range(MOST_BLOCKED + 2)]
    attempt = replace(ATTEMPT, state="rolled back", reason=evil, probation_seconds_left=None)
    model = replace(
        MODEL, serving=None, active=None, previous=None, pin=evil, degraded=evil, damage=evil, blocked=blocked
    )
    page = updates_section(replace(UPDATES, models=[replace(model, attempt=attempt)]))
    assert evil not in page
    assert page.count("&lt;script&gt;") == MOST_BLOCKED + 4
    assert "and 2 more" in page
    assert page.index("<strong>6</strong>") < page.index("<strong>2</strong>")
    assert "<strong>1</strong>" not in page


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (119.0, "119 s"), (720.0, "12 min"), (12000.0, "3 h 20 min")]
)
def test_time_spans(seconds: float, text: str) -> None:
    assert whole_seconds(seconds) == text


class Watcher:
    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def answered(self, loaded: Any, seconds: float) -> None:
        self.seen.append(round(seconds, 6))

    def faulted(self, loaded: Any) -> None:
        self.seen.append(None)


def test_whoever_judges_a_version_is_told_of_answers_and_of_faults_of_the_agents_own() -> None:
    metrics, watcher = Metrics(), Watcher()
    metrics.watcher = watcher
    loaded: Any = SimpleNamespace(name="tiny", version="1")
    answer: Any = SimpleNamespace(
        lengths=np.array([3, 4]),
        queue_seconds=0.25,
        tokenize_seconds=0.0,
        infer_seconds=0.1,
        runs=1,
        batch_rows=2,
    )
    metrics.succeeded(loaded, answer, output=0.0, total=0.75)
    assert watcher.seen == [0.5]
    for error in (
        InvalidRequestError("wrong"),
        OverloadedError("busy", retry_after=1.0),
        DeadlineExceededError("late"),
        NotReadyError("stopping"),
        ClientGoneError("gone"),
        None,
    ):
        metrics.failed(loaded, error)
    assert watcher.seen == [0.5]
    for own in (InferenceError("the runtime"), RuntimeError("a bug")):
        metrics.failed(loaded, own)
    assert watcher.seen == [0.5, None, None]
