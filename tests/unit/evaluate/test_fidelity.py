"""Fidelity by task: figures worked out by hand, and broken answers that must not pass as good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from edgeonnx.evaluate.answers import answer_rows
from edgeonnx.evaluate.fidelity import Fidelity, measure_fidelity
from edgeonnx.evaluate.gate import default_thresholds
from edgeonnx.evaluate.metrics import METRICS, WORST_DIFF, task_metrics
from edgeonnx.model.reference import Reference
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import judge
from tests.support.bundles import OUTPUTS, reference

Make = Callable[..., Reference]
SCORED = [Task.TEXT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.TEXT_RANKING]


def answers_of(rows: list[object], output: str = "scores") -> list[dict[str, np.ndarray]]:
    return [{output: np.asarray(row, dtype=np.float32)[None]} for row in rows]


@pytest.mark.parametrize("task", OUTPUTS, ids=lambda task: task.value)
def test_the_source_itself_is_perfect(tiny_reference: Make, task: Task) -> None:
    made = tiny_reference(task)
    found = measure_fidelity(task, made, answer_rows(lambda inputs: reference(task, inputs), made))
    bounds = [item for item in default_thresholds(task, "fp32", labelled=False) if item.metric != "invariance_min"]
    assert judge(found.metrics, bounds).passed
    for name, value in found.metrics.items():
        assert value == pytest.approx(1.0 if METRICS[name].at_least else 0.0, abs=1e-5)
    measured = {name for name in task_metrics(task, labelled=False) if not name.startswith("invariance")}
    assert set(found.metrics) == measured
    assert len(found.scores) == len(made.texts)
    assert min(found.scores) > 0.9999


def test_embeddings(written_reference: Make) -> None:
    made = written_reference([[1, 0], [0, 1], [1, 1], [0, 2]], output="sentence_embedding")
    found = measure_fidelity(Task.EMBEDDING, made, answers_of([[2, 0], [0, 1], [1, 0], [0, 3]], "sentence_embedding"))
    low = round(0.5**0.5, 6)
    assert found.scores == (1.0, 1.0, low, 1.0)
    assert found.metrics["cosine_min"] == low
    assert found.metrics["cosine_mean"] == pytest.approx((3 + low) / 4)
    assert found.metrics["cosine_p1"] == pytest.approx(np.percentile([1, 1, low, 1], 1), abs=1e-6)
    # similarities of the source: 0, s, 0, s, 1, s; of the variant: 0, 1, 0, 0, 1, 0
    scipy = pytest.importorskip("scipy.stats")
    expected = scipy.spearmanr([0, 2, 0, 2, 3, 2], [0, 1, 0, 0, 1, 0]).statistic
    assert found.metrics["rank_correlation"] == pytest.approx(expected, abs=1e-6)


def test_order_is_measured_apart_from_the_angle(written_reference: Make) -> None:
    """A rotation changes every cosine to the source and no similarity between texts."""
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((30, 6)).astype(np.float32)
    turned = vectors @ np.linalg.qr(rng.standard_normal((6, 6)))[0].astype(np.float32)
    made = written_reference(list(vectors), output="sentence_embedding")
    found = measure_fidelity(Task.EMBEDDING, made, answers_of(list(turned), "sentence_embedding"))
    assert found.metrics["rank_correlation"] > 0.9999
    assert found.metrics["cosine_mean"] < 0.5


def test_token_vectors_count_by_token(written_reference: Make) -> None:
    made = written_reference([[[1, 0], [0, 1]], [[1, 0]]], output="last_hidden_state")
    found = measure_fidelity(
        Task.FEATURE_EXTRACTION, made, answers_of([[[1, 0], [1, 0]], [[1, 0]]], "last_hidden_state")
    )
    assert found.scores == (0.0, 1.0)
    assert found.metrics["cosine_mean"] == pytest.approx(2 / 3, abs=1e-6)
    assert found.metrics["cosine_min"] == 0
    assert "rank_correlation" not in found.metrics


def test_classes(written_reference: Make) -> None:
    made = written_reference([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    found = measure_fidelity(Task.TEXT_CLASSIFICATION, made, answers_of([[0.8, 0.2], [0.4, 0.6], [0.2, 0.8]]))
    assert found.metrics == {"agreement": 0.666667, "score_diff_mean": 0.1, "score_diff_max": 0.2}
    assert found.scores == (0.9, 0.8, 1.0)


def test_scores_are_judged_and_not_logits(written_reference: Make) -> None:
    made = written_reference([[0.9, 0.1]])
    row = {"logits": np.array([[2.2, 0.0]], np.float32), **made.outputs[0]}
    moved = {"logits": np.array([[5.2, 3.0]], np.float32), **made.outputs[0]}
    found = measure_fidelity(Task.TEXT_CLASSIFICATION, replace(made, outputs=(row,)), [moved])
    assert found.metrics["score_diff_max"] == 0


def test_several_classes_a_text(written_reference: Make) -> None:
    made = written_reference([[0.9, 0.6], [0.1, 0.2]])
    answers = answers_of([[0.9, 0.4], [0.3, 0.2]])
    several = measure_fidelity(Task.TEXT_CLASSIFICATION, made, answers, activation="sigmoid")
    assert several.metrics["agreement"] == 0.5  # the first text lost its second class
    one = measure_fidelity(Task.TEXT_CLASSIFICATION, made, answers, activation="softmax")
    assert one.metrics["agreement"] == 0.5  # the second text has another first class
    both = measure_fidelity(Task.TEXT_CLASSIFICATION, made, answers_of([[0.6, 0.9], [0.1, 0.2]]), activation="sigmoid")
    assert both.metrics["agreement"] == 1


@pytest.mark.parametrize("activation", [None, "identity", "sigmoid"])
def test_regression_is_scaled_by_the_sources_range(written_reference: Make, activation: str | None) -> None:
    made = written_reference([[-2], [0], [2]])
    found = measure_fidelity(Task.TEXT_CLASSIFICATION, made, answers_of([[-2], [1], [2]]), activation=activation)
    assert found.metrics["score_diff_max"] == 0.25
    assert found.metrics["score_diff_mean"] == pytest.approx(0.25 / 3, abs=1e-3)
    assert found.metrics["score_correlation"] == pytest.approx(np.corrcoef([-2, 0, 2], [-2, 1, 2])[0, 1], abs=1e-6)
    assert found.scores == (1.0, 0.75, 1.0)


def test_regression_with_several_values_takes_the_worst(written_reference: Make) -> None:
    made = written_reference([[1, 10], [2, 20], [3, 30]])
    found = measure_fidelity(
        Task.TEXT_CLASSIFICATION, made, answers_of([[1, 30], [2, 20], [3, 10]]), activation="identity"
    )
    assert found.metrics["score_correlation"] == -1
    assert found.metrics["score_diff_max"] == 1


def test_equal_scores_have_no_range_to_divide_by(written_reference: Make) -> None:
    found = measure_fidelity(Task.TEXT_CLASSIFICATION, written_reference([[2], [2]]), answers_of([[2], [2.5]]))
    assert found.metrics == {"score_correlation": 0.0, "score_diff_mean": 0.25, "score_diff_max": 0.5}


def test_tokens_with_classes(written_reference: Make) -> None:
    made = written_reference([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5]]])
    found = measure_fidelity(Task.TOKEN_CLASSIFICATION, made, answers_of([[[0.9, 0.1], [0.6, 0.4]], [[0.6, 0.4]]]))
    assert found.metrics == {"agreement": 0.666667, "score_diff_mean": 0.167, "score_diff_max": 0.4}
    assert found.scores == (0.6, 0.9)


def test_ranking(written_reference: Make) -> None:
    made = written_reference([[0.1], [0.5], [0.9], [0.7]])
    found = measure_fidelity(Task.TEXT_RANKING, made, answers_of([[0.1], [0.7], [0.9], [0.5]]))
    assert found.metrics["rank_correlation"] == pytest.approx(0.8)
    assert found.metrics["score_diff_max"] == 0.2
    wide = measure_fidelity(Task.TEXT_RANKING, written_reference([[-8], [2]]), answers_of([[-7], [2]]))
    assert wide.metrics["score_diff_max"] == 0.1


BREAKS = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("task", OUTPUTS, ids=lambda task: task.value)
@pytest.mark.parametrize("value", BREAKS)
@pytest.mark.parametrize("side", ["variant", "source"])
def test_one_broken_answer_makes_every_metric_the_worst(
    tiny_reference: Make, task: Task, value: float, side: str
) -> None:
    made = tiny_reference(task)
    name = next(iter(made.outputs[0]))  # of scores and logits the logits, which are not judged
    broken = [{key: array.copy() for key, array in row.items()} for row in made.outputs]
    broken[7][name].flat[-1] = value
    if side == "source":
        found = measure_fidelity(task, replace(made, outputs=tuple(broken)), made.outputs)
    else:
        found = measure_fidelity(task, made, broken)
    assert all(figure == METRICS[metric].worst for metric, figure in found.metrics.items())
    judged = judge(found.metrics, default_thresholds(task, "int4", labelled=False))
    assert len(judged.failures) == len(judged.judged)
    canonical_json(found.metrics)
    assert found.worst(1)[0].text.startswith(made.texts[7])
    assert found.worst(1)[0].score == (1 - WORST_DIFF if task in SCORED else -1)
    assert sorted(found.scores)[1] == 1.0


def test_zero_vectors_do_not_divide(written_reference: Make) -> None:
    made = written_reference([[0, 0], [0, 0], [1, 0]], output="sentence_embedding")
    found = measure_fidelity(Task.EMBEDDING, made, answers_of([[0, 0], [0, 1], [0, 0]], "sentence_embedding"))
    assert found.scores == (1.0, 0.0, 0.0)


def test_the_worst_texts_come_first_and_long_ones_are_cut() -> None:
    found = Fidelity(metrics={}, scores=(0.5, 0.1, 0.5, 0.2), texts=("a", "b" * 300, "c", "d"), tokens=(3, 90, 4, 5))
    worst = found.worst(3)
    assert [(item.text[:1], item.tokens, item.score) for item in worst] == [
        ("b", 90, 0.1),
        ("d", 5, 0.2),
        ("a", 3, 0.5),
    ]
    assert worst[0].text == "b" * 160 + "..."
    assert len(found.worst(10)) == 4


def test_pairs_are_shown_together(tiny_reference: Make) -> None:
    made = tiny_reference(Task.TEXT_RANKING)
    found = measure_fidelity(Task.TEXT_RANKING, made, made.outputs)
    assert found.worst(1)[0].text == f"{made.texts[0]} | {made.texts[-1]}"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_answers_must_be_as_many_as_texts(written_reference: Make, count: int) -> None:
    with pytest.raises(ValueError, match="answers to"):
        measure_fidelity(Task.TEXT_RANKING, written_reference([[1], [2]]), answers_of([[1]] * count))
