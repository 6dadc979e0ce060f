"""Reading a bundle that nobody vouches for: bounded, without following links, each file accounted for.

`open_bundle` checks the structure (every file is listed, every listed file is there with its size, nothing is a link)
and parses the metadata. `verify_files` then hashes every byte. A caller that has done both holds exactly the files
that `contents.json` describes.

A device may hold a bundle without some of its variants: `partial.json` names them. Then files of theirs may be missing,
and nothing else may.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.bundle import needs
from edgeonnx.errors import BundleError, IntegrityError, ManifestError, NotABundleError, UnsafePathError
from edgeonnx.spec.contents import CONTENTS_FILE, UNSEALED_FILES, Contents, FileEntry, asset_digest
from edgeonnx.spec.evidence import Evidence
from edgeonnx.spec.manifest import Manifest
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.partial import PARTIAL_FILE, Partial, variant_path
from edgeonnx.spec.paths import asset_directory, split_asset_reference
from edgeonnx.spec.timings import TIMINGS_FILE, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgeonnx.bundle.golden import GoldenSet
    from edgeonnx.spec.manifest import Variant

MANIFEST_FILE = needs.MANIFEST_FILE
EVIDENCE_FILE = "evidence.json"

# What a bundle's own metadata may take; a real one is far below, and a device has little memory.
MAX_CONTENTS_BYTES = 32 << 20
MAX_METADATA_BYTES = 4 << 20
MAX_TIMINGS_BYTES = 1 << 20
MAX_PARTIAL_BYTES = 1 << 16
MAX_TOKENIZER_BYTES = 64 << 20
MAX_TEMPLATE_BYTES = 1 << 20
MAX_GOLDEN_BYTES = 64 << 20
MAX_FILES = 100_000
PIECE_BYTES = 1 << 20
MAX_FAULTS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened bundle.

    Attributes:
        root: Its folder, without links.
        manifest: Its metadata.
        contents: The list of its files.
        absent: The variants that are not here, each as `<component>/<variant>`; most bundles have all.
    """

    root: Path
    manifest: Manifest
    contents: Contents
    absent: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """SHA-256 of `contents.json`: the identity of exactly these files."""
        return self.contents.digest

    def absent_variants(self, component: str) -> frozenset[str]:
        """Names of a component's variants that are not here."""
        variants = self.manifest.components[component].variants
        return frozenset(each.name for each in variants if variant_path(component, each.name) in self.absent)

    def path_of(self, reference: str) -> Path:
        """The absolute path of an asset reference (`sha256:<hex>[/path]`)."""
        digest, inner = split_asset_reference(reference, where=MANIFEST_FILE)
        folder = self.root / asset_directory(digest)
        return folder / inner if inner else folder

    def model_path(self, component: str, variant: Variant) -> Path:
        """The absolute path of a variant's graph."""
        return self.root / component / variant.name / variant.model_file

    def tensors_path(self, variant: Variant) -> Path | None:
        """The absolute path of the folder with a variant's external tensors, or None if they are inline."""
        return None if variant.tensors is None else self.path_of(variant.tensors)

    def tokenizer_json(self) -> bytes:
        """The bytes of the bundle's `tokenizer.json`."""
        return _read(self.path_of(self.manifest.processing.tokenizer), MAX_TOKENIZER_BYTES)

    def chat_template(self) -> str | None:
        """The Jinja template that makes a prompt of a conversation, or None if the model has none.

        Raises:
            IntegrityError: It is too large, or cannot be read.
            ManifestError: It is no text in UTF-8.
        """
        generation = self.manifest.generation
        if generation is None or generation.chat_template is None:
            return None
        data = _read(self.path_of(generation.chat_template), MAX_TEMPLATE_BYTES)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ManifestError(
                "is not text in UTF-8", where=f"generation.chat_template, byte {error.start}", found=error.reason
            ) from None

    def golden(self) -> GoldenSet:
        """The golden set.

        Raises:
            ManifestError: It is broken, or lacks an input or output of the entry component, which then stays unproven.
        """
        from edgeonnx.bundle.golden import GoldenSet  # NumPy: whoever only looks at a bundle does without

        folder = self.path_of(self.manifest.golden)
        golden = GoldenSet.from_files(lambda name: _read(folder / name, MAX_GOLDEN_BYTES))
        golden.check_names(self.manifest.entry_component.signature)
        return golden

    def evidence(self) -> Evidence:
        """The evidence of the build."""
        return Evidence.from_dict(parse_document(_read(self.root / EVIDENCE_FILE, MAX_METADATA_BYTES), EVIDENCE_FILE))

    def unsealed(self) -> tuple[str, ...]:
        """Names of the files here that the digest does not cover."""
        return tuple(name for name in UNSEALED_FILES if os.path.lexists(self.root / name))

    def timings(self) -> Timings | None:
        """How fast the variants ran on the build host, or None if the bundle does not say. No digest covers it.

        Raises:
            ManifestError: The file is damaged, too large, or breaks the schema.
        """
        if TIMINGS_FILE not in self.unsealed():
            return None
        data = _read(self.root / TIMINGS_FILE, MAX_TIMINGS_BYTES, failure=ManifestError)
        return Timings.from_dict(parse_document(data, TIMINGS_FILE))


