"""Settings of a sentence-transformers directory that change the answers: read, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeonnx.errors import UnsupportedModelError
from edgeonnx.export.source import Source
from edgeonnx.export.tasks import plan_task
from edgeonnx.spec.manifest import Task

TRANSFORMER = {"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling", "path": "1_Pooling"}
DENSE = {"type": "sentence_transformers.base.modules.dense.Dense", "path": "1_Dense"}
MODEL, ENCODER = "config_sentence_transformers.json", "sentence_bert_config.json"
CROSS = {"modules.json": [TRANSFORMER], MODEL: {"model_type": "CrossEncoder"}}
EMBEDDING = {"modules.json": [TRANSFORMER, POOLING], "1_Pooling/config.json": {"pooling_mode": "mean"}}
PROMPTS = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}


def _source(folder: Path, files: dict[str, Any], **config: Any) -> Source:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    architecture = "BertForSequenceClassification" if files.get("modules.json") == [TRANSFORMER] else "BertModel"
    known = {"model_type": "bert", "architectures": [architecture], "num_labels": 1, **config}
    return Source(path=folder, identity="m", revision=None, config=known, weights=("model.safetensors",))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"processing_kwargs": {"text": {"max_length": 8}}}, "processing_kwargs"),
        ({"processor_kwargs": {"padding_side": "left"}}, "processor_kwargs"),
        ({"tokenizer_args": {"use_fast": False}}, "tokenizer_args"),
        ({"config_args": {"num_hidden_layers": 1}}, "config_args"),
        ({"model_args": {"num_hidden_layers": 1}}, "model_args"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            "modality_config",
        ),
        ({"modality_config": {"message": {"method": "forward"}}}, "modality_config"),
    ],
)
@pytest.mark.parametrize("files", [EMBEDDING, CROSS], ids=["embedding", "cross-encoder"])
def test_a_setting_that_is_not_known_is_refused(
    tmp_path: Path, files: dict[str, Any], settings: dict[str, Any], field: str
) -> None:
    assert plan_task(_source(tmp_path, files), None).head is not None
    with pytest.raises(UnsupportedModelError) as caught:
        plan_task(_source(tmp_path, {**files, ENCODER: settings}), None)
    assert caught.value.where == f"m: {ENCODER}: {field}"


def test_settings_that_change_nothing_are_taken(tmp_path: Path) -> None:
    settings = {
        "max_seq_length": 77,
        "do_lower_case": True,
        "model_args": {"attn_implementation": "sdpa"},
        "tokenizer_args": {},
        "modality_config": {"text": {"method": "forward", "method_output_name": ["last_hidden_state"]}},
    }
    head = plan_task(_source(tmp_path, {**EMBEDDING, ENCODER: settings}), None).embedding
    assert head is not None
    assert (head.max_length, head.lowercase) == (77, True)


def test_the_settings_may_stand_in_the_file_of_another_family(tmp_path: Path) -> None:
    files = {**EMBEDDING, "sentence_xlm-roberta_config.json": {"max_seq_length": 50}}
    head = plan_task(_source(tmp_path, files), None).embedding
    assert head is not None
    assert head.max_length == 50


def test_without_modules_json_the_other_files_are_not_read(tmp_path: Path) -> None:
    files = {MODEL: PROMPTS, ENCODER: {"max_seq_length": 50, "do_lower_case": True}}
    head = plan_task(_source(tmp_path, files), Task.EMBEDDING).embedding
    assert head is not None
    assert (head.prefix, head.max_length, head.lowercase, head.pooling) == ("", None, False, ("mean",))


def test_another_type_of_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="another type of model"):
        plan_task(_source(tmp_path, {**EMBEDDING, MODEL: {"model_type": "SparseEncoder"}}), None)


@pytest.mark.parametrize("kept", [0, -3, "8", 2.5])
def test_a_truncation_that_is_no_size_is_refused(tmp_path: Path, kept: object) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        plan_task(_source(tmp_path, {**EMBEDDING, MODEL: {"truncate_dim": kept}}), None)
    assert caught.value.where == f"m: {MODEL}: truncate_dim"


def test_a_cross_encoders_activation_and_prompt_are_those_of_its_own_file(tmp_path: Path) -> None:
    stated = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity", **PROMPTS}
    older = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    plan = plan_task(_source(tmp_path, {**CROSS, MODEL: stated}, **older), None)
    assert plan.head is not None
    assert (plan.task, plan.activation, plan.head.prefix) == (Task.TEXT_RANKING, "identity", "query: ")


@pytest.mark.parametrize("activation", ["my_code.Act", "torch.nn.modules.activation.Tanh", "torch.nnx.Sigmoid"])
def test_an_activation_of_scores_that_is_not_known_is_refused(tmp_path: Path, activation: str) -> None:
    files = {**CROSS, MODEL: {"model_type": "CrossEncoder", "activation_fn": activation}}
    with pytest.raises(UnsupportedModelError, match="activation of the scores"):
        plan_task(_source(tmp_path, files), None)


def test_a_cross_encoder_with_further_modules_is_refused(tmp_path: Path) -> None:
    files = {**CROSS, "modules.json": [TRANSFORMER, DENSE]}
    source = _source(tmp_path, files, architectures=["BertForSequenceClassification"])
    with pytest.raises(UnsupportedModelError) as caught:
        plan_task(source, None)
    assert caught.value.found == "Transformer -> Dense"
