"""Embeddings: the bundle against `SentenceTransformer.encode`, for everything that may stand around an encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

from edgeonnx.export.embedding_head import DENSE_ACTIVATIONS, POOLING_MODES, DenseLayer
from edgeonnx.export.modules import DenseModule
from edgeonnx.pipeline.texts import shipped_texts
from edgeonnx.spec.manifest import Task
from tests.support.models import HIDDEN, sentence_directory, tiny_model
from tests.support.packaged import Packaged, package_to

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
TEXTS = [*shipped_texts(), "a text far longer than the model takes " * 60]


def _encode(directory: Path, **options: Any) -> np.ndarray:
    return SentenceTransformer(str(directory), device="cpu").encode(TEXTS, **options)


def _embeddings(packaged: Packaged) -> np.ndarray:
    found = np.stack(packaged.answer(TEXTS)["sentence_embedding"])
    assert found.std(axis=0).min() > 0.01, "the tiny model must tell texts apart"
    return found


def _equal(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and bool(np.abs(found - expected).max() < TOLERANCE)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("encoder"), "bert", num_hidden_layers=1)


@pytest.fixture(scope="module")
def both(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray, Packaged]:
    out = tmp_path_factory.mktemp("pooling")
    directory = sentence_directory(out / "source", encoder, pooling=POOLING_MODES, max_seq_length=48)
    packaged = package_to(out, directory)
    return _embeddings(packaged), _encode(directory), packaged


class TestEveryPoolingMode:
    """One model that pools in all modes at once: each must be right, and in its place."""

    def test_the_modes_are_all_that_sentence_transformers_has(self) -> None:
        assert set(POOLING_MODES) == set(modules.Pooling.POOLING_MODES)

    @pytest.mark.parametrize("mode", POOLING_MODES)
    def test_it_is_what_sentence_transformers_gives(self, both: Any, mode: str) -> None:
        found, expected, _ = both
        place = slice(POOLING_MODES.index(mode) * HIDDEN, (POOLING_MODES.index(mode) + 1) * HIDDEN)
        assert _equal(found[:, place], expected[:, place])

    def test_the_modes_differ(self, both: Any) -> None:
        parts = np.split(both[0], len(POOLING_MODES), axis=1)
        assert all(not _equal(parts[i], parts[j]) for i in range(len(parts)) for j in range(i))

    def test_the_manifest_says_what_it_is(self, both: Any) -> None:
        manifest = both[2].bundle.manifest
        assert manifest.task is Task.EMBEDDING
        assert manifest.properties["pooling"] == list(POOLING_MODES)
        assert manifest.properties["dimension"] == len(POOLING_MODES) * HIDDEN
        assert manifest.properties["normalized"] is False
        assert manifest.processing.max_length == 48


@pytest.fixture(scope="module")
def modern(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    layers = [
        modules.Dense(HIDDEN, 24, bias=True, activation_function=torch.nn.Tanh()),
        modules.Dense(24, 10, bias=False, activation_function=torch.nn.GELU()),
        modules.Normalize(),
    ]
    return sentence_directory(
        tmp_path_factory.mktemp("dense"),
        encoder,
        layers=layers,
        max_seq_length=40,
        prompts={"query": "search for: ", "passage": "text: "},
        default_prompt_name="query",
    )


@pytest.fixture(scope="module")
def packaged_modern(modern: Path, tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    return package_to(tmp_path_factory.mktemp("dense-out"), modern)


class TestDenseLayersNormalizationAndPrompt:
    """Dense with and without bias, normalization, a default prompt: written by today's sentence-transformers."""

    def test_it_is_what_sentence_transformers_gives(self, modern: Path, packaged_modern: Packaged) -> None:
        found = _embeddings(packaged_modern)
        assert _equal(found, _encode(modern))
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)

    def test_the_default_prompt_is_in_it(self, modern: Path, packaged_modern: Packaged) -> None:
        assert packaged_modern.bundle.manifest.processing.prefix == "search for: "
        assert not _equal(_embeddings(packaged_modern), _encode(modern, prompt=""))

    def test_long_texts_are_cut_as_the_source_cuts_them(self, modern: Path, packaged_modern: Packaged) -> None:
        assert packaged_modern.tokenize(TEXTS[-1:])["input_ids"].shape[1] == 40
        assert not _equal(_embeddings(packaged_modern), _encode(modern, processing_kwargs={"text": {"max_length": 20}}))

    def test_the_manifest_says_what_it_is(self, packaged_modern: Packaged) -> None:
        properties = packaged_modern.bundle.manifest.properties
        assert (properties["dimension"], properties["normalized"], properties["pooling"]) == (10, True, ["mean"])


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("older")
    source = tiny_model(out / "encoder", "roberta", num_hidden_layers=1)  # a tokenizer that keeps the case
    folder = sentence_directory(out / "source", source, layers=[modules.Normalize()], truncate_dim=20)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 36, "do_lower_case": true}')
    flags = {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    (folder / "2_Normalize" / "config.json").unlink()
    return folder


@pytest.fixture(scope="module")
def packaged_older(older: Path, tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    return package_to(tmp_path_factory.mktemp("older-out"), older)


class TestAnOlderDirectory:
    """What older releases wrote: flags for the pooling, `sentence_bert_config.json` with the text settings."""

    def test_it_is_what_sentence_transformers_gives(self, older: Path, packaged_older: Packaged) -> None:
        assert _equal(_embeddings(packaged_older), _encode(older))

    def test_text_is_lower_cased(self, packaged_older: Packaged) -> None:
        upper, lower = packaged_older.tokenize(["SHOUTING Über ALLES", "shouting über alles"])["input_ids"]
        assert upper.tolist() == lower.tolist()

    def test_the_length_is_the_stated_one(self, packaged_older: Packaged) -> None:
        assert packaged_older.bundle.manifest.processing.max_length == 36
        assert packaged_older.tokenize(TEXTS[-1:])["input_ids"].shape[1] == 36

    def test_a_truncated_embedding_is_not_called_normalized(self, packaged_older: Packaged) -> None:
        properties = packaged_older.bundle.manifest.properties
        assert (properties["dimension"], properties["normalized"]) == (20, False)


def test_a_plain_encoder_is_mean_pooled_where_the_user_asks_for_embeddings(encoder: Path, tmp_path: Path) -> None:
    found = _embeddings(package_to(tmp_path, encoder, Task.EMBEDDING, max_length=32))
    model = SentenceTransformer(str(encoder), device="cpu")
    model.max_seq_length = 32
    assert _equal(found, model.encode(TEXTS))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", DENSE_ACTIVATIONS)
def test_a_dense_layer_is_that_of_sentence_transformers(activation: str, bias: bool) -> None:
    theirs = modules.Dense(6, 4, bias=bias, activation_function=getattr(torch.nn, activation)())
    ours = DenseModule(DenseLayer(folder="", in_features=6, out_features=4, bias=bias, activation=activation))
    ours.load_state_dict(theirs.state_dict())
    vector = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    expected = theirs({"sentence_embedding": vector})["sentence_embedding"]
    assert torch.equal(ours(vector), expected)
