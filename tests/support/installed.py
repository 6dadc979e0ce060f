"""A state directory with installed bundles, without a repository: contents, slots and states as updates leave them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from device_agent.slots.disk import Disk
from device_agent.slots.state import Installed, SlotState
from device_agent.slots.store import Store
from edgeonnx.bundle import open_bundle
from edgeonnx.spec.contents import CONTENTS_FILE


class QuickDisk(Disk):
    """A disk that does not wait: for tests that are not about power cuts."""

    def sync(self, descriptor: int) -> None:
        os.fstat(descriptor)


def fill(store: Store, bundle: Path) -> list[str]:
    """Put a bundle's contents among the verified ones; their digests, that of the list of files first."""
    opened = open_bundle(bundle)
    files = {opened.digest: CONTENTS_FILE} | {entry.sha256: entry.path for entry in opened.contents.files}
    for digest, path in files.items():
        store.disk.make_folder(store.blob(digest).parent)
        if not store.blob(digest).exists():
            store.disk.create(store.blob(digest), [(bundle / path).read_bytes()], mode=0o444)
    return list(files)


def build(store: Store, bundle: Path) -> Installed:
    """Put a bundle into a slot; no state is written."""
    fill(store, bundle)
    opened = open_bundle(bundle)
    slot = store.slot(opened.manifest.name, opened.digest)
    files = {CONTENTS_FILE: opened.digest} | {entry.path: entry.sha256 for entry in opened.contents.files}
    for path, digest in files.items():
        store.disk.make_folder((slot / path).parent)
        if not (slot / path).exists():
            store.place(digest, slot / path)
    return Installed(version=opened.manifest.version, contents=opened.digest)


def install(store: Store, *bundles: Path) -> SlotState:
    """Install bundles of one model, the oldest first: the last one is active, the one before is previous."""
    store.prepare()
    installed = [build(store, bundle) for bundle in bundles]
    model = open_bundle(bundles[-1]).manifest.name
    state = SlotState(model=model, active=installed[-1], previous=installed[-2] if len(installed) > 1 else None)
    before = store.read_files(model)
    return store.write_state(replace(state, sequence=before.sequence if before else 0))


def names(folder: Path) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: contents of files, targets of links, `/` for folders."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "/" if path.is_dir() else path.read_bytes()
    return found
