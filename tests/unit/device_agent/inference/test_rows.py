from __future__ import annotations

import numpy as np
import pytest
from edgeonnx_ext import Padding

from device_agent.inference.rows import (
    Part,
    Rows,
    TensorRows,
    TokenRows,
    merge,
    numbers_per_row,
    per_token_outputs,
    write_batch,
)
from device_agent.inference.text import TextPath
from edgeonnx.spec.manifest import Task, TextProcessing
from edgeonnx.spec.tensor import DType, ModelSignature, TensorSpec
from tests.support import bundles

PADDING = Padding(pad_id=4, pad_type_id=1)
NAMES = ("input_ids", "attention_mask", "token_type_ids")
IDS = [[2, 5, 6, 3], [2, 3], [2, 7, 3]]


def token_rows() -> TokenRows:
    return TokenRows(IDS, PADDING)


def text_rows() -> Rows:
    processing = TextProcessing(tokenizer="-", backend="wordpiece", max_length=16, pad_id=4, pad_type_id=1)
    words = {value: key for key, value in bundles.VOCABULARY.items()}
    texts = [" ".join(words[token] for token in row[1:-1]) for row in IDS]
    return TextPath(bundles.tokenizer_json(), processing, NAMES).rows(texts)


def tensor_rows() -> TensorRows:
    ids, types = np.full((3, 4), 4, dtype=np.int64), np.full((3, 4), 1, dtype=np.int64)
    mask = np.zeros((3, 4), dtype=np.int64)
    for row, tokens in enumerate(IDS):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        types[row, : len(tokens)] = 0
    return TensorRows({"input_ids": ids, "attention_mask": mask, "token_type_ids": types}, PADDING, cut=True)


@pytest.mark.parametrize("make", [token_rows, text_rows, tensor_rows])
@pytest.mark.parametrize("rows", [[0, 1, 2], [1], [0, 2], [2, 0, 1], [1, 1, 1]])
def test_rows_are_written_in_the_order_asked_for_and_padded_as_the_model_pads(make, rows: list[int]) -> None:
    source = make()
    assert source.lengths.tolist() == [4, 2, 3]
    width = max(len(IDS[row]) for row in rows) + 1
    buffers = {name: np.full((len(rows), width), -1, dtype=np.int64) for name in NAMES}
    source.write(rows, buffers)
    assert buffers["input_ids"].tolist() == [IDS[row] + [4] * (width - len(IDS[row])) for row in rows]
    assert buffers["attention_mask"].tolist() == [[1] * len(IDS[row]) + [0] * (width - len(IDS[row])) for row in rows]
    assert buffers["token_type_ids"].tolist() == [[0] * len(IDS[row]) + [1] * (width - len(IDS[row])) for row in rows]


@pytest.mark.parametrize("make", [token_rows, text_rows])
def test_inputs_that_the_graph_lacks_are_not_written(make) -> None:
    buffers = {"input_ids": np.zeros((1, 2), dtype=np.int64)}
    make().write([1], buffers)
    assert buffers["input_ids"].tolist() == [[2, 3]]


def test_a_clients_tensors_keep_their_full_width_whatever_the_mask_says() -> None:
    tensors = {"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.array([[1, 0, 1]])}
    rows = TensorRows(tensors, PADDING)
    assert rows.lengths.tolist() == [3]
    batch = write_batch([(rows, [0])], 4, ("input_ids", "attention_mask"))
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[1, 2, 3, 4]],
        "attention_mask": [[1, 0, 1, 0]],
    }


def test_a_batch_has_the_rows_of_its_requests_one_after_the_other() -> None:
    batch = write_batch([(token_rows(), [1, 2]), (text_rows(), [0]), (tensor_rows(), [1])], 4, NAMES)
    assert batch["input_ids"].tolist() == [[2, 3, 4, 4], [2, 7, 3, 4], [2, 5, 6, 3], [2, 3, 4, 4]]
    for value in batch.values():
        assert value.dtype == np.int64
        assert value.shape == (4, 4)
        assert value.flags.c_contiguous
        assert value.flags.writeable


LENGTHS = np.array([2, 1, 3])


def outputs_of(rows: list[int], width: int) -> dict[str, np.ndarray]:
    """Numbers that tell row and token; 99 where a row is padded."""
    tokens = np.full((len(rows), width, 1), 99.0, dtype=np.float32)
    for at, row in enumerate(rows):
        tokens[at, : LENGTHS[row], 0] = 10 * row + np.arange(LENGTHS[row])
    return {"row": np.array(rows, dtype=np.float32)[:, None], "tokens": tokens}


@pytest.mark.parametrize("split", [[[0, 1, 2]], [[2], [0, 1]], [[1], [0, 2]], [[2], [1], [0]]])
@pytest.mark.parametrize("more", [0, 2])
def test_outputs_of_all_runs_come_together_each_row_at_its_place(split: list[list[int]], more: int) -> None:
    parts = [Part(rows, outputs_of(rows, int(LENGTHS[rows].max()) + more)) for rows in split]
    merged = merge(parts, LENGTHS)
    assert merged["row"].tolist() == [[0], [1], [2]]
    assert merged["tokens"][:, :, 0].tolist() == [[0, 1, 0], [10, 0, 0], [20, 21, 22]]
    assert merged["tokens"].dtype == np.float32


def test_what_came_whole_is_not_copied_unless_the_runtime_keeps_it() -> None:
    outputs = outputs_of([0, 1, 2], 3)
    merged = merge([Part([0, 1, 2], outputs)], LENGTHS)
    assert merged["row"] is outputs["row"]
    assert merged["tokens"] is outputs["tokens"]
    kept = outputs_of([0, 1, 2], 3)["tokens"]
    kept.flags.writeable = False
    merged = merge([Part([0, 1, 2], {"tokens": kept})], LENGTHS)
    assert merged["tokens"][1, 1:, 0].tolist() == [0, 0]
    assert kept[1, 1, 0] == 99


def test_which_outputs_are_per_token_is_the_signatures_to_say() -> None:
    scores = np.array([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0], [4.0, 5.0, 6.0]], dtype=np.float32)
    merged = merge([Part([0, 1, 2], {"scores": scores})], LENGTHS, {"scores"})
    assert merged["scores"].tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]
    images = np.ones((3, 3, 2), dtype=np.float32)
    assert merge([Part([0, 1, 2], {"images": images})], LENGTHS, set())["images"] is images


def test_per_token_outputs() -> None:
    outputs = tuple(
        TensorSpec(name=name, dtype=DType.FLOAT, shape=shape)
        for name, shape in (("a", ("batch", "sequence")), ("b", ("batch", 8)), ("c", ("batch",)))
    )
    signature = ModelSignature(inputs=bundles.signature(Task.EMBEDDING).inputs, outputs=outputs)
    assert per_token_outputs(signature) == {"a"}
    assert per_token_outputs(bundles.signature(Task.TOKEN_CLASSIFICATION)) == {"logits", "scores"}
    assert per_token_outputs(bundles.signature(Task.EMBEDDING)) == set()


def test_numbers_per_row() -> None:
    spec = TensorSpec(name="x", dtype=DType.FLOAT, shape=("batch", "sequence", 384))
    assert numbers_per_row(spec, 10) == 3840
    assert numbers_per_row(TensorSpec(name="x", dtype=DType.FLOAT, shape=("batch", 384)), 10) == 384
