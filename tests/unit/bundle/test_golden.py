"""The golden set: its files, its replay, and what each finds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import numpy as np
import pytest

from edgeonnx.bundle.golden import Comparison, GoldenSet, compare_outputs
from edgeonnx.errors import GoldenSetError, ManifestError, SchemaVersionError, UnsafePathError, ValidationError
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.report import Threshold
from tests.support.bundles import DIM, TEXTS, golden_set, reference, signature

Tensors = dict[str, np.ndarray]
Run = Callable[[Tensors], Tensors]
STRICT = (Threshold(metric="scaled_diff", at_most=1e-4),)


@pytest.fixture(params=[Task.EMBEDDING, Task.FEATURE_EXTRACTION, Task.TEXT_RANKING], ids=lambda task: task.value)
def task(request: pytest.FixtureRequest) -> Task:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def golden() -> GoldenSet:
    return golden_set(Task.EMBEDDING)


def right(inputs: Tensors) -> Tensors:
    return reference(Task.EMBEDDING, inputs)


def test_the_files_hold_everything(task: Task) -> None:
    golden = golden_set(task)
    again = GoldenSet.from_files(golden.to_files().__getitem__)
    assert (again.texts, again.pairs) == (golden.texts, golden.pairs)
    for side in ("inputs", "outputs"):
        written, read = getattr(golden, side), getattr(again, side)
        assert list(read) == list(written)
        for name, value in written.items():
            assert read[name].dtype == value.dtype
            np.testing.assert_array_equal(read[name], value)


def test_equal_sets_give_equal_bytes(golden: GoldenSet) -> None:
    assert golden.to_files() == golden_set(Task.EMBEDDING).to_files()


def test_the_right_model_passes_alone_and_in_the_batch(task: Task) -> None:
    golden = golden_set(task)
    calls: list[tuple[int, int]] = []

    def run(inputs: Tensors) -> Tensors:
        calls.append(inputs["input_ids"].shape)
        return reference(task, inputs)

    comparison = golden.replay(run)
    golden.check_replay(comparison, STRICT, where="encoder/cpu-fp32")
    lengths = golden.mask.sum(axis=1)
    assert calls == [golden.mask.shape, *((1, int(length)) for length in lengths)]


def test_a_replay_of_the_batch_only_runs_once(golden: GoldenSet) -> None:
    calls: list[object] = []
    golden.replay(lambda inputs: calls.append(0) or right(inputs), alone=False)
    assert len(calls) == 1


def neighbours(inputs: Tensors) -> Tensors:
    """Right for a row alone; in a batch each answer is pulled towards the mean of all."""
    vectors = right(inputs)["sentence_embedding"]
    return {"sentence_embedding": (vectors * 0.99 + vectors.mean(axis=0) * 0.01).astype(np.float32)}


def padding(inputs: Tensors) -> Tensors:
    """Forgets the mask: padding counts as tokens."""
    return right({**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])})


def alone_only(inputs: Tensors) -> Tensors:
    """Right in a batch, wrong for one row."""
    found = right(inputs)["sentence_embedding"]
    return {"sentence_embedding": found + 0.01 if len(found) == 1 else found}


def not_a_number(inputs: Tensors) -> Tensors:
    found = right(inputs)["sentence_embedding"].copy()
    if len(found) > 2:
        found[2, 0] = np.nan
    return {"sentence_embedding": found}


def infinite(inputs: Tensors) -> Tensors:
    found = right(inputs)["sentence_embedding"].copy()
    found[0, 0] = np.inf
    return {"sentence_embedding": found}


@pytest.mark.parametrize("run", [neighbours, padding, alone_only, not_a_number, infinite], ids=lambda run: run.__name__)
def test_a_wrong_model_is_refused_with_its_worst_text(golden: GoldenSet, run: Run) -> None:
    comparison = golden.replay(run)
    with pytest.raises(GoldenSetError) as caught:
        golden.check_replay(comparison, STRICT, where="encoder/cpu-fp32")
    assert caught.value.where == "encoder/cpu-fp32"
    assert any("scaled_diff <= 0.0001" in line for line in caught.value.details)
    assert any("output sentence_embedding for the text" in line for line in caught.value.details)
    assert "do not serve" in (caught.value.hint or "")


def test_the_row_that_is_not_a_number_is_named(golden: GoldenSet) -> None:
    comparison = golden.replay(not_a_number)
    assert comparison.worst_row == 2
    assert np.isnan(comparison.scaled_diff)
    assert np.isnan(comparison.min_cosine)


def test_padding_positions_of_outputs_per_token_do_not_count() -> None:
    golden = golden_set(Task.FEATURE_EXTRACTION)

    def run(inputs: Tensors) -> Tensors:
        found = reference(Task.FEATURE_EXTRACTION, inputs)["last_hidden_state"].copy()
        found[inputs["attention_mask"] == 0] = np.nan
        return {"last_hidden_state": found}

    golden.check_replay(golden.replay(run), STRICT, where="w")


def test_token_positions_of_outputs_per_token_do_count() -> None:
    golden = golden_set(Task.FEATURE_EXTRACTION)

    def run(inputs: Tensors) -> Tensors:
        found = reference(Task.FEATURE_EXTRACTION, inputs)["last_hidden_state"].copy()
        last = int(inputs["attention_mask"][-1].sum()) - 1
        found[-1, last] += 1.0
        return {"last_hidden_state": found}

    comparison = golden.replay(run, alone=False)
    assert comparison.worst_row == len(TEXTS) - 1
    assert comparison.max_abs_diff == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "an output is missing"),
        ({"other": np.zeros((4, DIM))}, "an output is missing"),
        ({"sentence_embedding": np.zeros((4, DIM + 1))}, "an output has another shape"),
        ({"sentence_embedding": np.zeros((3, DIM))}, "an output has another shape"),
        ({"sentence_embedding": np.zeros(DIM)}, "an output has another shape"),
        ({"sentence_embedding": np.zeros((4, 7, DIM))}, "an output has another shape"),
    ],
)
def test_outputs_that_cannot_be_compared_are_named(golden: GoldenSet, outputs: Tensors, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        golden.replay(lambda _: outputs)
    assert caught.value.message == message
    assert caught.value.where == "output sentence_embedding"
    assert caught.value.found is not None


def test_large_outputs_are_judged_relative_to_their_size() -> None:
    mask = np.ones((1, 1), np.int64)
    found = compare_outputs({"x": np.array([[1000.0, 0.0]])}, {"x": np.array([[1000.5, 0.0]])}, mask)
    assert found.max_abs_diff == pytest.approx(0.5)
    assert found.scaled_diff == pytest.approx(0.0005)


def test_cosines_of_zero_vectors() -> None:
    mask = np.ones((1, 1), np.int64)
    zero, one = np.zeros((1, 2)), np.ones((1, 2))
    assert compare_outputs({"x": zero}, {"x": zero}, mask).min_cosine == 1.0
    assert compare_outputs({"x": zero}, {"x": one}, mask).min_cosine == 0.0
    assert compare_outputs({"x": one}, {"x": -one}, mask).min_cosine == pytest.approx(-1.0)


def test_the_worst_of_several_is_told_for_each_figure() -> None:
    def item(diff: float, cosine: float, name: str) -> Comparison:
        return Comparison(
            max_abs_diff=diff, scaled_diff=diff / 2, min_cosine=cosine, worst_output=name, worst_row=len(name)
        )

    worst = Comparison.worst([item(0.1, 0.5, "a"), item(0.3, 0.9, "bb"), item(0.2, 0.95, "ccc")])
    assert worst == Comparison(max_abs_diff=0.3, scaled_diff=0.15, min_cosine=0.5, worst_output="bb", worst_row=2)


def test_the_text_path_is_held_against_the_golden_ids(golden: GoldenSet) -> None:
    golden.check_tokens(golden.inputs, where="wordpiece")


def test_another_id_names_text_and_input(golden: GoldenSet) -> None:
    ids = golden.inputs["input_ids"].copy()
    ids[1, 1] += 1
    with pytest.raises(GoldenSetError) as caught:
        golden.check_tokens({**golden.inputs, "input_ids": ids}, where="wordpiece")
    assert caught.value.where == f"wordpiece, text {TEXTS[1]!r}"
    assert caught.value.expected == str(golden.inputs["input_ids"][1].tolist())
    assert caught.value.found == str(ids[1].tolist())


def test_another_width_is_named(golden: GoldenSet) -> None:
    shorter = {name: value[:, :-1] for name, value in golden.inputs.items()}
    with pytest.raises(GoldenSetError, match="of another shape") as caught:
        golden.check_tokens(shorter, where="wordpiece")
    assert caught.value.expected == str(golden.mask.shape)


def test_an_input_that_no_text_path_gives_is_named(golden: GoldenSet) -> None:
    without = {name: value for name, value in golden.inputs.items() if name != "token_type_ids"}
    with pytest.raises(GoldenSetError, match="does not give an input") as caught:
        golden.check_tokens(without, where="wordpiece")
    assert caught.value.expected == "token_type_ids"


def test_a_set_that_lacks_an_output_of_the_graph_is_refused() -> None:
    golden = golden_set(Task.TEXT_RANKING)
    golden.check_names(signature(Task.TEXT_RANKING))
    del golden.outputs["logits"]
    with pytest.raises(ManifestError) as caught:
        golden.check_names(signature(Task.TEXT_RANKING))
    assert caught.value.where == "golden.json: outputs"
    assert (caught.value.expected, caught.value.found) == ("logits, scores", "scores")


def npy(value: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=True)
    return buffer.getvalue()


IDS, MASK, OUT = "inputs.input_ids.npy", "inputs.attention_mask.npy", "outputs.sentence_embedding.npy"
ROWS = len(TEXTS)


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        (IDS, b"", "is not a NumPy array file"),
        (IDS, b"\x93NUMPY\x09\x00", "is not a NumPy array file"),
        (IDS, npy(np.zeros((ROWS, 9), np.int64))[:-1], "is not a NumPy array file"),
        (IDS, npy(np.array([[object()]] * ROWS)), "is not a NumPy array file"),
        (IDS, npy(np.zeros((ROWS, 9), np.int32)), "holds another array"),
        (IDS, npy(np.zeros((ROWS, 9), ">i8")), "holds another array"),
        (IDS, npy(np.zeros((ROWS - 1, 9), np.int64)), "holds another array"),
        (IDS, npy(np.zeros(ROWS, np.int64)), "holds another array"),
        (IDS, npy(np.zeros((ROWS, 3), np.int64)), "has another number of tokens"),
        (MASK, npy(np.zeros((ROWS, 0), np.int64)), "holds another array"),
        (MASK, npy(np.zeros((ROWS, 9), np.int64)), "is not a mask"),
        (MASK, npy(np.array([[0, 1]] * ROWS)), "is not a mask"),
        (MASK, npy(np.array([[2, 0]] * ROWS)), "is not a mask"),
        (OUT, npy(np.zeros((ROWS, 8), np.float64)), "holds another array"),
        (OUT, npy(np.zeros((ROWS, 0), np.float32)), "holds another array"),
        (OUT, npy(np.zeros((ROWS, 3, 8), np.float32)), "has another number of tokens"),
    ],
)
def test_broken_tensor_files_are_named(golden: GoldenSet, file: str, data: bytes, message: str) -> None:
    files = {**golden.to_files(), file: data}
    with pytest.raises(ManifestError) as caught:
        GoldenSet.from_files(files.__getitem__)
    assert message in caught.value.message
    assert caught.value.where == file


@pytest.mark.parametrize(
    ("change", "kind", "where"),
    [
        ({"schema_version": "3.0"}, SchemaVersionError, "golden.json: schema_version"),
        ({"texts": []}, ManifestError, ""),
        ({"texts": "abcd"}, ManifestError, "golden.json: texts"),
        ({"pairs": ["only one"]}, ManifestError, "golden.json: pairs"),
        ({"inputs": []}, ManifestError, "golden.json"),
        ({"outputs": []}, ManifestError, "golden.json"),
        ({"inputs": ["../../x"]}, UnsafePathError, "golden.json: inputs[0]"),
        ({"inputs": ["a/b"]}, ManifestError, "golden.json: inputs[0]"),
        ({"inputs": ["a\0b"]}, UnsafePathError, "golden.json: inputs[0]"),
        ({"extra": 1}, ManifestError, "golden.json: extra"),
    ],
)
def test_a_broken_index_is_named(
    golden: GoldenSet, change: dict[str, object], kind: type[Exception], where: str
) -> None:
    files = golden.to_files()
    files["golden.json"] = json.dumps({**json.loads(files["golden.json"]), **change}).encode()
    with pytest.raises(kind) as caught:
        GoldenSet.from_files(files.__getitem__)
    assert not where or getattr(caught.value, "where", None) == where
