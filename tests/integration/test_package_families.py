"""Every supported family, from a source model to a bundle that gives transformers' answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from edgeonnx.export.tasks import SUPPORTED_FAMILIES
from edgeonnx.pipeline.texts import shipped_texts
from edgeonnx.spec.manifest import Task
from tests.support.models import tiny_model
from tests.support.packaged import package_to

LABELS = ("red", "green", "blue")
# Families whose classifiers pool in a way of their own; the others are held against transformers token by token.
POOLING_FAMILIES = ("deberta-v2", "eurobert", "gte", "modernbert")
# Batch sizes and padding that neither tracing nor the build's own parity stage uses.
SIZES = (1, 2, 5, 11)
EXTRA_PADDING = 3


def _padded(tokenizer: Any, texts: list[str], width: int | None = None) -> dict[str, torch.Tensor]:
    options = {"padding": True} if width is None else {"padding": "max_length", "max_length": width}
    return dict(tokenizer(texts, truncation=True, return_tensors="pt", **options))


def _batches(tokenizer: Any) -> list[dict[str, torch.Tensor]]:
    """Texts of mixed lengths in batches of odd sizes, padded beyond their longest row."""
    texts = sorted(shipped_texts(), key=lambda text: text[::-1])
    batches, start = [], 0
    for size in SIZES * 4:
        rows = texts[start : start + size]
        start += size
        longest = _padded(tokenizer, rows)["input_ids"].shape[1]
        batches.append(_padded(tokenizer, rows, min(longest + EXTRA_PADDING, 512)))
    return batches


@pytest.mark.slow
@pytest.mark.parametrize("family", SUPPORTED_FAMILIES)
def test_the_bundle_answers_as_transformers_does(family: str, tmp_path: Path) -> None:
    pools = family in POOLING_FAMILIES
    task = Task.TEXT_CLASSIFICATION if pools else Task.TOKEN_CLASSIFICATION
    source = tiny_model(tmp_path / "source", family, task, labels=LABELS)
    packaged = package_to(tmp_path / "out", source)
    auto = transformers.AutoModelForSequenceClassification if pools else transformers.AutoModelForTokenClassification
    model = auto.from_pretrained(source, dtype=torch.float32).eval()
    assert packaged.bundle.manifest.task is task
    assert model.config.model_type == family
    spread = []
    for batch in _batches(transformers.AutoTokenizer.from_pretrained(source)):
        wanted = {name: value for name, value in batch.items() if name in packaged.input_names}
        assert set(packaged.input_names) <= set(batch)
        with torch.inference_mode():
            expected = model(**wanted).logits.numpy()
        found = packaged.run({name: value.numpy() for name, value in batch.items()})["logits"]
        meant = batch["attention_mask"].numpy().astype(bool)
        if not pools:
            expected, found = expected[meant], found[meant]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        spread.append(found)
    assert np.concatenate(spread).std(axis=0).min() > 0.05, "the tiny model must tell texts apart"
