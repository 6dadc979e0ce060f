"""From a release to a slot: what is missing is fetched, and a folder is built from hard links.

The slot gets its name last. A slot that has its name is complete and durable; one that is being built is hidden and is
built anew after a crash, from contents that are here already.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from device_agent.update.contents import Contents
from edgeonnx.bundle import open_bundle
from edgeonnx.bundle.reader import MAX_CONTENTS_BYTES
from edgeonnx.errors import BundleError, CandidateError, NoSpaceError
from edgeonnx.spec.contents import CONTENTS_FILE
from edgeonnx.spec.contents import Contents as FileList

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from device_agent.slots.store import Store
    from device_agent.update.downloader import Downloader
    from edgeonnx.spec.contents import FileEntry
    from edgeonnx.spec.release import Release

logger = logging.getLogger("edgeonnx.update")


def stage(store: Store, downloader: Downloader, release: Release, *, reserve: int) -> Path:
    """Have a release's bundle in a slot; nothing is fetched that is here.

    Args:
        store: The state directory.
        downloader: Fetches from the repository.
        release: The release.
        reserve: Bytes of the disk that stay free.

    Returns:
        The slot.

    Raises:
        FetchError, BlobError: The repository does not give what the release names.
        NoSpaceError, StateError: The disk does not take it.
        CandidateError: The bundle is not what the release says.
    """
    slot = store.slot(release.name, release.contents)
    contents = Contents(store, downloader, release)
    listed = _file_list(contents, release)
    missing = [entry for entry in listed.files if not contents.has(entry.sha256)]
    check_room(store, missing, reserve)
    for entry in missing:
        contents.ensure(entry.sha256, entry.size)
    if not slot.is_dir():
        _build(store, slot, listed, release)
    _check(slot, release)
    logger.info(
        "%s %s is staged: %d of %d contents fetched, %d bytes received",
        release.name,
        release.version,
        contents.fetched,
        len(listed.files) + 1,
        downloader.received,
    )
    return slot


def _file_list(contents: Contents, release: Release) -> FileList:
    if release.contents_size > MAX_CONTENTS_BYTES:
        raise CandidateError(
            "the release's list of files is too large",
            where=f"{release.name} {release.version}",
            expected=f"at most {MAX_CONTENTS_BYTES} bytes",
            found=f"{release.contents_size}",
        )
    data = contents.ensure(release.contents, release.contents_size).read_bytes()
    try:
        return FileList.from_bytes(data)
    except BundleError as error:
        raise CandidateError("the release is no bundle", where=release.version, found=str(error)) from None


def check_room(store: Store, missing: Iterable[FileEntry], reserve: int) -> None:
    """Refuse what would fill the disk: before anything is fetched, not in the middle.

    Raises:
        NoSpaceError: There is too little room.
    """
    # A blob lies beside what it decodes to for a moment.
    sizes = [entry.size for entry in missing]
    needed = sum(sizes) + max(sizes, default=0)
    status = os.statvfs(store.root)
    free = status.f_bavail * status.f_frsize
    if needed + reserve > free:
        raise NoSpaceError(
            "the disk has no room for the release",
            where=str(store.root),
            expected=f"{needed + reserve:,} bytes free (with {reserve:,} in reserve)",
            found=f"{free:,} bytes",
            hint="make room, or lower update.disk_reserve_bytes",
        )


def _build(store: Store, slot: Path, listed: FileList, release: Release) -> None:
    """Build the slot beside, from hard links, and give it its name."""
    building = slot.with_name(f".{slot.name}.new")
    disk = store.disk
    with store.writing("the slot"):
        disk.remove(building)
        disk.make_folder(slot.parent)
        folders = {building, *((building / entry.path).parent for entry in listed.files)}
        for folder in sorted(folders):
            disk.make_folder(folder)
        disk.link(store.blob(release.contents), building / CONTENTS_FILE)
        for entry in listed.files:
            disk.link(store.blob(entry.sha256), building / entry.path)
        for folder in sorted(folders):
            disk.sync_folder(folder)
        disk.rename(building, slot)
        disk.sync_folder(slot.parent)


def _check(slot: Path, release: Release) -> None:
    """The slot must be the bundle that the release names: a signed list may still be wrong."""
    try:
        bundle = open_bundle(slot)
    except BundleError as error:
        raise CandidateError(
            "the release is no bundle that this agent reads", where=str(slot), found=str(error)
        ) from None
    found = (bundle.manifest.name, bundle.manifest.version, bundle.digest)
    if found != (release.name, release.version, release.contents):
        raise CandidateError(
            "the bundle calls itself something else than its release",
            where=str(slot),
            expected=f"{release.name} {release.version}",
            found=f"{found[0]} {found[1]}",
        )
