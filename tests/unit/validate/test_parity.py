"""Parity catches an export that is wrong in one situation only, and says in which."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgeonnx.errors import ParityError, ValidationError
from edgeonnx.model.reference import Reference, build_reference
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import Threshold
from edgeonnx.validate.parity import check_parity
from tests.support.bundles import DIM, INPUTS, MAX_LENGTH, OUTPUTS, WORDS, reference, tokens_of

Tensors = dict[str, np.ndarray]
Run = Callable[[Tensors], Tensors]
TEXTS = tuple(" ".join(WORDS[(start + step) % 10] for step in range(1 + start % 9)) for start in range(40))
NAME = "sentence_embedding"


class TinySource:
    """A source model: the plain NumPy model of tests.support.bundles."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.input_names = INPUTS
        self.output_names = OUTPUTS[task]

    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Tensors]:
        seconds = [None] * len(texts) if pairs is None else list(pairs)
        return [
            tokens_of((text,), None if second is None else (second,))
            for text, second in zip(texts, seconds, strict=True)
        ]

    def run(self, inputs: Tensors) -> Tensors:
        return reference(self.task, inputs)


def made(task: Task) -> Reference:
    pairs = TEXTS[::-1] if task.takes_pairs else None
    return build_reference(TinySource(task), TEXTS, pairs, {"input_ids": 0, "token_type_ids": 0})


@pytest.fixture(scope="module")
def embedding() -> Reference:
    return made(Task.EMBEDDING)


def right(inputs: Tensors) -> Tensors:
    return reference(Task.EMBEDDING, inputs)


def check(embedding: Reference, run: Run, thresholds: tuple[Threshold, ...] | None = None) -> ParityError:
    with pytest.raises(ParityError) as caught:
        check_parity(embedding, run, max_length=MAX_LENGTH, **({"thresholds": thresholds} if thresholds else {}))
    assert "nothing was written" in (caught.value.hint or "")
    return caught.value


@pytest.mark.parametrize("task", OUTPUTS, ids=lambda task: task.value)
def test_the_right_graph_passes_for_every_task(task: Task) -> None:
    result = check_parity(made(task), lambda inputs: reference(task, inputs), max_length=MAX_LENGTH)
    assert result.texts == len(TEXTS)
    assert result.rows >= 4 * len(TEXTS)
    assert result.comparison.scaled_diff < 1e-6
    assert result.longest == max(result.longest, 11)
    evidence = result.to_dict()
    assert evidence["rows"] == result.rows
    assert set(evidence) >= {"texts", "batches", "max_abs_diff", "scaled_diff", "min_cosine", "longest_row_tokens"}


def forgets_the_mask(inputs: Tensors) -> Tensors:
    return right({**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])})


def test_wrong_on_padded_rows_only(embedding: Reference) -> None:
    error = check(embedding, forgets_the_mask)
    assert (error.where or "").startswith(f"output {NAME}, ")
    assert "padded" in (error.where or "")
    assert "scaled_diff <= 0.0001 was asked for" in (error.expected or "")
    assert "max_abs_diff" in (error.found or "")
    assert any(line.startswith("worst input: '") for line in error.details)


@pytest.mark.parametrize("size", [1, 7, 32, len(TEXTS) % 7])
def test_wrong_for_one_batch_size_only(embedding: Reference, size: int) -> None:
    def run(inputs: Tensors) -> Tensors:
        found = right(inputs)[NAME]
        return {NAME: found + 0.01 if len(found) == size else found}

    error = check(embedding, run)
    assert ("alone" if size == 1 else f"of {size}") in (error.where or "")


def test_wrong_for_one_length_only(embedding: Reference) -> None:
    def run(inputs: Tensors) -> Tensors:
        found = right(inputs)[NAME]
        return {NAME: found + 0.01 if inputs["input_ids"].shape[1] == 9 else found}

    assert check(embedding, run).where is not None


def test_not_a_number_in_one_row_names_that_text(embedding: Reference) -> None:
    wanted = embedding.inputs[23]["input_ids"][0]

    def run(inputs: Tensors) -> Tensors:
        found = right(inputs)[NAME].copy()
        for row, ids in enumerate(inputs["input_ids"]):
            if np.array_equal(ids[: len(wanted)], wanted) and not ids[len(wanted) :].any():
                found[row, 3] = np.nan
        return {NAME: found}

    error = check(embedding, run)
    assert f"worst input: {TEXTS[23]!r}" in error.details
    assert "nan" in (error.expected or "")


def test_swapped_rows(embedding: Reference) -> None:
    error = check(embedding, lambda inputs: {NAME: right(inputs)[NAME][::-1]})
    assert "batch" in (error.where or "")
    assert "alone" not in (error.where or "")


