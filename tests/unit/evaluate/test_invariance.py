"""Invariance: a graph whose answers depend on their neighbours is caught, and one that does not is not blamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeonnx.errors import ValidationError
from edgeonnx.evaluate.invariance import LONG_ROW, measure_invariance, plan_invariance
from edgeonnx.evaluate.metrics import METRICS
from edgeonnx.model.reference import Reference
from edgeonnx.model.runtime import open_graph
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.manifest import Task
from tests.support.bundles import MAX_LENGTH, OUTPUTS, reference

Tensors = dict[str, np.ndarray]
Make = Callable[..., Reference]
NAME = "sentence_embedding"
DIM = 16
WORDS = 40


@pytest.mark.parametrize("task", OUTPUTS, ids=lambda task: task.value)
def test_rows_that_stand_alone(tiny_reference: Make, task: Task) -> None:
    found = measure_invariance(lambda inputs: reference(task, inputs), tiny_reference(task), max_length=MAX_LENGTH)
    assert found.metrics["invariance_min"] >= 0.999999
    assert found.metrics["invariance_diff"] < 1e-6
    assert found.texts == 40
    assert {"alone, padded", "shuffled, 2", "shuffled, 7", "shuffled, 32", "sorted, 8", "next to a long row"} == set(
        found.batches
    )


def test_it_is_the_variants_own_answer_that_counts(tiny_reference: Make) -> None:
    """A variant that is far from the source, and the same in every batch, is invariant."""
    found = measure_invariance(
        lambda inputs: {NAME: reference(Task.EMBEDDING, inputs)[NAME][:, ::-1] + 0.3},
        tiny_reference(Task.EMBEDDING),
        max_length=MAX_LENGTH,
    )
    assert found.metrics["invariance_min"] >= 0.999999


def quantized(folder: Path, *, by_row: bool) -> Path:
    """Words are looked up, quantized to uint8, multiplied by int8 weights and averaged over the row.

    The scale of the words is that of the batch (what dynamic quantization with `DynamicQuantizeLinear` does), or of
    each token by itself.
    """
    rng = np.random.default_rng(11)
    words = rng.standard_normal((WORDS, DIM)).astype(np.float32)
    words[30:] *= 40  # later words, which only longer texts have, are large: outliers as real activations have them
    tensors = {
        "words": words,
        "weights": rng.integers(-127, 128, (DIM, DIM)).astype(np.int8),
        "last": np.array([2], np.int64),
        "tokens": np.array([1], np.int64),
        "steps": np.float32(127),
        "half": np.float32(128.5),
        "middle": np.uint8(128),
    }
    node = helper.make_node
    if by_row:
        scaling = [
            node("Abs", ["x"], ["size"]),
            node("ReduceMax", ["size", "last"], ["amax"], keepdims=1),
            node("Div", ["amax", "steps"], ["scale"]),
            node("Div", ["x", "scale"], ["parts"]),
            node("Add", ["parts", "half"], ["moved"]),
            node("Cast", ["moved"], ["x8"], to=TensorProto.UINT8),
            node("MatMulInteger", ["x8", "weights", "middle"], ["product"]),
        ]
    else:
        scaling = [
            node("DynamicQuantizeLinear", ["x"], ["x8", "scale", "zero"]),
            node("MatMulInteger", ["x8", "weights", "zero"], ["product"]),
        ]
    nodes = [
        node("Gather", ["words", "input_ids"], ["x"]),
        *scaling,
        node("Cast", ["product"], ["number"], to=TensorProto.FLOAT),
        node("Mul", ["number", "scale"], ["hidden"]),
        node("Cast", ["attention_mask"], ["mask2"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask2", "last"], ["mask"]),
        node("Mul", ["hidden", "mask"], ["masked"]),
        node("ReduceSum", ["masked", "tokens"], ["pooled"], keepdims=0),
        node("LpNormalization", ["pooled"], [NAME], axis=1, p=2),
    ]
    used = {name for item in nodes for name in item.input}
    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info(NAME, TensorProto.FLOAT, ["batch", DIM])
    body = helper.make_graph(
        nodes, "bag", infos, [output], [numpy_helper.from_array(v, n) for n, v in tensors.items() if n in used]
    )
    path = folder / f"{'row' if by_row else 'tensor'}.onnx"
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture
def texts(written_reference: Make) -> Reference:
    lengths = [3 + index % 33 for index in range(70)]
    return written_reference([np.ones(DIM)] * 70, output=NAME, lengths=lengths)


def test_scales_over_the_whole_batch_are_caught(tmp_path: Path, texts: Reference) -> None:
    """The trap of dynamic quantization, through ONNX Runtime: a text's answer changes with its neighbours."""
    found = measure_invariance(open_graph(quantized(tmp_path, by_row=False), None, threads=1), texts, max_length=64)
    assert found.metrics["invariance_min"] < 0.99
    assert found.metrics["invariance_diff"] > 0.01
    assert found.worst_kind != "alone, padded"


