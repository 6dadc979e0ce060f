"""The int8 variant of a bundle, in the forms that peers can open."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model
from onnx.utils import Extractor

from bench.peers.environments import PEERS
from edgeonnx.bundle import open_bundle
from tests.support.texts import minilm_directory

HIDDEN = "last_hidden_state"
SIDE_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
VARIANT = "cpu-int8"


def int8_graph(bundle: Path) -> onnx.ModelProto:
    """The int8 variant's graph with all tensors inside."""
    opened = open_bundle(bundle)
    component = opened.manifest.entry_component
    variant = next(item for item in component.variants if item.name == VARIANT)
    model = onnx.load(str(opened.model_path(component.name, variant)), load_external_data=False)
    tensors = opened.tensors_path(variant)
    if tensors is not None:
        load_external_data_for_model(model, str(tensors))
    return model


def int8_folder(bundle: Path) -> Path:
    """A folder with `model.onnx` (texts' tensors to `sentence_embedding`) and `tokenizer.json`."""
    folder = _folder(bundle, "int8")
    onnx.save(int8_graph(bundle), str(folder / "model.onnx"))
    (folder / "tokenizer.json").write_bytes(open_bundle(bundle).tokenizer_json())
    return folder


def hidden_folder(bundle: Path) -> Path:
    """The form of the Hugging Face hub: the same graph cut before its pooling, as infinity pools by itself."""
    folder = _folder(bundle, "int8-hub")
    for name in SIDE_FILES:
        shutil.copy(minilm_directory() / name, folder / name)
    (folder / "onnx").mkdir()
    # infinity prefers a file of that name on the CPU.
    onnx.save(before_pooling(int8_graph(bundle)), str(folder / "onnx" / "model_quantized.onnx"))
    return folder


def before_pooling(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph up to the output of its last LayerNormalization, which is named `last_hidden_state`."""
    hidden = [node.output[0] for node in model.graph.node if node.op_type.endswith("LayerNormalization")][-1]
    dimension = _dimension(model.graph.output[0])
    info = onnx.helper.make_tensor_value_info(hidden, onnx.TensorProto.FLOAT, ["batch", "sequence", dimension])
    model.graph.value_info.append(info)
    inputs = [value.name for value in model.graph.input]
    cut = Extractor(model).extract_model(inputs, [hidden])
    cut.graph.node.append(onnx.helper.make_node("Identity", [hidden], [HIDDEN]))
    cut.graph.output[0].name = HIDDEN
    onnx.checker.check_model(cut)
    return cut


def _dimension(value: Any) -> int:
    return int(value.type.tensor_type.shape.dim[-1].dim_value)


def _folder(bundle: Path, kind: str) -> Path:
    """An empty folder: made anew each time, which takes less than a second, so that it is always of this bundle."""
    folder = PEERS / "models" / f"{bundle.name}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
