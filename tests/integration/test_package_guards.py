"""What `package` must notice: a wrong graph never becomes a bundle. And what it must not store twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from edgeonnx.errors import CorruptSourceError, ExportError, ParityError
from edgeonnx.export import encoder, modules
from edgeonnx.export.encoder import LoadedEncoder, load_encoder
from edgeonnx.export.graph import finish_graph
from edgeonnx.export.source import locate
from edgeonnx.export.tasks import plan_task
from edgeonnx.model.graph import StoredGraph
from edgeonnx.pipeline.recipe import PackageRequest
from edgeonnx.pipeline.run import package
from edgeonnx.pipeline.texts import shipped_texts
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.tensor import ModelSignature
from tests.support.models import tiny_model
from tests.support.packaged import package_to

pytestmark = pytest.mark.slow
real_export = LoadedEncoder.export
forward = modules.TextEncoder.forward


def _blind(module: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
    """A model for which every position counts, padding too: what a mask that was baked in makes of it."""
    return forward(module, input_ids, attention_mask * 0 + 1, token_type_ids)


def _short_sighted(module: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
    """A model that is right up to 64 tokens: tracing, and most texts, do not notice."""
    (hidden,) = forward(module, input_ids, attention_mask, token_type_ids)
    place = torch.arange(input_ids.shape[1])
    return (hidden * (1 + 0.001 * (place >= 64))[None, :, None],)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("guards") / "m", "bert", num_hidden_layers=1)


@pytest.fixture(scope="module", params=[_blind, _short_sighted])
def wrong_graph(source: Path, request: pytest.FixtureRequest) -> StoredGraph:
    """A graph that exports without complaint and is wrong for some batches."""
    located = locate(str(source))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.TextEncoder, "forward", request.param)
        return real_export(load_encoder(located, plan_task(located, None), max_length=None))


def test_a_wrong_graph_is_not_written(
    source: Path, wrong_graph: StoredGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedEncoder, "export", lambda _: wrong_graph)
    out = tmp_path / "out"
    with pytest.raises(ParityError) as caught:
        package(PackageRequest(source=str(source), name="m", version="1", out=out, variants=("cpu-fp32",)))
    error = caught.value
    assert "last_hidden_state" in str(error.where)
    assert "scaled_diff" in str(error.expected)
    assert any(repr(text)[:100] in error.details[0] for text in shipped_texts())
    assert not out.exists() or list(out.iterdir()) == []


def test_the_command_line_names_the_worst_text_and_exits_with_4(
    source: Path, wrong_graph: StoredGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedEncoder, "export", lambda _: wrong_graph)
    out = tmp_path / "out"
    arguments = ["package", str(source), "--name", "m", "--version", "1", "--out", str(out), "--variant", "cpu-fp32"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 4
    assert "worst input: " in result.stderr
    assert "nothing was written" in result.stderr
    assert "Traceback" not in result.output
    assert not out.exists() or list(out.iterdir()) == []
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert as_json.exit_code == 4
    assert json.loads(as_json.stdout)["error"] == "ParityError"


def test_a_failing_exporter_is_our_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot trace this\nwith a long explanation")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ExportError, match="torch could not export") as caught:
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path, variants=("cpu-fp32",)))
    assert caught.value.found == "RuntimeError: cannot trace this"
    assert list(tmp_path.iterdir()) == []


def test_a_batch_size_that_was_baked_in_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed(self: Any) -> Any:
        names = ("input_ids", "attention_mask", "token_type_ids")
        values = [onnx_ir.Value(name=name, shape=onnx_ir.Shape([1, "s"])) for name in names]
        return finish_graph(onnx_ir.Model(onnx_ir.Graph(values, [], nodes=[]), ir_version=10), axes=("batch", "s"))

    monkeypatch.setattr(LoadedEncoder, "export", fixed)
    with pytest.raises(ExportError, match="fixed the batch axis"):
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path, variants=("cpu-fp32",)))


def test_an_input_that_the_exporter_dropped_is_refused(
    source: Path, wrong_graph: StoredGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = wrong_graph.signature
    kept = ModelSignature(inputs=(signature.inputs[0], signature.inputs[2]), outputs=signature.outputs)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: SimpleNamespace(model=None))
    monkeypatch.setattr(encoder, "finish_graph", lambda *_, **__: replace(wrong_graph, signature=kept))
    with pytest.raises(ExportError, match="dropped or renamed an input") as caught:
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path, variants=("cpu-fp32",)))
    assert caught.value.expected == "input_ids, attention_mask, token_type_ids"
    assert caught.value.found == "input_ids, token_type_ids"
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_are_equal_are_stored_once(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m", "bert", num_hidden_layers=2)
    weights = load_file(str(source / "model.safetensors"))
    for name in [name for name in weights if ".layer.1." in name]:
        weights[name] = weights[name.replace(".layer.1.", ".layer.0.")].clone()
    save_file(weights, str(source / "model.safetensors"), metadata={"format": "pt"})
    packaged = package_to(tmp_path, source)
    variant = packaged.bundle.manifest.entry_component.variants[0]
    graph = onnx.load(packaged.bundle.model_path("encoder", variant), load_external_data=False).graph
    named = [
        entry.value
        for tensor in graph.initializer
        for entry in tensor.external_data
        if tensor.data_location == onnx.TensorProto.EXTERNAL and entry.key == "location"
    ]
    files = [path.name for path in packaged.bundle.tensors_path(variant).iterdir()]
    assert len(named) > len(set(named))
    assert sorted(files) == sorted(set(named))


def test_an_embedding_without_the_pooler_that_it_does_not_use_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m", "bert", num_hidden_layers=1, pooler=False)
    first = package_to(tmp_path / "a", source, Task.EMBEDDING).bundle.digest
    assert package_to(tmp_path / "b", source, Task.EMBEDDING).bundle.digest == first


def test_a_classifier_without_the_pooler_that_it_uses_is_refused(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "m", "bert", Task.TEXT_CLASSIFICATION, labels="ab", num_hidden_layers=1)
    weights = load_file(str(source / "model.safetensors"))
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, str(source / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(CorruptSourceError, match="lacks weights") as caught:
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path / "out", variants=("cpu-fp32",)))
    assert any("pooler" in detail for detail in caught.value.details)
