"""A packaged model, answered for by plain ONNX Runtime: what a bundle means without the device agent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from edgeonnx_ext import TextEncoder, open_text_encoder

from edgeonnx.bundle import Bundle, open_bundle
from edgeonnx.model.graph import StoredGraph
from edgeonnx.pipeline.recipe import PackageRequest
from edgeonnx.pipeline.run import package
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION, Task

BATCH = 16


def package_to(out: Path, source: Path, task: Task | None = None, *, max_length: int | None = None) -> Packaged:
    """Package a source model into `out` and open the bundle."""
    request = PackageRequest(
        source=str(source),
        name="model",
        version="1.0.0",
        out=out,
        task=task,
        max_length=max_length,
        variants=("cpu-fp32",),
    )
    return open_packaged(package(request).path)


def open_packaged(path: Path, variant_name: str | None = None) -> Packaged:
    """Open a variant of a bundle (the first one, if no name is given) with ONNX Runtime."""
    bundle = open_bundle(path)
    component = bundle.manifest.entry_component
    variant = next(item for item in component.variants if variant_name in (None, item.name))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(EXTERNAL_FOLDER_OPTION, str(bundle.tensors_path(variant)))
    model = str(bundle.model_path(component.name, variant))
    return Packaged(bundle=bundle, session=onnxruntime.InferenceSession(model, options))


def stored_variant(bundle: Bundle, name: str) -> StoredGraph:
    """A variant's graph as the stages of the build host hand it on."""
    component = bundle.manifest.entry_component
    variant = next(item for item in component.variants if item.name == name)
    data = bundle.model_path(component.name, variant).read_bytes()
    folder = bundle.tensors_path(variant)
    model = onnx.ModelProto.FromString(data)
    names = {entry.value for item in model.graph.initializer for entry in item.external_data if entry.key == "location"}
    return StoredGraph(
        model=data,
        tensors={} if folder is None else {name: (folder / name).read_bytes() for name in sorted(names)},
        signature=component.signature,
        opset=next(item.version for item in model.opset_import if item.domain == ""),
        node_count=len(model.graph.node),
        domains=tuple(sorted(item.domain for item in model.opset_import if item.domain)),
    )


@dataclass(kw_only=True)
class Packaged:
    """An opened bundle and its session."""

    bundle: Bundle
    session: Any

    @property
    def input_names(self) -> list[str]:
        """What the graph takes."""
        return [value.name for value in self.session.get_inputs()]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Inputs by name (those that the graph does not take are left out) to outputs by name."""
        names = [value.name for value in self.session.get_outputs()]
        wanted = {name: np.asarray(inputs[name], dtype=np.int64) for name in self.input_names}
        return dict(zip(names, self.session.run(names, wanted), strict=True))

    @cached_property
    def text_encoder(self) -> TextEncoder:
        """The text path that the device takes."""
        processing = self.bundle.manifest.processing
        return open_text_encoder(
            self.bundle.tokenizer_json(),
            max_length=processing.max_length,
            pad_id=processing.pad_id,
            pad_type_id=processing.pad_type_id,
            prefix=processing.prefix,
            backend=processing.backend,
        )

    def tokenize(self, texts: Any, pairs: Any = None) -> dict[str, np.ndarray]:
        """Texts to one padded batch, as the device does it."""
        return self.text_encoder.encode(texts, pairs).tensors()

    def answer(self, texts: Any, pairs: Any = None, *, batch: int = BATCH) -> dict[str, list[np.ndarray]]:
        """Texts to outputs by name, one array a row; per-token outputs without the padding."""
        rows: dict[str, list[np.ndarray]] = {value.name: [] for value in self.session.get_outputs()}
        for start in range(0, len(texts), batch):
            part = slice(start, start + batch)
            inputs = self.tokenize(texts[part], None if pairs is None else pairs[part])
            lengths = inputs["attention_mask"].sum(axis=1)
            for name, value in self.run(inputs).items():
                rows[name] += [
                    row[:length] if row.ndim == 2 else row for row, length in zip(value, lengths, strict=True)
                ]
        return rows
