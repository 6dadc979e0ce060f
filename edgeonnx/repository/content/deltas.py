"""Which contents of a release travel as differences to an earlier release, and those differences.

A tensor's earlier content is found by what the tensor is, its initializer's name in the graph of the same variant, as
its file is named by its bytes. Other files are found by their path, and files of the tokenizer and of the golden set
by their path inside it. A delta is kept only where it saves enough bytes to be worth its line in the signed release.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from edgeonnx.blobs.codec import compress
from edgeonnx.blobs.delta import DICTIONARY, DIFFERENCE, PLANES2, PLANES4, decode, encode, fits
from edgeonnx.bundle.needs import graph_files, read_manifest
from edgeonnx.bundle.reader import MANIFEST_FILE
from edgeonnx.errors import BlobError, BundleError
from edgeonnx.spec.contents import CONTENTS_FILE, Contents, FileEntry
from edgeonnx.spec.partial import variant_path
from edgeonnx.spec.paths import asset_directory, split_asset_reference
from edgeonnx.spec.release import Delta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeonnx.bundle import Bundle
    from edgeonnx.bundle.needs import Described
    from edgeonnx.spec.manifest import Manifest

MIN_SAVED_BYTES = 512
"""What a delta must save: its line in the release takes about 230 bytes, which every device fetches."""
MIN_SAVED_SHARE = 1 / 16
"""What it must save of the full blob: below that, the work of decoding it is not worth it."""
MAX_BASE_BYTES = 2 << 30
"""Larger contents travel whole: base, content and delta are in memory together while the delta is made."""
SMALL_BYTES = 32 << 20
"""Contents up to this size are worked on side by side, larger ones one after the other."""

_ENCODINGS = {
    "INT4": DIFFERENCE,
    "UINT4": DIFFERENCE,
    "INT8": DIFFERENCE,
    "UINT8": DIFFERENCE,
    "FLOAT16": PLANES2,
    "BFLOAT16": PLANES2,
    "INT16": PLANES2,
    "UINT16": PLANES2,
    "FLOAT": PLANES4,
    "INT32": PLANES4,
    "UINT32": PLANES4,
}
"""How tensors of each ONNX type are encoded; others take the dictionary."""


def plan_deltas(
    new: Bundle,
    base: Contents,
    read_base: Callable[[str], bytes],
    *,
    full_size: Callable[[str], int] | None = None,
) -> list[tuple[Delta, bytes]]:
    """The deltas from an earlier bundle to a new one, in the order of the new one's paths, its `contents.json` first.

    Args:
        new: The new bundle; its files are verified.
        base: The list of the earlier bundle's files.
        read_base: Gives one of these files by its digest; `contents.json` itself is not asked for.
        full_size: Gives the bytes of a content's full blob on the wire, by its digest; None compresses it to see.

    Raises:
        BlobError: A delta does not decode to what it was made from.
    """
    listing = base.source or base.to_bytes()

    def read(digest: str) -> bytes:
        return listing if digest == base.digest else read_base(digest)

    pairs = _pairs(new, base, read)
    make = partial(_make, read_base=read, full_size=full_size)
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="deltas") as pool:
        small = {pair: pool.submit(make, pair) for pair in pairs if pair.size <= SMALL_BYTES}
        found = [small[pair].result() if pair in small else make(pair) for pair in pairs]
    return [each for each in found if each is not None]


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A new content, an earlier one that it resembles, and how it may be encoded.

    Attributes:
        target: Digest of the new content.
        size: Its size in bytes.
        base: Digest of the earlier one.
        encodings: The encodings to try.
        read: Gives the new content.
    """

    target: str
    size: int
    base: str
    encodings: tuple[str, ...]
    read: Callable[[], bytes] = field(compare=False)


def _make(
    pair: _Pair, *, read_base: Callable[[str], bytes], full_size: Callable[[str], int] | None
) -> tuple[Delta, bytes] | None:
    """The smallest delta of a pair; None if none saves enough."""
    base, target = read_base(pair.base), pair.read()
    tried = [(name, encode(name, base, target)) for name in pair.encodings if fits(name, len(base), len(target))]
    if not tried:
        return None
    encoding, data = min(tried, key=lambda each: len(each[1]))
    full = len(compress(target)) if full_size is None else full_size(pair.target)
    if full - len(data) < max(MIN_SAVED_BYTES, full * MIN_SAVED_SHARE):
        return None
    digest = hashlib.sha256()
    for piece in decode(encoding, [data], base, size=len(target)):
        digest.update(piece)
    if digest.hexdigest() != pair.target:
        raise BlobError("a delta does not decode to what it was made from", where=pair.target, found=encoding)
    return Delta(target=pair.target, base=pair.base, encoding=encoding, size=len(data)), data