def test_an_answer_that_depends_on_its_neighbours(embedding: Reference) -> None:
    def run(inputs: Tensors) -> Tensors:
        found = right(inputs)[NAME]
        return {NAME: (found + 0.001 * found.mean(axis=0)).astype(np.float32)} if len(found) > 1 else {NAME: found}

    assert "batch" in (check(embedding, run).where or "")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda inputs: {}, "an output is missing"),
        (lambda inputs: {NAME: right(inputs)[NAME][:, :-1]}, "an output has another shape"),
        (lambda inputs: {NAME: right(inputs)[NAME][:1]}, "an output has another shape"),
        (lambda inputs: {NAME: right(inputs)[NAME].T}, "an output has another shape"),
    ],
)
def test_outputs_that_cannot_be_compared_name_output_batch_and_input(
    embedding: Reference, run: Run, message: str
) -> None:
    error = check(embedding, run)
    assert error.message == message
    assert (error.where or "").startswith(f"output {NAME}, ")
    assert " tokens" in (error.where or "")
    assert error.expected is not None
    assert error.found is not None
    assert error.details[0].startswith("first input of the batch: '")


def test_a_graph_that_does_not_run_names_the_batch(embedding: Reference) -> None:
    def run(inputs: Tensors) -> Tensors:
        if len(inputs["input_ids"]) == 7:
            raise ValidationError("ONNX Runtime cannot run the graph", where="model.onnx", found="Reshape")
        return right(inputs)

    error = check(embedding, run)
    assert "batch of 7" in (error.where or "")
    assert error.found == "Reshape"


def test_the_second_text_of_the_worst_row_is_shown() -> None:
    def run(inputs: Tensors) -> Tensors:
        return {name: value + 1 for name, value in reference(Task.TEXT_RANKING, inputs).items()}

    with pytest.raises(ParityError) as caught:
        check_parity(made(Task.TEXT_RANKING), run, max_length=MAX_LENGTH)
    assert caught.value.details[-1].startswith("with the pair: '")


def test_padding_positions_of_outputs_per_token_do_not_count() -> None:
    def run(inputs: Tensors) -> Tensors:
        found = reference(Task.FEATURE_EXTRACTION, inputs)["last_hidden_state"].copy()
        found[inputs["attention_mask"] == 0] = np.nan
        return {"last_hidden_state": found}

    check_parity(made(Task.FEATURE_EXTRACTION), run, max_length=MAX_LENGTH)


def test_thresholds_on_the_cosine_are_judged(embedding: Reference) -> None:
    def run(inputs: Tensors) -> Tensors:
        return {NAME: -right(inputs)[NAME]}

    error = check(embedding, run, (Threshold(metric="min_cosine", at_least=0.99),))
    assert "min_cosine >= 0.99" in (error.expected or "")


def test_progress_counts_every_batch_and_row() -> None:
    rows: list[tuple[int, int]] = []
    source = TinySource(Task.EMBEDDING)
    built = build_reference(source, TEXTS[:5], None, {}, on_row=lambda done, total: rows.append((done, total)))
    assert rows == [(done, 5) for done in range(1, 6)]
    batches: list[tuple[int, int]] = []
    result = check_parity(
        built, right, max_length=MAX_LENGTH, on_batch=lambda done, total: batches.append((done, total))
    )
    assert batches[-1] == (len(batches), len(batches))
    assert sum(result.layouts.values()) == len(batches)


def test_the_golden_set_is_the_source_models_answers(embedding: Reference) -> None:
    golden = embedding.golden((0, 8, 17))
    assert golden.texts == (TEXTS[0], TEXTS[8], TEXTS[17])
    assert golden.mask.sum(axis=1).tolist() == [embedding.lengths[row] for row in (0, 8, 17)]
    for place, row in enumerate((0, 8, 17)):
        np.testing.assert_array_equal(golden.outputs[NAME][place], embedding.outputs[row][NAME][0])
    assert golden.outputs[NAME].shape == (3, DIM)
    assert golden.replay(right).scaled_diff < 1e-6


def test_padding_takes_the_models_own_ids() -> None:
    built = build_reference(TinySource(Task.EMBEDDING), TEXTS[:2], None, {"input_ids": 9, "token_type_ids": 1})
    inputs, _ = built.batch((0,), built.lengths[0] + 2)
    assert inputs["input_ids"][0, -2:].tolist() == [9, 9]
    assert inputs["token_type_ids"][0, -2:].tolist() == [1, 1]
    assert inputs["attention_mask"][0, -2:].tolist() == [0, 0]