def open_bundle(path: Path) -> Bundle:
    """Open a bundle and check its structure; no content is hashed yet (`verify_files` does that).

    Raises:
        NotABundleError: `path` is no folder with a `manifest.json` and a `contents.json`.
        ManifestError, SchemaVersionError: The metadata breaks the schema, or is of another version.
        UnsafePathError: A path leaves the bundle, or something is a link.
        IntegrityError: A file is missing, is not listed, or has another size.
    """
    root = _root_of(path)
    contents = Contents.from_bytes(_read(root / CONTENTS_FILE, MAX_CONTENTS_BYTES))
    if any(entry.path.lower() == PARTIAL_FILE for entry in contents.files):
        raise ManifestError(
            f"must not list {PARTIAL_FILE}: the digest does not cover a file of this name", where=CONTENTS_FILE
        )
    present = _present(root)
    if present.pop(PARTIAL_FILE, None) is not None:
        return _open_partial(root, contents, present)
    _check_structure(root, contents, present)
    bundle = Bundle(root=root, manifest=_manifest(root), contents=contents)
    _check_references(bundle.manifest, contents)
    return bundle


def _open_partial(root: Path, contents: Contents, present: dict[str, int]) -> Bundle:
    """Open a bundle with a `partial.json`: what may be missing is known only when its metadata are parsed.

    Raises:
        ManifestError, SchemaVersionError: `partial.json` breaks the schema, or does not fit the manifest.
        IntegrityError: More is missing than may be, or something else is wrong with the files.
    """
    data = _read(root / PARTIAL_FILE, MAX_PARTIAL_BYTES, failure=ManifestError)
    partial = Partial.from_bytes(data)
    whole = Bundle(root=root, manifest=_manifest(root), contents=contents)
    partial.check(whole.manifest)
    bundle = replace(whole, absent=partial.absent)
    _check_structure(root, contents, present, optional=needs.optional_files(bundle, partial.absent))
    _check_references(bundle.manifest, contents)
    return bundle


def _manifest(root: Path) -> Manifest:
    return needs.read_manifest(lambda file: _read(root / file, MAX_METADATA_BYTES))


def _root_of(path: Path) -> Path:
    """The folder of a bundle without links, with both metadata files in it."""
    root = Path(os.path.realpath(path))
    for name in (MANIFEST_FILE, CONTENTS_FILE):
        if (root / name).is_symlink():
            raise _unsafe_entry("a symbolic link", name)
        if not (root / name).is_file():
            raise NotABundleError(
                "is not a bundle",
                where=str(path),
                expected=f"a folder with {MANIFEST_FILE} and {CONTENTS_FILE}",
                found="no such folder" if not root.is_dir() else f"no {name}",
                hint="give the folder that `edgeonnx package` wrote",
            )
    return root