def test_scales_by_row_pass(tmp_path: Path, texts: Reference) -> None:
    found = measure_invariance(open_graph(quantized(tmp_path, by_row=True), None, threads=1), texts, max_length=64)
    assert found.metrics["invariance_min"] >= 0.9999
    assert found.texts == 64


def forgets_the_mask(inputs: Tensors) -> Tensors:
    return reference(Task.EMBEDDING, {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])})


def test_padding_that_shows(tiny_reference: Make) -> None:
    made = tiny_reference(Task.EMBEDDING)
    found = measure_invariance(forgets_the_mask, made, max_length=MAX_LENGTH)
    assert found.metrics["invariance_min"] < 0.999


def test_order_that_shows(tiny_reference: Make) -> None:
    """Only the place in the batch matters, not its size or padding."""

    def run(inputs: Tensors) -> Tensors:
        found = reference(Task.EMBEDDING, inputs)[NAME].copy()
        found[1:, 0] += 0.2
        return {NAME: found}

    found = measure_invariance(run, tiny_reference(Task.EMBEDDING), max_length=MAX_LENGTH)
    assert found.metrics["invariance_min"] < 0.999
    assert found.worst_kind != "alone, padded"


def test_a_single_value_has_no_angle(written_reference: Make) -> None:
    """A sign that flips around zero is no cosine of -1; a difference that counts is one."""
    made = written_reference([[0.0]] * 12, lengths=[3 + row for row in range(12)])

    def run(size: float) -> Callable[[Tensors], Tensors]:
        return lambda inputs: {
            "scores": np.full(
                (len(inputs["input_ids"]), 1), size if len(inputs["input_ids"]) > 1 else -size, np.float32
            )
        }

    assert measure_invariance(run(1e-7), made, max_length=64).metrics["invariance_min"] == 1
    far = measure_invariance(run(0.1), made, max_length=64).metrics
    assert far["invariance_min"] == pytest.approx(1 - 0.2**2 / 2)
    assert far["invariance_diff"] == 0.2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("always", [True, False])
def test_what_is_no_number_is_the_worst(tiny_reference: Make, value: float, always: bool) -> None:
    def run(inputs: Tensors) -> Tensors:
        found = reference(Task.EMBEDDING, inputs)[NAME].copy()
        if always:
            found[:] = value  # equal everywhere, and still no answer
        elif len(found) == 7:
            found[3, 2] = value
        return {NAME: found}

    found = measure_invariance(run, tiny_reference(Task.EMBEDDING), max_length=MAX_LENGTH)
    assert found.metrics == {name: METRICS[name].worst for name in ("invariance_min", "invariance_diff")}
    canonical_json(found.metrics)


def test_a_missing_output_is_not_passed_over(tiny_reference: Make) -> None:
    with pytest.raises(ValidationError, match="an output is missing"):
        measure_invariance(
            lambda inputs: {"scores": reference(Task.TEXT_RANKING, inputs)["scores"]},
            tiny_reference(Task.TEXT_RANKING),
            max_length=64,
        )


def test_a_single_text_is_run_with_padding() -> None:
    (batch,) = {item.kind: item for item in plan_invariance([4], max_length=64) if item.width > 4}.values()
    assert batch.kind == "alone, padded"
    assert all(item.width == 4 for item in plan_invariance([4], max_length=4))


def test_batches_of_several_texts_are_padded_beyond_the_longest_too() -> None:
    lengths = [3 + row % 20 for row in range(64)]
    together = [item for item in plan_invariance(lengths, max_length=64) if len(item.rows) > 1]
    wider = {item.kind for item in together if item.width > max(lengths[row] for row in item.rows)}
    assert wider == {"shuffled, 2", "shuffled, 7", "shuffled, 32"}
    exact = {item.kind for item in together if item.width == max(lengths[row] for row in item.rows)}
    assert wider < exact
    shuffled = [lengths[row] for item in together if item.kind == "shuffled, 32" for row in item.rows]
    assert shuffled != sorted(shuffled)


def test_long_rows_share_small_batches_and_their_company_is_bounded() -> None:
    lengths = [10] * 60 + [200, 210, 220, 230]
    plan = plan_invariance(lengths, max_length=256)
    together = [item for item in plan if sum(lengths[row] > LONG_ROW for row in item.rows) > 1]
    assert together
    assert all(len(item.rows) <= 3 for item in together)
    neighbours = [item for item in plan if item.kind == "next to a long row"]
    assert {item.width for item in neighbours} == {200}
    assert sum(len(item.rows) - 1 for item in neighbours) == 24
