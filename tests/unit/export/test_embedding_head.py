"""What a sentence-transformers directory does after its encoder, read from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeonnx.errors import CorruptSourceError, SourceError, UnsafeSourceError, UnsupportedModelError
from edgeonnx.export.embedding_head import DenseLayer, read_embedding_head
from edgeonnx.export.source import Source

TYPES = "sentence_transformers.models."


def module(kind: str, path: str) -> dict[str, str]:
    return {"type": TYPES + kind, "path": path}


BASE = [module("Transformer", ""), module("Pooling", "1_Pooling")]
MEAN = {"pooling_mode": "mean"}
DENSE = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"}


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def source(modules: Any = BASE, pooling: Any = MEAN, **files: Any) -> Source:
        named = {"modules.json": modules, "1_Pooling/config.json": pooling}
        named |= {key.replace("__", "/") + ".json": value for key, value in files.items()}
        for name, value in named.items():
            if value is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
        return Source(path=tmp_path, identity="m", revision=None, config={}, weights=())

    return source


def test_a_plain_directory_is_mean_pooled_and_not_normalized(tmp_path: Path) -> None:
    head = read_embedding_head(Source(path=tmp_path, identity="m", revision=None, config={}, weights=()))
    assert (head.pooling, head.layers, head.max_length, head.prefix) == (("mean",), (), None, "")


def test_a_whole_directory_is_read(make: Any) -> None:
    head = read_embedding_head(
        make(
            [*BASE, module("Dense", "2_Dense"), module("Normalize", "3_Normalize")],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            **{"2_Dense__config": DENSE},
            sentence_bert_config={"max_seq_length": 256, "do_lower_case": True},
            config_sentence_transformers={"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        )
    )
    assert head.pooling == ("cls",)
    assert head.layers == (
        DenseLayer(folder="2_Dense", in_features=8, out_features=4, bias=True, activation="Tanh"),
        "normalize",
    )
    assert (head.max_length, head.lowercase, head.prefix) == (256, True, "q: ")


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({"pooling_mode": ["mean", "max"]}, ("mean", "max")),
        ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, ("cls", "max")),
        ({"pooling_mode_weightedmean_tokens": True}, ("weightedmean",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len_tokens",)),
        ({}, ("mean",)),
    ],
)
def test_both_forms_of_pooling_configurations(make: Any, config: dict[str, Any], modes: tuple[str, ...]) -> None:
    assert read_embedding_head(make(pooling=config)).pooling == modes


@pytest.mark.parametrize("stated", ["median", ["mean", "median"], [], 3, {}, [[]]])
def test_another_pooling_is_refused(make: Any, stated: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="pooling mode is not known") as caught:
        read_embedding_head(make(pooling={"pooling_mode": stated}))
    assert caught.value.where == "m: 1_Pooling/config.json: pooling_mode"
    assert "lasttoken" in (caught.value.expected or "")


BROKEN_MODULES: dict[str, tuple[Any, type[SourceError]]] = {
    "no list": ({"0": "Transformer"}, UnsupportedModelError),
    "no module": ([], UnsupportedModelError),
    "no type": ([{"path": ""}], UnsupportedModelError),
    "a number for a module": ([3], UnsupportedModelError),
    "a number for a type": ([{"type": 3, "path": ""}], UnsupportedModelError),
    "not JSON": ("[", UnsupportedModelError),
    "nested too deep": ("[" * 100_000, UnsupportedModelError),
    "no pooling": ([module("Transformer", "")], UnsupportedModelError),
    "another order": (BASE[::-1], UnsupportedModelError),
    "the encoder elsewhere": ([module("Transformer", "0_Transformer"), BASE[1]], UnsupportedModelError),
    "an unknown module": ([*BASE, module("LSTM", "2_LSTM")], UnsupportedModelError),
    "foreign code": ([*BASE, {"type": "evil.Normalize", "path": "2"}], UnsupportedModelError),
    "foreign code of a like name": (
        [*BASE, {"type": "sentence_transformersX.Dense", "path": "2"}],
        UnsupportedModelError,
    ),
    "pooling outside": ([BASE[0], module("Pooling", "../1_Pooling")], UnsafeSourceError),
    "pooling at an absolute path": ([BASE[0], module("Pooling", "/etc")], UnsafeSourceError),
    "a dense layer outside": ([*BASE, module("Dense", "2/../../x")], UnsafeSourceError),
    "pooling without its folder": ([BASE[0], module("Pooling", "9_Pooling")], CorruptSourceError),
    "pooling without a path": ([BASE[0], module("Pooling", "")], CorruptSourceError),
    "a dense layer without its folder": ([*BASE, module("Dense", "9_Dense")], CorruptSourceError),
}


@pytest.mark.parametrize("case", BROKEN_MODULES)
def test_modules_that_are_not_known_are_refused(make: Any, case: str) -> None:
    modules, kind = BROKEN_MODULES[case]
    with pytest.raises(kind) as caught:
        read_embedding_head(make(modules))
    assert type(caught.value) is kind
    assert (caught.value.where or "").startswith("m: ")
    assert caught.value.expected
    assert all(isinstance(part, str) for part in (caught.value.found or "", caught.value.expected or ""))


@pytest.mark.parametrize(
    ("change", "message", "field"),
    [
        ({"activation_function": "my_code.Act"}, "activation of a dense layer", "activation_function"),
        ({"activation_function": "torch.nn.modules.activation.Softmax"}, "activation", "activation_function"),
        ({"activation_function": "torch.nnx.Tanh"}, "activation of a dense layer", "activation_function"),
        ({"in_features": None}, "does not state its sizes", "in_features"),
        ({"out_features": -1}, "does not state its sizes", "out_features"),
        ({"out_features": 10**12}, "does not state its sizes", "out_features"),
        ({"module_input_name": "token_embeddings"}, "a setting that is not supported", "config.json"),
        ({"use_residual": True}, "a setting that is not supported", "config.json"),
    ],
)
def test_dense_layers_that_are_not_known_are_refused(
    make: Any, change: dict[str, Any], message: str, field: str
) -> None:
    source = make([*BASE, module("Dense", "2_Dense")], **{"2_Dense__config": {**DENSE, **change}})
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read_embedding_head(source)
    assert (caught.value.where or "").startswith("m: 2_Dense/config.json")
    assert field in (caught.value.where or "")


def test_the_activation_of_a_dense_layer_is_tanh_where_none_is_stated(make: Any) -> None:
    config = {"in_features": 8, "out_features": 4, "bias": False}
    head = read_embedding_head(make([*BASE, module("Dense", "2_Dense")], **{"2_Dense__config": config}))
    assert head.layers == (DenseLayer(folder="2_Dense", in_features=8, out_features=4, bias=False, activation="Tanh"),)


def test_a_prompt_that_is_left_out_of_the_pooling_is_refused(make: Any) -> None:
    prompts = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}
    source = make(pooling={**MEAN, "include_prompt": False}, config_sentence_transformers=prompts)
    with pytest.raises(UnsupportedModelError, match="prompt out of the pooling") as caught:
        read_embedding_head(source)
    assert caught.value.where == "m: 1_Pooling/config.json: include_prompt"


@pytest.mark.parametrize(
    "config", [{}, {"prompts": {"q": "x"}}, {"default_prompt_name": "q"}, {"prompts": [], "default_prompt_name": "q"}]
)
def test_without_a_default_prompt_there_is_no_prefix(make: Any, config: dict[str, Any]) -> None:
    assert read_embedding_head(make(config_sentence_transformers=config)).prefix == ""


@pytest.mark.parametrize("stated", [0, -1, "256", None])
def test_a_length_that_is_none_is_not_taken(make: Any, stated: Any) -> None:
    assert read_embedding_head(make(sentence_bert_config={"max_seq_length": stated})).max_length is None
