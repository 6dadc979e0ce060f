"""What does a new version of a bundle cost on the wire, and what do content addressing and deltas save?

The bytes are those of the blobs and deltas that `edgeonnx publish` would write, and that a device would fetch which has
the old version: whole bundle and each variant alone (a device may leave the other variants out). Ratios are to the
same files compressed whole. Metadata that is signed anew for each release is not counted, but for the lines that the
deltas take in it.

Run it with `PYTHONPATH=. python bench/deltas.py BUNDLE_OLD BUNDLE_NEW`.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.blobs.codec import compress
from edgeonnx.bundle import Bundle, open_bundle, verify_files
from edgeonnx.bundle.needs import common_files, graph_files, tensor_files, tensor_names
from edgeonnx.repository.content.deltas import plan_deltas
from edgeonnx.spec.contents import CONTENTS_FILE, canonical_json

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgeonnx.spec.manifest import Variant
    from edgeonnx.spec.release import Delta


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="BUNDLE_OLD")
    parser.add_argument("new", type=Path, metavar="BUNDLE_NEW")
    arguments = parser.parse_args()
    old, new = open_bundle(arguments.old), open_bundle(arguments.new)
    verify_files(old)
    verify_files(new)
    full = full_sizes(new)
    paths = {entry.sha256: old.root / entry.path for entry in old.contents.files}
    deltas = [
        delta
        for delta, _ in plan_deltas(
            new, old.contents, lambda digest: paths[digest].read_bytes(), full_size=full.__getitem__
        )
    ]
    here = {*paths, old.digest}
    print(
        f"{old.manifest.name} {old.manifest.version} -> {new.manifest.name} {new.manifest.version}, bytes on the wire"
    )
    print(f"{'':24}{'raw':>13}{'whole':>13}{'new contents':>21}{'with deltas':>21}")
    for name, needed in parts(new).items():
        print_row(name, needed, full, deltas, here, raw=raw_size(new, needed))
    print_encodings(deltas, full)


def full_sizes(bundle: Bundle) -> dict[str, int]:
    """Bytes of each content's full blob, by digest."""
    paths = {entry.sha256: bundle.root / entry.path for entry in bundle.contents.files}
    paths[bundle.digest] = bundle.root / CONTENTS_FILE
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        sizes = pool.map(lambda path: len(compress(path.read_bytes())), paths.values())
        return dict(zip(paths, sizes, strict=True))


def parts(bundle: Bundle) -> dict[str, set[str]]:
    """Digests that a device needs: for the whole bundle, and for each variant alone."""
    everything = {entry.sha256 for entry in bundle.contents.files}
    found = {"whole bundle": {bundle.digest, *everything}}
    for name, component in bundle.manifest.components.items():
        for variant in component.variants:
            found[f"{name}/{variant.name} alone"] = {bundle.digest, *alone(bundle, name, variant)}
    return found


def alone(bundle: Bundle, component: str, variant: Variant) -> set[str]:
    """Digests that a device needs which leaves the other variants out."""
    graphs = graph_files(bundle, component, variant)
    names = tensor_names((bundle.root / entry.path).read_bytes() + b"\n" for entry in graphs)
    entries = [*common_files(bundle), *graphs, *tensor_files(bundle, variant, names)]
    return {entry.sha256 for entry in entries}


def raw_size(bundle: Bundle, digests: Collection[str]) -> int:
    """Bytes of contents as they lie on the disk."""
    sizes = {entry.sha256: entry.size for entry in bundle.contents.files}
    sizes[bundle.digest] = (bundle.root / CONTENTS_FILE).stat().st_size
    return sum(sizes[digest] for digest in digests)


def print_row(
    name: str, needed: set[str], full: dict[str, int], deltas: list[Delta], here: Collection[str], *, raw: int
) -> None:
    """One line: raw, compressed, only what is new, and that with deltas and their lines in the release."""
    smaller = {delta.target: delta.size for delta in deltas}
    whole = sum(full[digest] for digest in needed)
    missing = needed - set(here)
    addressed = sum(full[digest] for digest in missing)
    with_deltas = sum(smaller.get(digest, full[digest]) for digest in missing)
    with_deltas += len(canonical_json([delta.to_dict() for delta in deltas]))
    print(f"{name:24}{raw:13,}{whole:13,}" + "".join(f"{x:13,} {x / whole:7.2%}" for x in (addressed, with_deltas)))


def print_encodings(deltas: list[Delta], full: dict[str, int]) -> None:
    """What each encoding was good for."""
    for encoding in sorted({delta.encoding for delta in deltas}):
        chosen = [delta for delta in deltas if delta.encoding == encoding]
        before, after = sum(full[delta.target] for delta in chosen), sum(delta.size for delta in chosen)
        print(f"  {encoding}: {len(chosen)} deltas, {before:,} bytes became {after:,} ({after / before:.2%})")
    print(f"  the deltas' lines in the release: {len(canonical_json([delta.to_dict() for delta in deltas])):,} bytes")


if __name__ == "__main__":
    main()
