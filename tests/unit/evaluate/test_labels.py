"""Labels against answers: the task's own metrics for source and variant, and labels that do not fit the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgeonnx.errors import UsageError
from edgeonnx.evaluate.fidelity import measure_fidelity
from edgeonnx.evaluate.metrics import METRICS, task_metrics
from edgeonnx.model.reference import Reference
from edgeonnx.spec.manifest import Task

Make = Callable[..., Reference]
NAMES = ("bad", "good")
SOURCE = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]]
VARIANT = [[0.8, 0.2], [0.4, 0.6], [0.2, 0.8], [0.6, 0.4]]


def measured(
    made: Reference,
    rows: list[object],
    labels: list[object],
    task: Task = Task.TEXT_CLASSIFICATION,
    activation: str | None = None,
    names: tuple[str, ...] = NAMES,
) -> dict[str, float]:
    answers = [{"scores": np.asarray(row, dtype=np.float32)[None]} for row in rows]
    return measure_fidelity(task, made, answers, activation=activation, labels=labels, label_names=names).metrics


@pytest.mark.parametrize("labels", [["bad", "bad", "good", "good"], [0, 0, 1, 1], [0.0, 0.0, 1.0, 1.0]])
def test_classes_by_name_or_index(written_reference: Make, labels: list[object]) -> None:
    found = measured(written_reference(SOURCE), VARIANT, labels)
    assert found["source_accuracy"] == 1
    assert found["accuracy"] == 0.5
    assert found["metric_drop"] == 50
    assert found["source_macro_f1"] == 1
    assert found["macro_f1"] == 0.5
    assert set(task_metrics(Task.TEXT_CLASSIFICATION, labelled=True)) - set(found) == {
        "invariance_min",
        "invariance_diff",
    }


def test_a_better_variant_has_a_negative_drop(written_reference: Make) -> None:
    found = measured(written_reference(VARIANT), SOURCE, ["bad", "bad", "good", "good"])
    assert found["metric_drop"] == -50


def test_several_classes_a_text(written_reference: Make) -> None:
    made = written_reference([[0.9, 0.6], [0.1, 0.2], [0.1, 0.9]])
    found = measured(made, [[0.9, 0.4], [0.1, 0.2], [0.1, 0.9]], [("bad", "good"), (), ("good",)], activation="sigmoid")
    assert found["source_accuracy"] == 1
    assert found["accuracy"] == pytest.approx(2 / 3, abs=1e-6)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3) / 2, abs=1e-6)


def test_values(written_reference: Make) -> None:
    made = written_reference([[1], [2], [3]])
    found = measured(made, [[1], [3], [2]], [10, 20, 30])
    assert found["source_pearson"] == 1
    assert found["pearson"] == 0.5
    assert found["metric_drop"] == 50
    assert {"pearson", "metric_drop"} <= set(task_metrics(Task.TEXT_CLASSIFICATION, labelled=True, regression=True))


def test_tokens_that_count(written_reference: Make) -> None:
    made = written_reference([[[0.9, 0.1], [0.2, 0.8], [0.9, 0.1]], [[0.9, 0.1], [0.9, 0.1]]])
    rows = [[[0.9, 0.1], [0.7, 0.3], [0.1, 0.9]], [[0.9, 0.1], [0.1, 0.9]]]
    found = measured(made, rows, [("bad", "good", ""), ("", "bad")], Task.TOKEN_CLASSIFICATION)
    assert found["source_accuracy"] == 1
    assert found["accuracy"] == pytest.approx(1 / 3, abs=1e-6)
    assert "macro_f1" not in found


def test_a_broken_answer_has_the_worst_metric_and_leaves_the_sources(written_reference: Make) -> None:
    rows = [*VARIANT[:3], [np.nan, 0]]
    found = measured(written_reference(SOURCE), rows, [0, 0, 1, 1])
    assert found["accuracy"] == 0
    assert found["metric_drop"] == METRICS["metric_drop"].worst
    assert found["source_accuracy"] == 1


@pytest.mark.parametrize("label", ["Good", "", 2, -1, 0.5, ("good",)])
def test_an_unknown_class_is_named_with_its_row(written_reference: Make, label: object) -> None:
    with pytest.raises(UsageError) as caught:
        measured(written_reference(SOURCE), VARIANT, ["bad", "bad", label, "good"])
    assert caught.value.message == "is no class of the model"
    assert (caught.value.where or "").startswith("label of text 3, 'text 2'")
    assert caught.value.found == repr(label)
    assert caught.value.expected == "one of bad, good, or an index from 0 to 1"


def test_a_model_without_class_names_takes_indices_only(written_reference: Make) -> None:
    assert measured(written_reference(SOURCE), VARIANT, [0, 0, 1, 1], names=())["accuracy"] == 0.5
    with pytest.raises(UsageError, match="no class of the model"):
        measured(written_reference(SOURCE), VARIANT, ["0", "0", "1", "1"], names=())


@pytest.mark.parametrize("label", [("bad",), ("bad", "good", "good"), "bad", 1])
def test_labels_must_be_as_many_as_tokens(written_reference: Make, label: object) -> None:
    made = written_reference([[[0.9, 0.1], [0.2, 0.8]]])
    with pytest.raises(UsageError) as caught:
        measured(made, [[[0.9, 0.1], [0.2, 0.8]]], [label], Task.TOKEN_CLASSIFICATION)
    assert caught.value.message == "the labels do not fit the tokens"
    assert "a list of 2 class names" in (caught.value.expected or "")


def test_some_token_must_count(written_reference: Make) -> None:
    with pytest.raises(UsageError, match="no token has a label"):
        measured(written_reference([[[0.9, 0.1]]]), [[[0.9, 0.1]]], [("",)], Task.TOKEN_CLASSIFICATION)


@pytest.mark.parametrize(
    ("labels", "message"),
    [(["1", "2", "3"], "the label is no number"), ([2, 2, 2], "all labels are the same")],
)
def test_values_need_numbers_that_differ(written_reference: Make, labels: list[object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measured(written_reference([[1], [2], [3]]), [[1], [2], [3]], labels)


def test_a_model_with_several_values_takes_no_label(written_reference: Make) -> None:
    with pytest.raises(UsageError, match="the model gives several"):
        measured(written_reference(SOURCE), VARIANT, [1, 2, 3, 4], activation="identity")


@pytest.mark.parametrize("task", [Task.EMBEDDING, Task.TEXT_RANKING], ids=lambda task: task.value)
def test_tasks_without_labels_refuse_them(written_reference: Make, task: Task) -> None:
    with pytest.raises(UsageError, match="takes no labels"):
        measured(written_reference(SOURCE), VARIANT, [0, 0, 1, 1], task)


def test_labels_must_be_as_many_as_texts(written_reference: Make) -> None:
    with pytest.raises(ValueError, match="3 labels of 4 texts"):
        measured(written_reference(SOURCE), VARIANT, [0, 0, 1])
