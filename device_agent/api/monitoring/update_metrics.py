"""The metrics of updates; `updates` has what they tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from device_agent.slots.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from device_agent.api.monitoring.updates import UpdatesView


def update_metrics(updates: UpdatesView) -> Iterator[Metric]:
    """The metrics of updates."""
    yield from _runs(updates)
    state = GaugeMetricFamily(
        "edgeonnx_update_state",
        "1 for the state of the last attempt to install a release",
        labels=["model", "version", "state"],
    )
    left = GaugeMetricFamily(
        "edgeonnx_update_probation_seconds_left", "Time of a version's probation", labels=["model", "version"]
    )
    degraded = GaugeMetricFamily(
        "edgeonnx_update_degraded",
        "1 where another version serves than the one that is active, or none, or files were found damaged",
        labels=["model"],
    )
    blocked = GaugeMetricFamily(
        "edgeonnx_update_blocked", "Releases that this device will not take again", labels=["model"]
    )
    rollbacks = CounterMetricFamily("edgeonnx_update_rollbacks", "Versions that were rolled back", labels=["model"])
    for model in updates.models:
        degraded.add_metric([model.name], float(bool(model.degraded or model.damage)))
        blocked.add_metric([model.name], len(model.blocked))
        rollbacks.add_metric([model.name], model.rollbacks)
        attempt = model.attempt
        if attempt is None:
            continue
        for each in AttemptState:
            state.add_metric([model.name, attempt.version, each.value], float(each.value == attempt.state))
        if attempt.probation_seconds_left is not None:
            left.add_metric([model.name, attempt.version], attempt.probation_seconds_left)
    yield from (state, left, degraded, blocked, rollbacks)


def _runs(updates: UpdatesView) -> Iterator[Metric]:
    yield GaugeMetricFamily("edgeonnx_update_enrolled", "1 if the device has a repository to ask", updates.enrolled)
    yield GaugeMetricFamily("edgeonnx_update_running", "1 while an update runs", updates.running)
    if updates.checked_at is not None:
        yield GaugeMetricFamily(
            "edgeonnx_update_last_timestamp_seconds", "When the last update ended", updates.checked_at
        )
        yield GaugeMetricFamily("edgeonnx_update_last_ok", "1 if the last update ended without an error", updates.ok)
    yield CounterMetricFamily(
        "edgeonnx_update_received_bytes", "Bytes that all updates of this device received", updates.received_bytes
    )
    checks = CounterMetricFamily("edgeonnx_update_runs", "Updates that ended, by outcome", labels=["outcome"])
    for outcome, count in sorted(updates.counts.items()):
        checks.add_metric([outcome], count)
    yield checks