def identify(path: Path) -> tuple[str, str, str]:
    """Name, version and digest of the bundle in a folder, as its metadata say; nothing else is looked at.

    Raises:
        NotABundleError: `path` is no folder with a `manifest.json` and a `contents.json`.
        ManifestError, SchemaVersionError: The metadata breaks the schema, or is of another version.
        UnsafePathError: A metadata file is a link.
        IntegrityError: A metadata file cannot be read, or is too large.
    """
    root = _root_of(path)
    node = parse_document(_read(root / MANIFEST_FILE, MAX_METADATA_BYTES), MANIFEST_FILE)
    name, version = Manifest.identity(node)
    return name, version, hashlib.sha256(_read(root / CONTENTS_FILE, MAX_CONTENTS_BYTES)).hexdigest()


def _present(root: Path) -> dict[str, int]:
    """Path and size of every file that is here, without `contents.json` and `UNSEALED_FILES`.

    Raises:
        UnsafePathError: A link or a special file lies in the folder.
        IntegrityError: Too many files lie there.
    """
    present = dict(_walk(root))
    for name in (CONTENTS_FILE, *UNSEALED_FILES):
        present.pop(name, None)
    return present


def _check_structure(
    root: Path, contents: Contents, present: dict[str, int], *, optional: frozenset[str] = frozenset()
) -> None:
    """Compare the files that are here with the list: nothing missing, nothing extra, sizes equal.

    What may lie at the root without being listed is a file, too.

    Args:
        root: The bundle, for the message.
        contents: The list.
        present: Path and size of every file that is here.
        optional: Paths of the files that may be missing.

    Raises:
        IntegrityError: The files differ from the list; every difference is named.
    """
    listed = {entry.path: entry for entry in contents.files}
    faults = [f"{name}: a folder, not a file" for name in (*UNSEALED_FILES, PARTIAL_FILE) if (root / name).is_dir()]
    faults += [f"{path}: missing" for path in listed if path not in present and path not in optional]
    faults += [f"{path}: not listed in {CONTENTS_FILE}" for path in present if path not in listed]
    faults += [
        f"{path}: {present[path]} bytes on disk, {entry.size} in {CONTENTS_FILE}"
        for path, entry in listed.items()
        if path in present and present[path] != entry.size
    ]
    raise_faults(root, faults)


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Path and size of every regular file below `root`; the count is bounded, links are refused."""
    count = 0
    pending = [""]
    while pending:
        folder = pending.pop()
        for name, status in _list_folder(root / folder):
            path = f"{folder}/{name}" if folder else name
            count += 1
            if count > MAX_FILES:
                raise IntegrityError("holds too many files", where=str(root), expected=f"at most {MAX_FILES}")
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            elif stat.S_ISREG(status.st_mode):
                yield path, status.st_size
            else:
                raise _unsafe_entry("a symbolic link" if stat.S_ISLNK(status.st_mode) else "a special file", path)


def _list_folder(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Name and status of each entry; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name, entry.stat(follow_symlinks=False)
    except OSError as error:
        raise IntegrityError(
            "a folder of the bundle cannot be read", where=str(folder), found=error.strerror or str(error)
        ) from None


def _unsafe_entry(kind: str, path: str) -> UnsafePathError:
    return UnsafePathError(
        f"is {kind}", where=path, expected="regular files only", hint="copy the bundle with its content (cp -rL)"
    )


def _check_references(manifest: Manifest, contents: Contents) -> None:
    """Every file and asset that the manifest names is in the list, and every asset has the digest in its name."""
    listed = {entry.path for entry in contents.files}
    needed = [
        f"{component.name}/{variant.name}/{variant.model_file}"
        for component in manifest.components.values()
        for variant in component.variants
    ]
    texts = [split_asset_reference(item, where=MANIFEST_FILE) for item in needs.text_files(manifest)]
    needed += [f"{asset_directory(digest)}/{file}" for digest, file in texts]
    needed.append(EVIDENCE_FILE)
    for path in needed:
        if path not in listed:
            raise ManifestError("names a file that the bundle does not hold", where=MANIFEST_FILE, found=path)
    references = {*(digest for digest, _ in texts), split_asset_reference(manifest.golden, where=MANIFEST_FILE)[0]}
    references.update(
        split_asset_reference(variant.tensors, where=component.name)[0]
        for component in manifest.components.values()
        for variant in component.variants
        if variant.tensors is not None
    )
    for digest in sorted(references):
        _check_asset(digest, contents)


def _check_asset(digest: str, contents: Contents) -> None:
    folder = asset_directory(digest) + "/"
    files = [
        (entry.path.removeprefix(folder), entry.sha256) for entry in contents.files if entry.path.startswith(folder)
    ]
    if asset_digest(files) != digest:
        raise IntegrityError(
            "the shared asset does not have the digest that its name says",
            where=folder.rstrip("/"),
            found=f"sha256-{asset_digest(files)}" if files else "no file",
        )


def verify_files(bundle: Bundle, on_file: Callable[[FileEntry], None] | None = None) -> int:
    """Hash every file of the bundle and compare it with the list.

    Args:
        bundle: An opened bundle. Of a partial one every file that is here is hashed.
        on_file: Called after each file, for progress.

    Returns:
        The number of files that were hashed.

    Raises:
        IntegrityError: Bytes differ, or a tensor of a variant that is not absent is missing; every damaged file is
            named.
    """
    faults = []
    unneeded = _unneeded(bundle)
    here = [
        each for each in bundle.contents.files if each.path not in unneeded or os.path.lexists(bundle.root / each.path)
    ]
    for entry in here:
        try:
            with open(open_regular(bundle.root / entry.path), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            faults.append(f"{entry.path}: cannot be read ({error.strerror})")
            continue
        if digest != entry.sha256:
            faults.append(f"{entry.path}: sha256 {digest[:16]}... on disk, {entry.sha256[:16]}... in {CONTENTS_FILE}")
        if on_file is not None:
            on_file(entry)
    raise_faults(bundle.root, faults)
    return len(here)


def _unneeded(bundle: Bundle) -> frozenset[str]:
    """Paths of the files that only absent variants need."""
    optional = needs.optional_files(bundle, bundle.absent)
    if not optional:
        return optional
    needed = set()
    for name, component in bundle.manifest.components.items():
        absent = bundle.absent_variants(name)
        for variant in component.variants:
            if variant.name not in absent:
                graphs = [_pieces(bundle.root / entry.path) for entry in needs.graph_files(bundle, name, variant)]
                names = frozenset().union(*(needs.tensor_names(graph) for graph in graphs))
                needed |= {entry.path for entry in needs.tensor_files(bundle, variant, names)}
    return optional - needed


def raise_faults(root: Path, faults: list[str]) -> None:
    """Raise an `IntegrityError` that names the damaged files; nothing happens if there are none."""
    if not faults:
        return
    shown = tuple(sorted(faults)[:MAX_FAULTS_SHOWN])
    if len(faults) > len(shown):
        shown = (*shown, f"and {len(faults) - len(shown)} more")
    raise IntegrityError(
        "the bundle is damaged: its files differ from contents.json",
        where=str(root),
        details=shown,
        hint="fetch or build the bundle again; do not repair it by hand",
    )


def open_regular(path: Path) -> int:
    """A descriptor of a regular file; a link in its place raises `OSError` instead of being followed."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))


def _pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a file of the bundle, in pieces."""
    try:
        with open(open_regular(path), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except OSError as error:
        raise IntegrityError("cannot be read", where=str(path), found=error.strerror or str(error)) from None


def _read(path: Path, limit: int, *, failure: type[BundleError] = IntegrityError) -> bytes:
    """The bytes of a small file of the bundle, at most `limit`; raises `failure` if that cannot be."""
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise failure("cannot be read", where=str(path), found=error.strerror or str(error)) from None
    if len(data) > limit:
        raise failure("is too large", where=str(path), expected=f"at most {limit} bytes")
    return data