def _pairs(new: Bundle, base: Contents, read_base: Callable[[str], bytes]) -> list[_Pair]:
    """Each new content with the earlier one that it resembles; contents that the base has, too, are left out."""
    before = _Earlier.of(base, read_base)
    after = _tensors(new, lambda entry: (new.root / entry.path).read_bytes())
    names: dict[str, list[_Key]] = {}
    for key, tensor in after.items():
        names.setdefault(tensor.digest, []).append(key)
    roles = _roles(new.manifest)
    source = new.contents.source or new.contents.to_bytes()
    listed = FileEntry(path=CONTENTS_FILE, size=len(source), sha256=new.digest)
    known = {base.digest, *(entry.sha256 for entry in base.files)}
    pairs = []
    for entry in (listed, *new.contents.files):
        if entry.sha256 in known or entry.size > MAX_BASE_BYTES:
            continue
        keys = names.get(entry.sha256)
        found = before.file(roles(entry.path)) if keys is None else before.tensor(after[keys[0]], keys)
        if found is not None:
            known.add(entry.sha256)
            old, encodings = found
            read = (new.root / entry.path).read_bytes
            pairs.append(_Pair(target=entry.sha256, size=entry.size, base=old, encodings=encodings, read=read))
    return pairs


_Key = tuple[str, str, str]
"""Component, variant, and name of an initializer."""


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """An external tensor: digest of its file, ONNX type, size in bytes."""

    digest: str
    dtype: str
    size: int


@dataclass(frozen=True, kw_only=True)
class _Earlier:
    """What an earlier bundle has, by what it is.

    Attributes:
        tensors: External tensors by variant and name.
        files: Digests of the other files by role.
    """

    tensors: dict[_Key, _Tensor]
    files: dict[str, str]

    @classmethod
    def of(cls, contents: Contents, read: Callable[[str], bytes]) -> _Earlier:
        """Read it; of a bundle whose metadata this release does not read, only the paths count."""
        digests = {entry.path: entry.sha256 for entry in contents.files}
        try:
            manifest = read_manifest(lambda path: read(digests[path]))
        except (BundleError, KeyError):
            return cls(tensors={}, files={**digests, CONTENTS_FILE: contents.digest})
        roles = _roles(manifest)
        return cls(
            tensors=_tensors(_Listed(manifest=manifest, contents=contents), lambda entry: read(entry.sha256)),
            files={CONTENTS_FILE: contents.digest, **{roles(path): digest for path, digest in digests.items()}},
        )

    def tensor(self, new: _Tensor, keys: list[_Key]) -> tuple[str, tuple[str, ...]] | None:
        """Digest of the earlier content of a tensor that has these names, and the encodings that may fit it.

        The same variant is looked at first, then the component's others: a variant may have got another name.
        """
        found = [self.tensors[key] for key in keys if key in self.tensors]
        wanted = {(component, name) for component, _, name in keys}
        found += [tensor for (component, _, name), tensor in self.tensors.items() if (component, name) in wanted]
        alike = [tensor for tensor in found if tensor.dtype == new.dtype]
        same = next((tensor for tensor in alike if tensor.size == new.size), None)
        if same is not None:
            return same.digest, (_ENCODINGS.get(new.dtype, DICTIONARY),)
        return (alike[0].digest, (DICTIONARY,)) if alike else None

    def file(self, role: str) -> tuple[str, tuple[str, ...]] | None:
        """Digest of the earlier file in a role, and the encodings that may fit it."""
        if role not in self.files:
            return None
        # The arrays of the golden set are float32 behind a header of a multiple of 64 bytes.
        return self.files[role], (DICTIONARY, PLANES4) if role.endswith(".npy") else (DICTIONARY,)


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A bundle of which there are only the metadata."""

    manifest: Manifest
    contents: Contents


def _roles(manifest: Manifest) -> Callable[[str], str]:
    """A function from a file's path to its role: the path itself, but for assets, whose paths hold their digests."""
    references = {"tokenizer": manifest.processing.tokenizer, "golden": manifest.golden}
    folders = {
        asset_directory(split_asset_reference(reference, where=MANIFEST_FILE)[0]) + "/": f"{name}:"
        for name, reference in references.items()
    }

    def role(path: str) -> str:
        return next(
            (name + path.removeprefix(folder) for folder, name in folders.items() if path.startswith(folder)), path
        )

    return role


def _tensors(bundle: Described, read: Callable[[FileEntry], bytes]) -> dict[_Key, _Tensor]:
    """The external tensors of all graphs of a bundle."""
    sizes = {entry.sha256: entry.size for entry in bundle.contents.files}
    found: dict[_Key, _Tensor] = {}
    for component in bundle.manifest.components.values():
        for variant in component.variants:
            path = f"{variant_path(component.name, variant.name)}/{variant.model_file}"
            entry = next((each for each in graph_files(bundle, component.name, variant) if each.path == path), None)
            if entry is not None:
                for name, dtype, digest in _external_tensors(read(entry)):
                    if digest in sizes:
                        tensor = _Tensor(digest=digest, dtype=dtype, size=sizes[digest])
                        found[component.name, variant.name, name] = tensor
    return found


def _external_tensors(model: bytes) -> Iterator[tuple[str, str, str]]:
    """Name, ONNX type and file of each initializer that is a file of its own; none of what is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.ModelProto.FromString(model).graph
    except DecodeError:
        return
    for initializer in graph.initializer:
        if initializer.data_location == onnx.TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in initializer.external_data}
            yield initializer.name, onnx.TensorProto.DataType.Name(initializer.data_type), place.get("location", "")
