"""Tasks that score, and plain hidden states: the bundle against the libraries that the models are used with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder

from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.pipeline.texts import pair_up, shipped_texts
from edgeonnx.spec.manifest import Task
from tests.support.models import cross_encoder_directory, tiny_model
from tests.support.packaged import package_to

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
TEXTS = shipped_texts()
PAIRS = pair_up(TEXTS)
SENTENCES = TEXTS[:40]
LABELS = ("negative", "neutral", "very positive")


def _pipeline(kind: str, source: Path) -> Any:
    return transformers.pipeline(kind, model=str(source), device="cpu", dtype=torch.float32)


def _by_label(rows: list[list[dict[str, Any]]], labels: tuple[str, ...]) -> np.ndarray:
    return np.array(
        [[next(item["score"] for item in row if item["label"] == label) for label in labels] for row in rows]
    )


def _tells_apart(scores: np.ndarray) -> bool:
    return bool(scores.std(axis=0).min() > 0.02)


@pytest.mark.parametrize(
    ("family", "labels", "config", "activation"),
    [
        ("roberta", LABELS, {}, "softmax"),
        ("bert", LABELS, {"problem_type": "multi_label_classification"}, "sigmoid"),
        ("distilbert", ("toxic",), {}, "sigmoid"),
        ("bert", ("stars",), {"problem_type": "regression"}, "identity"),
    ],
    ids=["softmax", "several labels at once", "one label", "regression"],
)
def test_text_classification_scores_as_the_pipeline_does(
    family: str, labels: tuple[str, ...], config: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    layers = {"n_layers" if family == "distilbert" else "num_hidden_layers": 1}
    source = tiny_model(tmp_path / "m", family, Task.TEXT_CLASSIFICATION, labels=labels, seed=7, **layers, **config)
    packaged = package_to(tmp_path, source)
    found = np.stack(packaged.answer(TEXTS)["scores"])
    expected = _by_label(_pipeline("text-classification", source)(list(TEXTS), top_k=None, truncation=True), labels)
    assert np.abs(found - expected).max() < TOLERANCE
    assert _tells_apart(found)
    manifest = packaged.bundle.manifest
    assert (manifest.task, manifest.labels) == (Task.TEXT_CLASSIFICATION, labels)
    assert manifest.properties["activation"] == activation


def test_token_classification_scores_every_token_as_the_pipeline_does(tmp_path: Path) -> None:
    labels = ("O", "B-PER", "I-PER", "B-LOC")
    source = tiny_model(tmp_path / "m", "bert", Task.TOKEN_CLASSIFICATION, labels=labels, num_hidden_layers=1)
    packaged = package_to(tmp_path, source)
    pipeline = _pipeline("token-classification", source)
    scores = packaged.answer(SENTENCES)["scores"]
    compared = 0
    for text, row in zip(SENTENCES, scores, strict=True):
        for token in pipeline(text, ignore_labels=[]):
            place = token["index"]
            assert labels[int(row[place].argmax())] == token["entity"]
            assert abs(float(row[place].max()) - float(token["score"])) < TOLERANCE
            compared += 1
    assert compared > 400
    assert _tells_apart(np.concatenate(scores))
    assert packaged.bundle.manifest.labels == labels
    assert packaged.bundle.manifest.task is Task.TOKEN_CLASSIFICATION


def test_feature_extraction_gives_the_pipelines_hidden_states(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m", "electra", num_hidden_layers=1)
    packaged = package_to(tmp_path, source)
    pipeline = _pipeline("feature-extraction", source)
    states = packaged.answer(SENTENCES)["last_hidden_state"]
    for text, row in zip(SENTENCES, states, strict=True):
        np.testing.assert_allclose(row, pipeline(text)[0], atol=TOLERANCE)
    assert packaged.bundle.manifest.task is Task.FEATURE_EXTRACTION


RERANKERS = {
    # Labels, options of CrossEncoder (None: a directory of transformers alone), config.json, the expected activation.
    "one score": (("LABEL_0",), {}, {}, "sigmoid"),
    "a stored activation and a default prompt": (
        ("LABEL_0",),
        {"activation_fn": torch.nn.Identity(), "prompts": {"q": "question: "}, "default_prompt_name": "q"},
        {},
        "identity",
    ),
    "several scores, before modules.json": (
        ("contradiction", "entailment", "neutral"),
        None,
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        "identity",
    ),
}


@pytest.mark.parametrize("name", RERANKERS)
def test_a_cross_encoder_scores_pairs_as_sentence_transformers_does(name: str, tmp_path: Path) -> None:
    labels, options, config, activation = RERANKERS[name]
    source = tiny_model(tmp_path / "m", "bert", Task.TEXT_RANKING, labels=labels, num_hidden_layers=1, seed=5, **config)
    if options is not None:
        source = cross_encoder_directory(tmp_path / "ce", source, **options)
    packaged = package_to(tmp_path, source)
    found = np.stack(packaged.answer(TEXTS, PAIRS)["scores"])
    expected = CrossEncoder(str(source), device="cpu").predict(list(zip(TEXTS, PAIRS, strict=True)))
    assert np.abs(found - expected.reshape(found.shape)).max() < TOLERANCE
    assert _tells_apart(found)
    manifest = packaged.bundle.manifest
    assert (manifest.task, manifest.labels) == (Task.TEXT_RANKING, labels)
    assert manifest.properties["activation"] == activation
    swapped = np.stack(packaged.answer(PAIRS, TEXTS)["scores"])
    assert np.abs(found - swapped).max() > 100 * TOLERANCE, "the order of a pair must matter"


@pytest.mark.parametrize(
    ("stored", "labels", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 1, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, 3, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, 2, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, "identity"),
    ],
)
def test_an_activation_in_config_json_is_the_one_that_sentence_transformers_takes(
    stored: dict[str, Any], labels: int, activation: str, tmp_path: Path
) -> None:
    names = tuple(f"L{index}" for index in range(labels))
    source = tiny_model(tmp_path, "bert", Task.TEXT_RANKING, labels=names, num_hidden_layers=1, **stored)
    plan = plan_task(locate(str(source)), None)
    theirs = CrossEncoder(str(source), device="cpu").activation_fn
    assert (plan.task, plan.activation) == (Task.TEXT_RANKING, activation)
    assert type(theirs).__name__.lower() == activation


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        *((labels, problem) for labels in (1, 3) for problem in (None, "regression", "multi_label_classification")),
        (3, "single_label_classification"),
    ],
)
@pytest.mark.parametrize("wish", [None, "sigmoid", "none"])
def test_the_activation_is_the_one_that_the_pipeline_chooses(
    labels: int, problem: str | None, wish: str | None, tmp_path: Path
) -> None:
    source = tiny_model(
        tmp_path, "bert", Task.TEXT_CLASSIFICATION, labels=tuple("abc"[:labels]), num_hidden_layers=1, seed=2
    )
    config = json.loads((source / "config.json").read_text())
    extra = {"problem_type": problem} | ({"function_to_apply": wish} if wish else {})
    (source / "config.json").write_text(json.dumps({**config, **extra}))
    pipeline = _pipeline("text-classification", source)
    scores = _by_label(pipeline([TEXTS[0]], top_k=None), tuple("abc"[:labels]))[0]
    logits = pipeline.model(**pipeline.tokenizer(TEXTS[0], return_tensors="pt")).logits[0].detach()
    choices = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "identity": logits}
    chosen = plan_task(locate(str(source)), None).activation
    assert chosen is not None
    np.testing.assert_allclose(scores, choices[chosen], atol=1e-6)
