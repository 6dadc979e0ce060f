"""Which files of a bundle are needed for what: to read its metadata, to open one of its variants, or always. Pure.

A device that fetches a bundle asks in this order, and each answer needs only what the one before gave:

1. `metadata_files`: what `read_manifest` reads;
2. `common_files`, and `graph_files` of the variants that it wants;
3. `tensor_files`: the tensors that these graphs name (`tensor_names`).

The name of a tensor's file is its digest, and a graph holds the name of every external file literally, because
protobuf stores strings as they are; so a tensor whose name is not in the graph's bytes cannot be opened through it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from edgeonnx.spec.manifest import Manifest
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.partial import variant_path
from edgeonnx.spec.paths import asset_directory, split_asset_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from edgeonnx.spec.contents import Contents, FileEntry
    from edgeonnx.spec.manifest import Variant

MANIFEST_FILE = "manifest.json"

_COMPONENT_FILE = re.compile(r"[^/]+/component\.json")
_TENSOR_FILE = re.compile(r"[0-9a-f]{64}")
_TENSOR_NAME = re.compile(rb"(?=([0-9a-f]{64}))")
_NAME_BYTES = 64


class Described(Protocol):
    """What a bundle says of itself; its files need not be here."""

    @property
    def manifest(self) -> Manifest:
        """The manifest."""

    @property
    def contents(self) -> Contents:
        """The list of files."""


def metadata_files(contents: Contents) -> list[FileEntry]:
    """`manifest.json`, and the `component.json` of every folder that has one."""
    return [
        entry
        for entry in contents.files
        if entry.path == MANIFEST_FILE or _COMPONENT_FILE.fullmatch(entry.path) is not None
    ]


def read_manifest(read: Callable[[str], bytes]) -> Manifest:
    """The manifest of a bundle of which there is no more than its metadata.

    Args:
        read: Gives the bytes of a file of the bundle by its path.

    Raises:
        ManifestError, SchemaVersionError: The metadata breaks the schema, or is of another version.
    """
    node = parse_document(read(MANIFEST_FILE), MANIFEST_FILE)
    files = Manifest.component_files(node)
    return Manifest.from_dict(node, {name: parse_document(read(file), file) for name, file in files.items()})


def common_files(bundle: Described) -> list[FileEntry]:
    """The files that belong to no single variant: metadata, evidence, tokenizer, chat template, golden set."""
    folders = tensor_folders(bundle.manifest) | {
        _folder(component.name, variant.name)
        for component in bundle.manifest.components.values()
        for variant in component.variants
    }
    return [entry for entry in bundle.contents.files if not entry.path.startswith(tuple(folders))]


def graph_files(bundle: Described, component: str, variant: Variant) -> list[FileEntry]:
    """The files in a variant's own folder."""
    folder = _folder(component, variant.name)
    return [entry for entry in bundle.contents.files if entry.path.startswith(folder)]


def tensor_files(bundle: Described, variant: Variant, names: Collection[bytes]) -> list[FileEntry]:
    """The files of a variant's folder of tensors that its graph can open.

    Args:
        bundle: The bundle.
        variant: A variant.
        names: Every run of 64 hexadecimal digits in the variant's graph; see `tensor_names`.

    Returns:
        The files whose names are among `names`, and those that are not named by a digest at all; none if the variant
        has no external tensors.
    """
    if variant.tensors is None:
        return []
    folder = _asset(variant.tensors)
    inside = [entry for entry in bundle.contents.files if entry.path.startswith(folder)]
    return [entry for entry in inside if not _is_tensor(entry.path) or _name(entry.path).encode() in names]


def tensor_names(pieces: Iterable[bytes]) -> frozenset[bytes]:
    """Every run of 64 hexadecimal digits in a graph, whose bytes come in pieces."""
    names: set[bytes] = set()
    tail = b""
    for piece in pieces:
        joined = tail + piece
        names.update(_TENSOR_NAME.findall(joined))
        tail = joined[1 - _NAME_BYTES :]
    return frozenset(names)


def optional_files(bundle: Described, absent: Collection[str]) -> frozenset[str]:
    """Paths of the files that may be missing where some variants are absent.

    These are the files of the absent variants' own folders, and the tensors of all variants: which of them the
    present ones need, only the graphs say. Who opens a graph checks that its tensors are here.

    Args:
        bundle: The bundle.
        absent: The absent variants, each as `<component>/<variant>`; none: no file may be missing.
    """
    if not absent:
        return frozenset()
    own = tuple(f"{name}/" for name in absent)
    tensors = tuple(tensor_folders(bundle.manifest))
    return frozenset(
        entry.path
        for entry in bundle.contents.files
        if entry.path.startswith(own) or (entry.path.startswith(tensors) and _is_tensor(entry.path))
    )


def tensor_folders(manifest: Manifest) -> set[str]:
    """The folders that hold the variants' tensors and nothing that all variants need; each ends with a slash."""
    shared = {_asset(reference) for reference in (manifest.golden, *text_files(manifest))}
    variants = [variant for component in manifest.components.values() for variant in component.variants]
    return {_asset(variant.tensors) for variant in variants if variant.tensors is not None} - shared


def text_files(manifest: Manifest) -> tuple[str, ...]:
    """References of the files by which text becomes tokens: the tokenizer, and the chat template if there is one."""
    generation = manifest.generation
    template = () if generation is None or generation.chat_template is None else (generation.chat_template,)
    return (manifest.processing.tokenizer, *template)


def _folder(component: str, variant: str) -> str:
    return variant_path(component, variant) + "/"


def _asset(reference: str) -> str:
    return asset_directory(split_asset_reference(reference, where=MANIFEST_FILE)[0]) + "/"


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_tensor(path: str) -> bool:
    return _TENSOR_FILE.fullmatch(_name(path)) is not None
