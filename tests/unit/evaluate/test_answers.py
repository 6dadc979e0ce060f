"""A graph's answers row by row: the source's own where the graph is right, cut to each row's length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgeonnx.errors import ValidationError
from edgeonnx.evaluate.answers import answer_rows, plan_batches
from edgeonnx.model.reference import Reference
from edgeonnx.spec.manifest import Task
from tests.support.bundles import OUTPUTS, reference

Tensors = dict[str, np.ndarray]
MakeTiny = Callable[[Task], Reference]


def test_rows_are_sorted_and_batches_are_bounded() -> None:
    assert plan_batches([5, 2, 2, 9, 3], budget=10) == ((1, 2, 4), (0,), (3,))
    assert plan_batches([2, 2, 2], budget=4) == ((0, 1), (2,))
    assert plan_batches([600, 1], budget=512) == ((1,), (0,))
    assert plan_batches([]) == ()


@pytest.mark.parametrize("task", OUTPUTS, ids=lambda task: task.value)
@pytest.mark.parametrize("budget", [1, 40, 512])
def test_each_row_gets_its_own_answer(tiny_reference: MakeTiny, task: Task, budget: int) -> None:
    made = tiny_reference(task)
    shapes: list[tuple[int, ...]] = []

    def run(inputs: Tensors) -> Tensors:
        shapes.append(inputs["input_ids"].shape)
        return reference(task, inputs)

    answers = answer_rows(run, made, budget=budget)
    for answer, expected in zip(answers, made.outputs, strict=True):
        assert list(answer) == list(expected)
        for name, value in expected.items():
            assert answer[name].shape == value.shape
            assert answer[name].dtype == np.float32
            np.testing.assert_allclose(answer[name], value, atol=1e-6)
    assert all(rows * width <= budget or rows == 1 for rows, width in shapes)
    assert sum(rows for rows, _ in shapes) == len(made.texts)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_precision_becomes_float32_and_no_batch_is_kept_alive(tiny_reference: MakeTiny, dtype: type) -> None:
    made = tiny_reference(Task.EMBEDDING)
    answers = answer_rows(
        lambda inputs: {n: v.astype(dtype) for n, v in reference(Task.EMBEDDING, inputs).items()}, made
    )
    assert answers[0]["sentence_embedding"].dtype == np.float32
    assert all(value.base is None for answer in answers for value in answer.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {}, "an output is missing"),
        (lambda found: found[:1], "an output has another shape"),
        (lambda found: found[:, :-1], "an output has another shape"),
        (lambda found: np.concatenate([found, found]), "an output has another shape"),
        (lambda found: found[:, None], "an output has another shape"),
        (lambda found: np.float32(0), "an output has another shape"),
    ],
)
def test_an_output_that_is_not_what_it_must_be(
    tiny_reference: MakeTiny, change: Callable[[np.ndarray], object], message: str
) -> None:
    def run(inputs: Tensors) -> Tensors:
        changed = change(reference(Task.EMBEDDING, inputs)["sentence_embedding"])
        return changed if isinstance(changed, dict) else {"sentence_embedding": changed}

    with pytest.raises(ValidationError) as caught:
        answer_rows(run, tiny_reference(Task.EMBEDDING))
    assert caught.value.message == message
    assert caught.value.where == "output sentence_embedding"


def test_a_token_axis_that_is_too_short(tiny_reference: MakeTiny) -> None:
    with pytest.raises(ValidationError, match="another shape"):
        answer_rows(
            lambda inputs: {n: v[:, :-1] for n, v in reference(Task.FEATURE_EXTRACTION, inputs).items()},
            tiny_reference(Task.FEATURE_EXTRACTION),
        )
