"""References for the tests of this folder: of the tiny models, and of numbers that a test writes down itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgeonnx.model.reference import Reference
from edgeonnx.spec.manifest import Task
from tests.support.bundles import WORDS, reference, tokens_of

TEXTS = tuple(" ".join(WORDS[(start * 3 + step) % 10] for step in range(1 + start % 9)) for start in range(40))


@pytest.fixture
def tiny_reference() -> Callable[[Task], Reference]:
    """The plain NumPy model of a task, asked for 40 texts of 3 to 11 tokens."""

    def make(task: Task) -> Reference:
        pairs = TEXTS[::-1] if task.takes_pairs else None
        seconds: Sequence[str | None] = [None] * len(TEXTS) if pairs is None else list(pairs)
        inputs = tuple(
            tokens_of((text,), None if second is None else (second,))
            for text, second in zip(TEXTS, seconds, strict=True)
        )
        outputs = tuple(reference(task, row) for row in inputs)
        return Reference(
            texts=TEXTS, pairs=pairs, inputs=inputs, outputs=outputs, pad_ids={"input_ids": 0, "token_type_ids": 0}
        )

    return make


@pytest.fixture
def written_reference() -> Callable[..., Reference]:
    """A reference with the given outputs, one array a row: (values,) or (tokens, values)."""

    def make(rows: Sequence[object], *, output: str = "scores", lengths: Sequence[int] | None = None) -> Reference:
        values = [np.asarray(row, dtype=np.float32)[None] for row in rows]
        sizes = lengths or [value.shape[1] if value.ndim == 3 else 3 for value in values]
        ids = [np.arange(1, size + 1, dtype=np.int64)[None] for size in sizes]
        return Reference(
            texts=tuple(f"text {row}" for row in range(len(rows))),
            pairs=None,
            inputs=tuple({"input_ids": item, "attention_mask": np.ones_like(item)} for item in ids),
            outputs=tuple({output: value} for value in values),
            pad_ids={"input_ids": 0},
        )

    return make
