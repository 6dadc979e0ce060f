"""Source models that look right until they are loaded: exit code 3, and nothing is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from edgeonnx.spec.manifest import Task
from tests.support.models import HIDDEN, tiny_model

MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
]
DENSE = {"in_features": HIDDEN, "out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("encoder"), task=Task.FEATURE_EXTRACTION)


@pytest.fixture
def source(encoder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoder, tmp_path / "model"))


def weights(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**document, **changes}))

    return edit


def first(tensors: dict[str, Any], part: str) -> str:
    return next(name for name in tensors if part in name)


def drop_layer(tensors: dict[str, Any]) -> None:
    del tensors[first(tensors, "attention.self.query.weight")]


def cut(tensors: dict[str, Any]) -> None:
    name = first(tensors, "attention.self.query.weight")
    tensors[name] = np.ascontiguousarray(tensors[name][:, :-1])


def spoil(value: float) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[first(tensors, "attention.self.query.weight")][0, 0] = value

    return change


def forget_rows(folder: Path) -> None:
    weights(lambda t: t.update({n: t[n][:100].copy() for n in [first(t, "word_embeddings")]}))(folder)
    config(vocab_size=100)(folder)


def dense(rows: int = 4, columns: int = HIDDEN, *, file: bool = True, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "modules.json").write_text(json.dumps(MODULES))
        for name, document in (("1_Pooling", {"pooling_mode": "mean"}), ("2_Dense", {**DENSE, **changes})):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(document))
        if file:
            tensors = {
                "linear.weight": np.zeros((rows, columns), np.float32),
                "linear.bias": np.zeros(rows, np.float32),
            }
            save_file(tensors, folder / "2_Dense" / "model.safetensors")

    return edit


def truncated_dense(folder: Path) -> None:
    dense()(folder)
    file = folder / "2_Dense" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def nan_dense(folder: Path) -> None:
    dense()(folder)
    bias = np.full(4, np.nan, np.float32)
    save_file(
        {"linear.weight": np.zeros((4, HIDDEN), np.float32), "linear.bias": bias}, folder / "2_Dense/model.safetensors"
    )


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / "tokenizer.json").read_text())
        change(document)
        (folder / "tokenizer.json").write_text(json.dumps(document))

    return edit


def tokenizer_settings(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing tensor": (weights(drop_layer), "lacks weights"),
    "no tensor at all": (weights(lambda t: t.clear()), "lacks weights"),
    "tensors of another model": (weights(lambda t: t.update({"x": t.pop(first(t, "query.weight"))})), "lacks weights"),
    "the head that its class names": (config(architectures=["BertForTokenClassification"]), "lacks weights"),
    "a tensor of another shape": (weights(cut), "cannot be loaded|lacks weights"),
    "a configuration of another size": (config(hidden_size=HIDDEN * 2), "cannot be loaded|lacks weights"),
    "a configuration that does not fit itself": (config(num_attention_heads=5), "cannot be loaded|does not accept"),
    "a configuration with a text for a number": (config(hidden_size="large"), "transformers does not accept"),
    "weights that are not numbers": (weights(spoil(np.nan)), "NaN or infinite"),
    "weights that are infinite": (weights(spoil(np.inf)), "NaN or infinite"),
    "fewer embeddings than tokens": (forget_rows, "beyond the model's embedding table"),
    "a tokenizer of 0 bytes": (lambda f: (f / "tokenizer.json").write_bytes(b""), "tokenizer that cannot be read"),
    "a tokenizer that is no tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer that cannot be"),
    "a tokenizer with code of its own": (
        tokenizer_settings(auto_map={"AutoTokenizer": ["evil.Evil", None]}),
        "needs code from its own repository",
    ),
    "a tokenizer without padding": (tokenizer_settings(pad_token=None), "tokenizer that is not supported"),
    "padding on the left": (tokenizer_settings(padding_side="left"), "tokenizer that is not supported"),
    "a dense layer without weights": (dense(file=False), "is missing"),
    "a dense layer of another size": (dense(rows=5), "does not fit the dense layer"),
    "a dense layer after another width": (dense(in_features=HIDDEN + 1), "does not fit what comes before it"),
    "a truncated dense layer": (truncated_dense, "is not a whole safetensors file"),
    "a dense layer that is not numbers": (nan_dense, "NaN or infinite"),
    "a dense layer with a foreign activation": (dense(activation_function="evil.Act"), "activation of a dense layer"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_source_that_cannot_be_trusted_is_refused_and_nothing_is_written(
    source: Path, tmp_path: Path, case: str
) -> None:
    change, message = CASES[case]
    change(source)
    out = tmp_path / "out"
    line = ["package", str(source), "--name", "a", "--version", "1", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 3, (done.stdout, done.stderr, done.exception)
    error = json.loads(done.stdout)
    assert any(part in error["message"] for part in message.split("|")), error
    assert error["where"]
    assert set(error) & {"expected", "found", "hint", "details"}
    assert "error: " not in done.stderr
    assert not out.exists()


def test_a_length_beyond_the_position_table_is_wrong_usage(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = ["package", str(source), "-n", "a", "-v", "1", "-o", str(out), "--max-length", "601", "--json"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 2
    assert json.loads(done.stdout)["where"] == "--max-length"
    assert not out.exists()


def test_a_dry_run_prints_the_plan_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    line = ["package", str(source), "-n", "a", "-v", "1", "-o", str(tmp_path / "out"), "--dry-run"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, (done.stderr, done.exception)
    assert "feature-extraction" in done.stdout
    assert done.stdout.splitlines()[-1] == "dry run: nothing was written"
    plan = json.loads(CliRunner().invoke(app, [*line, "--json"]).stdout)
    assert plan["stages"][0]["stage"] == "load"
    assert not (tmp_path / "out").exists()
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*")} == before


def test_an_existing_bundle_is_refused_before_anything_is_loaded(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a-1").mkdir()
    (tmp_path / "a-1" / "precious").write_text("x")
    for extra in ([], ["--dry-run"], ["--force"]):
        done = CliRunner().invoke(app, ["package", str(source), "-n", "a", "-v", "1", "-o", str(tmp_path), *extra])
        assert done.exit_code == 2
        assert "✓ load" not in done.stderr
    assert [path.name for path in (tmp_path / "a-1").iterdir()] == ["precious"]
