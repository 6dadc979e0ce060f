"""What a source model is for, decided from its configuration files alone."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from edgeonnx.errors import EdgeOnnxError, UnsupportedModelError, UsageError
from edgeonnx.export.source import Source
from edgeonnx.export.tasks import SUPPORTED_FAMILIES, choose_max_length, plan_task, position_limit
from edgeonnx.spec.manifest import Task

SEQUENCE, TOKEN = ["BertForSequenceClassification"], ["BertForTokenClassification"]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def source(files: dict[str, Any] | None = None, **config: Any) -> Source:
        for name, value in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(json.dumps(value))
        config = {"model_type": "bert", "architectures": ["BertModel"], **config}
        return Source(path=tmp_path, identity="m", revision=None, config=config, weights=("model.safetensors",))

    return source


MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]
EMBEDDING = {"modules.json": MODULES, "1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}
CROSS = {"config_sentence_transformers.json": {"model_type": "CrossEncoder"}}


@pytest.mark.parametrize(
    ("files", "config", "task"),
    [
        ({}, {}, Task.FEATURE_EXTRACTION),
        (EMBEDDING, {}, Task.EMBEDDING),
        ({}, {"architectures": SEQUENCE}, Task.TEXT_CLASSIFICATION),
        ({}, {"architectures": TOKEN}, Task.TOKEN_CLASSIFICATION),
        (CROSS, {"architectures": SEQUENCE}, Task.TEXT_RANKING),
        (
            {},
            {"architectures": SEQUENCE, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            Task.TEXT_RANKING,
        ),
        (
            {},
            {"architectures": SEQUENCE, "sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}},
            Task.TEXT_RANKING,
        ),
    ],
)
def test_the_files_state_the_task(make: Any, files: dict[str, Any], config: dict[str, Any], task: Task) -> None:
    assert plan_task(make(files, **config), None).task is task


def test_the_user_may_state_the_task(make: Any) -> None:
    assert plan_task(make(architectures=SEQUENCE), Task.TEXT_RANKING).task is Task.TEXT_RANKING
    assert plan_task(make(architectures=["BertForMaskedLM"]), Task.FEATURE_EXTRACTION).task is Task.FEATURE_EXTRACTION


@pytest.mark.parametrize("architectures", [["BertForMaskedLM"], [], None, "BertModel", [3]])
def test_files_that_do_not_state_it_ask_for_the_option(make: Any, architectures: Any) -> None:
    with pytest.raises(UsageError) as caught:
        plan_task(make(architectures=architectures), None)
    assert caught.value.where == "m: config.json: architectures"
    assert "--task" in (caught.value.hint or "")


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "", None, 3, "BERT"])
def test_other_families_are_refused_with_the_list(make: Any, model_type: Any) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        plan_task(make(model_type=model_type), None)
    assert caught.value.where == "m: config.json: model_type"
    assert all(family in (caught.value.expected or "") for family in SUPPORTED_FAMILIES)


def test_a_decoder_is_refused(make: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="configured as a decoder") as caught:
        plan_task(make(is_decoder=True), None)
    assert caught.value.where == "m: config.json: is_decoder"


@pytest.mark.parametrize("task", [Task.TEXT_CLASSIFICATION, Task.TEXT_RANKING, Task.TOKEN_CLASSIFICATION])
def test_weights_without_the_head_are_refused(make: Any, task: Task) -> None:
    with pytest.raises(UnsupportedModelError, match=f"no head for the task {task.value}") as caught:
        plan_task(make(), task)
    assert caught.value.expected is not None
    assert caught.value.found == "'BertModel'"


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({}, "softmax"),
        ({"problem_type": "regression"}, "identity"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"id2label": {"0": "score"}}, "sigmoid"),
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, "identity"),
        ({"function_to_apply": "sigmoid"}, "softmax"),  # the pipeline of transformers never comes to read it
    ],
)
def test_scores_of_classes_follow_the_pipeline_of_transformers(make: Any, config: Any, activation: str) -> None:
    assert plan_task(make(architectures=SEQUENCE, **config), None).activation == activation


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 3}, "identity"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, "sigmoid"),
    ],
)
def test_scores_of_pairs_follow_sentence_transformers(make: Any, config: Any, activation: str) -> None:
    assert plan_task(make(CROSS, architectures=SEQUENCE, **config), None).activation == activation


@pytest.mark.parametrize("name", ["my_code.Sigmoid", "torch.nn.GELU", "Sigmoid", "os.system"])
def test_another_activation_is_refused(make: Any, name: str) -> None:
    source = make(CROSS, architectures=SEQUENCE, sentence_transformers={"activation_fn": name})
    with pytest.raises(UnsupportedModelError, match="activation of the scores") as caught:
        plan_task(source, None)
    assert caught.value.found == repr(name)


def test_labels_come_in_the_order_of_their_indices(make: Any) -> None:
    names = {str(index): f"class {index}" for index in reversed(range(12))}
    assert plan_task(make(architectures=TOKEN, id2label=names), None).labels == tuple(f"class {i}" for i in range(12))


def test_labels_without_names_are_numbered(make: Any) -> None:
    assert plan_task(make(architectures=TOKEN), None).labels == ("LABEL_0", "LABEL_1")
    assert len(plan_task(make(architectures=TOKEN, num_labels=5), None).labels) == 5


@pytest.mark.parametrize("names", [{"0": "a", "2": "c"}, {"1": "b"}, {"a": "x"}, {"00": "a"}])
def test_labels_with_gaps_are_refused(make: Any, names: dict[str, str]) -> None:
    with pytest.raises(UnsupportedModelError, match="have gaps") as caught:
        plan_task(make(architectures=TOKEN, id2label=names), None)
    assert caught.value.where == "m: config.json: id2label"


@pytest.mark.parametrize("count", [0, -1, 10**12, "2", None, 2.0])
def test_an_impossible_number_of_classes_is_refused_at_once(make: Any, count: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="number of classes") as caught:
        plan_task(make(architectures=TOKEN, num_labels=count), None)
    assert caught.value.where == "m: config.json: num_labels"


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}, 512),
        ({"max_position_embeddings": 514, "model_type": "xlm-roberta"}, 512),
        ({"max_position_embeddings": 512, "pad_token_id": 3}, 512),
        ({}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": "512"}, None),
    ],
)
def test_the_position_table_limits_a_row(config: dict[str, object], limit: int | None) -> None:
    assert position_limit(config) == limit


@pytest.mark.parametrize(
    ("requested", "stated", "tokenizer", "limit", "chosen"),
    [
        (128, 256, 512, 512, 128),
        (512, 256, 512, 512, 512),
        (None, 256, 512, 512, 256),
        (None, None, 512, 514, 512),
        (None, None, 10**30, 512, 512),
        (None, 600, None, 512, 512),
        (None, -5, 512, 512, 512),
        (None, 0, None, 512, 512),
        (256, None, None, None, 256),
    ],
)
def test_the_longest_row(
    requested: int | None, stated: int | None, tokenizer: int | None, limit: int | None, chosen: int
) -> None:
    assert choose_max_length(requested=requested, stated=stated, tokenizer=tokenizer, limit=limit) == chosen


@pytest.mark.parametrize(
    ("requested", "tokenizer", "limit", "expected"),
    [(513, 512, 512, "at most 512"), (None, 10**30, None, None), (None, None, None, None)],
)
def test_a_length_that_the_model_has_not(
    requested: int | None, tokenizer: int | None, limit: int | None, expected: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        choose_max_length(requested=requested, stated=None, tokenizer=tokenizer, limit=limit)
    assert "--max-length" in str(caught.value)
    assert caught.value.expected == expected


@pytest.mark.parametrize("task", [None, *Task])
@pytest.mark.parametrize("config", [{"model_type": []}, {"id2label": 3}, {"sentence_transformers": []}])
def test_configurations_of_odd_types_end_in_a_plan_or_our_error(make: Any, config: Any, task: Task | None) -> None:
    with contextlib.suppress(EdgeOnnxError):
        assert plan_task(make(architectures=SEQUENCE, **config), task).labels in ((), ("LABEL_0", "LABEL_1"))


DECODERS = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@pytest.mark.parametrize("requested", [None, Task.TEXT_GENERATION])
@pytest.mark.parametrize("family", DECODERS)
def test_a_language_model_generates_text(make: Any, family: str, requested: Task | None) -> None:
    plan = plan_task(make(model_type=family, architectures=[DECODERS[family]]), requested)
    assert (plan.task, plan.head, plan.activation, plan.labels) == (Task.TEXT_GENERATION, None, None, ())


@pytest.mark.parametrize(
    ("files", "config", "requested"),
    [
        ({}, {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, None),
        ({}, {"model_type": "llama", "architectures": ["LlamaModel"]}, Task.TEXT_GENERATION),  # no head of its own
        ({}, {"model_type": "llama", "architectures": ["MistralForCausalLM"]}, Task.TEXT_GENERATION),
        ({}, {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, Task.EMBEDDING),
        (EMBEDDING, {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, None),  # an embedding model
        ({}, {"model_type": "bert", "architectures": ["BertLMHeadModel"]}, Task.TEXT_GENERATION),
        ({}, {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}, None),
        ({}, {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "quantization_config": {}}, None),
        ({}, {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "reorder_and_upcast_attn": True}, None),
    ],
)
def test_what_is_no_supported_language_model_is_refused(
    make: Any, files: dict[str, Any], config: dict[str, Any], requested: Task | None
) -> None:
    with pytest.raises(UnsupportedModelError):
        plan_task(make(files, **config), requested)
