"""ONNX Runtime behind a function: its failures are errors of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgeonnx.errors import RuntimeUnavailableError, ValidationError
from edgeonnx.model.runtime import open_graph
from edgeonnx.spec.manifest import Task
from tests.support.bundles import TEXTS, graph, reference, tokens_of


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    model, tensors = graph(Task.TEXT_CLASSIFICATION)
    (tmp_path / "model.onnx").write_bytes(model)
    (tmp_path / "tensors").mkdir()
    for name, data in tensors.items():
        (tmp_path / "tensors" / name).write_bytes(data)
    return tmp_path / "model.onnx", tmp_path / "tensors"


def test_it_runs_and_names_the_outputs(files: tuple[Path, Path]) -> None:
    inputs = tokens_of(TEXTS, None)
    found = open_graph(*files)(inputs)
    expected = reference(Task.TEXT_CLASSIFICATION, inputs)
    assert list(found) == ["logits", "scores"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"input_ids": np.zeros((1, 2), np.int64)},
        {name: np.zeros((1, 2), np.float32) for name in ("input_ids", "attention_mask", "token_type_ids")},
        {name: np.full((1, 2), 999) for name in ("input_ids", "attention_mask", "token_type_ids")},
    ],
    ids=["nothing", "an input missing", "another type", "an id beyond the table"],
)
def test_a_run_that_fails_is_an_error_of_ours(files: tuple[Path, Path], inputs: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValidationError, match="cannot run the graph") as caught:
        open_graph(*files)(inputs)
    assert caught.value.where == str(files[0])
    assert caught.value.found


def test_a_graph_that_does_not_load_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(ValidationError, match="does not load the graph") as caught:
        open_graph(tmp_path / "m.onnx", None)
    assert caught.value.where == str(tmp_path / "m.onnx")


def test_a_truncated_tensor_does_not_load(files: tuple[Path, Path]) -> None:
    tensor = next(files[1].iterdir())
    tensor.write_bytes(tensor.read_bytes()[:-4])
    with pytest.raises(ValidationError, match="does not load the graph"):
        open_graph(*files)


def test_a_missing_library_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeUnavailableError) as caught:
        open_graph(tmp_path / "m.onnx", None)
    assert "edgeonnx[host]" in (caught.value.hint or "")
