from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgeonnx.bundle import Bundle, open_bundle
from edgeonnx.bundle.needs import (
    common_files,
    graph_files,
    metadata_files,
    optional_files,
    read_manifest,
    tensor_files,
    tensor_folders,
    tensor_names,
)
from edgeonnx.errors import ManifestError
from edgeonnx.spec.contents import Contents, FileEntry
from edgeonnx.spec.manifest import Task
from tests.support import bundles
from tests.support.decoders import make_decoder_bundle

NAME = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Three variants over one folder of tensors; the second one's graph names one more."""
    return open_bundle(bundles.make_bundle(tmp_path_factory.mktemp("needs"), variants=bundles.CPU_VARIANTS))


def names_of(entries: list[FileEntry]) -> set[str]:
    return {entry.path.rpartition("/")[2] for entry in entries}


def test_the_manifest_is_read_from_the_metadata_alone(bundle: Bundle, tmp_path: Path) -> None:
    for entry in metadata_files(bundle.contents):
        file = tmp_path / entry.path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((bundle.root / entry.path).read_bytes())
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {"manifest.json", "component.json"}
    assert read_manifest(lambda path: (tmp_path / path).read_bytes()) == bundle.manifest


def test_deeper_files_of_that_name_are_no_metadata() -> None:
    paths = ("a/b/component.json", "component.json", "a/component.json", "x/manifest.json", "manifest.json")
    contents = Contents.of(FileEntry(path=path, size=1, sha256=NAME) for path in paths)
    assert [entry.path for entry in metadata_files(contents)] == ["a/component.json", "manifest.json"]


def test_a_manifest_that_is_none() -> None:
    with pytest.raises(ManifestError):
        read_manifest(lambda path: b"<html>")


def test_three_phases_fetch_what_one_variant_needs(bundle: Bundle) -> None:
    fetched = {entry.path for entry in metadata_files(bundle.contents)}
    variant = bundle.manifest.entry_component.variants[1]
    common = common_files(bundle)
    assert fetched <= {entry.path for entry in common}
    graphs = graph_files(bundle, "encoder", variant)
    assert [entry.path for entry in graphs] == ["encoder/cpu-int8-7bit/model.onnx"]
    names = tensor_names((bundle.root / entry.path).read_bytes() for entry in graphs)
    assert names_of(tensor_files(bundle, variant, names)) == set(
        bundles.graph(Task.EMBEDDING, external=("words", "types"))[1]
    )
    other = bundle.manifest.entry_component.variants[0]
    names = tensor_names([(bundle.root / "encoder/cpu-int8/model.onnx").read_bytes()])
    assert names_of(tensor_files(bundle, other, names)) == set(bundles.graph(Task.EMBEDDING, external=("words",))[1])


def test_what_is_no_tensor_is_needed_whatever_a_graph_names(bundle: Bundle) -> None:
    variant = bundle.manifest.entry_component.variants[0]
    (folder,) = tensor_folders(bundle.manifest)
    odd = FileEntry(path=f"{folder}readme.txt", size=1, sha256=NAME)
    changed = Bundle(root=bundle.root, manifest=bundle.manifest, contents=Contents.of((*bundle.contents.files, odd)))
    assert tensor_files(changed, variant, frozenset()) == [odd]
    assert odd.path not in optional_files(changed, {"encoder/cpu-fp32"})


def test_what_may_be_missing(bundle: Bundle) -> None:
    assert optional_files(bundle, frozenset()) == frozenset()
    tensors = {
        entry.path for entry in bundle.contents.files if entry.path.startswith(tuple(tensor_folders(bundle.manifest)))
    }
    assert len(tensors) == 2
    assert optional_files(bundle, {"encoder/cpu-fp32"}) == tensors | {"encoder/cpu-fp32/model.onnx"}


@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 1000])
def test_names_are_found_whatever_the_pieces(size: int) -> None:
    other = "f" * 64
    data = b"\x0a\x40" + NAME.encode() + b"\x12" + other.encode() + b"0f"
    pieces = [data[place : place + size] for place in range(0, len(data), size)]
    found = tensor_names(pieces)
    assert {NAME.encode(), other.encode()} <= found
    assert found <= {data[place : place + 64] for place in range(len(data))}


def test_a_chat_template_is_common_and_no_tensor(tmp_path: Path) -> None:
    """Also where it lies in a folder of its own, and where a hostile manifest puts it among the tensors."""
    bundle = open_bundle(make_decoder_bundle(tmp_path))
    assert "chat_template.jinja" in names_of(common_files(bundle))
    generation = bundle.manifest.generation
    assert generation is not None
    tensors = bundle.manifest.entry_component.variants[0].tensors
    moved = replace(bundle.manifest, generation=replace(generation, chat_template=f"{tensors}/chat_template.jinja"))
    assert tensor_folders(bundle.manifest)
    assert tensor_folders(moved) == set()
