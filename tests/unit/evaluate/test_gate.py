"""The gate: defaults for every task and precision, the user's own bounds, and what a failure says."""

from __future__ import annotations

import math

import pytest

from edgeonnx.errors import GateError, UsageError
from edgeonnx.evaluate.gate import PRECISIONS, default_thresholds, gate_error, with_overrides
from edgeonnx.evaluate.metrics import METRICS, is_regression, task_metrics
from edgeonnx.spec.evidence import SearchPoint, WorstText
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import Threshold, judge

KINDS = [(task, False) for task in Task] + [(Task.TEXT_CLASSIFICATION, True)]


def bounds(task: Task, precision: str, *, labelled: bool = False, regression: bool = False) -> dict[str, float]:
    found = default_thresholds(task, precision, labelled=labelled, regression=regression)
    return {item.metric: item.at_least if item.at_least is not None else item.at_most or 0.0 for item in found}


@pytest.mark.parametrize(("task", "regression"), KINDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("labelled", [True, False])
def test_every_default_is_measured_and_points_the_right_way(
    task: Task, regression: bool, precision: str, labelled: bool
) -> None:
    found = default_thresholds(task, precision, labelled=labelled, regression=regression)
    measured = task_metrics(task, labelled=labelled, regression=regression)
    names = [item.metric for item in found]
    assert set(names) <= set(measured)
    assert len(names) == len(set(names))
    assert "invariance_min" in names
    assert ("metric_drop" in names) == (labelled and "classification" in task.value)
    for item in found:
        assert (item.at_least is not None) == METRICS[item.metric].at_least
    assert len(judge({name: METRICS[name].worst for name in names}, found).failures) == len(found)


@pytest.mark.parametrize(("task", "regression"), KINDS)
def test_lower_precision_is_never_asked_for_more(task: Task, regression: bool) -> None:
    for finer, coarser in (("fp32", "fp16"), ("fp16", "bf16"), ("fp16", "int8"), ("int8", "int4")):
        fine, coarse = (bounds(task, name, labelled=True, regression=regression) for name in (finer, coarser))
        for name in fine.keys() & coarse.keys():
            better = fine[name] >= coarse[name] if METRICS[name].at_least else fine[name] <= coarse[name]
            assert better, (name, finer, coarser)


def test_the_bounds_of_int8() -> None:
    assert bounds(Task.EMBEDDING, "int8") == {
        "cosine_mean": 0.998,
        "cosine_min": 0.98,
        "rank_correlation": 0.99,
        "invariance_min": 0.9999,
    }
    assert bounds(Task.TEXT_CLASSIFICATION, "int8", labelled=True)["metric_drop"] == 0.5


def test_the_precision_must_be_known() -> None:
    with pytest.raises(UsageError) as caught:
        default_thresholds(Task.EMBEDDING, "int3", labelled=False)
    assert "int8" in (caught.value.expected or "")


def test_overrides_replace_and_add() -> None:
    defaults = default_thresholds(Task.TEXT_CLASSIFICATION, "int8", labelled=True)
    metrics = task_metrics(Task.TEXT_CLASSIFICATION, labelled=True)
    found = with_overrides(defaults, {"agreement": 0.9, "score_diff_max": 0.3}, metrics=metrics)
    assert Threshold(metric="agreement", at_least=0.9) in found
    assert Threshold(metric="score_diff_max", at_most=0.3) in found
    assert len(found) == len(defaults) + 1
    assert with_overrides(defaults, {}, metrics=metrics) == defaults


def test_an_override_of_a_metric_that_is_not_measured_lists_those_that_are() -> None:
    metrics = task_metrics(Task.EMBEDDING, labelled=False)
    with pytest.raises(UsageError) as caught:
        with_overrides((), {"agreement": 0.9}, metrics=metrics)
    assert caught.value.expected == f"one of {', '.join(metrics)}"
    assert caught.value.found == "agreement"
    with pytest.raises(UsageError) as caught:
        with_overrides((), {"metric_drop": 0.9}, metrics=task_metrics(Task.TEXT_CLASSIFICATION, labelled=False))
    assert "--texts" in (caught.value.hint or "")


@pytest.mark.parametrize("value", [1.1, -1.1, math.nan, math.inf])
def test_a_bound_that_no_value_could_keep(value: float) -> None:
    with pytest.raises(UsageError) as caught:
        with_overrides((), {"cosine_min": value}, metrics=task_metrics(Task.EMBEDDING, labelled=False))
    assert caught.value.where == "--min-cosine"
    assert caught.value.expected == "-1 to 1"


def test_options_are_distinct_and_say_their_direction() -> None:
    options = [metric.option for metric in METRICS.values()]
    assert len(set(options)) == len(options)
    for metric in METRICS.values():
        assert metric.option.startswith("--min-" if metric.at_least else "--max-")


@pytest.mark.parametrize(
    ("task", "activation", "outputs", "expected"),
    [
        (Task.TEXT_CLASSIFICATION, "sigmoid", 1, True),
        (Task.TEXT_CLASSIFICATION, "identity", 3, True),
        (Task.TEXT_CLASSIFICATION, "softmax", 3, False),
        (Task.TEXT_CLASSIFICATION, "sigmoid", 3, False),
        (Task.TEXT_RANKING, "identity", 1, False),
    ],
)
def test_what_is_a_regression(task: Task, activation: str, outputs: int, expected: bool) -> None:
    assert is_regression(task, activation, outputs) is expected


def test_the_error_says_what_was_asked_found_tried_and_where_it_is_worst() -> None:
    verdict = judge(
        {"cosine_mean": 0.9991, "cosine_min": 0.971, "invariance_min": 1.0},
        default_thresholds(Task.EMBEDDING, "int8", labelled=False),
    )
    worst = (WorstText(text="a\x1b[31mtext", tokens=4, score=0.971),)
    tried = [
        SearchPoint(name="keep-00", kept=0, metrics={"cosine_min": 0.95}, passed=False),
        SearchPoint(name="keep-01", kept=1, metrics={"cosine_min": 0.971}, passed=False),
    ]
    error = gate_error("cpu-int8", verdict, worst, tried=tried)
    assert isinstance(error, GateError)
    assert error.exit_code == 8
    assert error.where == "cpu-int8"
    assert error.message.endswith("none of 2 candidates keeps the thresholds")
    assert error.expected == "cosine_min >= 0.98; rank_correlation >= 0.99"
    assert error.found == "cosine_min 0.971; rank_correlation nan"
    assert error.details == (
        r"worst text: 'a\x1b[31mtext' (4 tokens): 0.971",
        "tried keep-00: 0 groups in higher precision: cosine_min 0.95",
        "tried keep-01: 1 groups in higher precision: cosine_min 0.971",
    )
    assert "--min-cosine, --min-rank-correlation" in (error.hint or "")
    assert "nothing was written" in (error.hint or "")
    assert gate_error("cpu-int8", verdict, ()).message.endswith("it does not keep the thresholds")
