"""What `package` must notice: a wrong graph never becomes a bundle. And what it must not store twice."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from edgeonnx.cli.main import app
from edgeonnx.errors import CorruptSourceError, ExportError, ParityError, ValidationError
from edgeonnx.export import modules
from edgeonnx.export.encoder import LoadedEncoder
from edgeonnx.export.graph import finish_graph
from edgeonnx.pipeline.recipe import PackageRequest
from edgeonnx.pipeline.run import package
from edgeonnx.pipeline.texts import shipped_texts
from edgeonnx.spec.manifest import Task
from tests.support.models import tiny_model
from tests.support.packaged import package_to

real_export = LoadedEncoder.export


def _traced_by_the_old_exporter(self: Any) -> Any:
    """`torch.onnx.export(dynamo=False)` on rows without padding: it bakes in that there is none."""
    row = self.tokenize(["a text without padding"], None)[0]
    example = {name: torch.tensor(value) for name, value in row.items()}
    axes = {name: {0: "batch", 1: "sequence"} for name in (*example, *self.output_names)}
    file = io.BytesIO()
    torch.onnx.export(
        self._module,
        tuple(example.values()),
        file,
        dynamo=False,
        opset_version=17,
        input_names=list(example),
        output_names=list(self.output_names),
        dynamic_axes=axes,
    )
    return finish_graph(onnx_ir.from_proto(onnx.load_from_string(file.getvalue())), axes=("batch", "sequence"))


def _without_the_mask(self: Any) -> Any:
    """A graph in which every position counts, padding too."""
    forward = modules.TextEncoder.forward

    def blind(module: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        return forward(module, input_ids, attention_mask * 0 + 1, token_type_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.TextEncoder, "forward", blind)
        return real_export(self)


def _slightly_off(self: Any) -> Any:
    """A graph of which one weight is wrong in the third digit."""
    weight = self._module.model.encoder.layer[0].output.dense.weight
    with torch.no_grad():
        weight[0, 0] += 0.05
    try:
        return real_export(self)
    finally:
        with torch.no_grad():
            weight[0, 0] -= 0.05


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("guards") / "m", "bert", num_hidden_layers=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("broken", [_traced_by_the_old_exporter, _without_the_mask, _slightly_off])
def test_a_graph_that_is_wrong_is_not_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr(LoadedEncoder, "export", broken)
    out = tmp_path / "out"
    with pytest.raises(ParityError) as caught:
        package(PackageRequest(source=str(source), name="m", version="1", out=out))
    error = caught.value
    assert "last_hidden_state" in str(error.where)
    assert "scaled_diff" in str(error.expected)
    assert any(repr(text)[:100] in error.details[0] for text in shipped_texts())
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
def test_the_command_line_names_the_worst_text_and_exits_with_4(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedEncoder, "export", _traced_by_the_old_exporter)
    out = tmp_path / "out"
    arguments = ["package", str(source), "--name", "m", "--version", "1", "--out", str(out)]
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
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path))
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
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path))


def test_an_input_that_the_exporter_dropped_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropped(self: Any) -> Any:
        self.input_names = ("input_ids", "token_type_ids")
        graph = real_export(self)
        self.input_names = ("input_ids", "attention_mask", "token_type_ids")
        return graph

    forward = modules.TextEncoder.forward
    monkeypatch.setattr(
        modules.TextEncoder,
        "forward",
        lambda module, input_ids, attention_mask=None, token_type_ids=None: forward(
            module, input_ids, attention_mask, token_type_ids
        ),
    )
    monkeypatch.setattr(LoadedEncoder, "export", dropped)
    with pytest.raises(ValidationError, match="dropped or renamed an input"):
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path))
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
        package(PackageRequest(source=str(source), name="m", version="1", out=tmp_path / "out"))
    assert any("pooler" in detail for detail in caught.value.details)
