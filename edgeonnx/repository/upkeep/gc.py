"""Removing what nothing names any more; what a client in the middle of an update may still ask for stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tuf.api.metadata import Snapshot, Targets

from edgeonnx.errors import EdgeOnnxError
from edgeonnx.repository.content.earlier import Earlier
from edgeonnx.repository.files import BLOBS_LOCK, SERVED
from edgeonnx.repository.signing import pending
from edgeonnx.repository.signing.roles import LISTED, RELEASES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP
from edgeonnx.repository.state import metadata_path, parse, read_target, target_path, versions_on_disk
from edgeonnx.spec.release import Release, blob_path, delta_path

if TYPE_CHECKING:
    from edgeonnx.repository.files import Files
    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.state import State

KEEP = 5
"""States before the present one whose files stay: a client that began with one of them ends with it."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What was removed, or would be.

    Attributes:
        paths: The files.
        bytes: Their size.
        kept: Number of files that stay.
    """

    paths: tuple[str, ...]
    bytes: int
    kept: int


def collect(repository: Repository, *, keep: int = KEEP, dry_run: bool = False) -> Collected:
    """Remove what neither the present state names, nor the last ones before it, nor a change that waits.

    Args:
        repository: The repository.
        keep: How many states before the present one are kept.
        dry_run: Remove nothing.

    Raises:
        RepositoryBusyError: Another process changes the repository.
        RepositoryError, BlobError: The present state is damaged: then nothing is removed.
    """
    repository.state()  # before the locks, which would make a folder in what is no repository
    with repository.files.lock(BLOBS_LOCK), repository.changing() as draft:
        files = draft.files
        needed = _needed(files, draft.before, keep)
        present = list(files.walk(*SERVED))
        surplus = [path for path in present if path not in needed and not _newer(path, draft.before)]
        size = sum((files.root / path).stat().st_size for path in surplus)
        if not dry_run:
            for path in surplus:
                files.remove(path)
        return Collected(paths=tuple(surplus), bytes=size, kept=len(present) - len(surplus))


def _needed(files: Files, state: State, keep: int) -> set[str]:
    """The paths of everything that must stay."""
    needed = {metadata_path(ROOT, version) for version in versions_on_disk(files, ROOT)}
    needed.add(metadata_path(TIMESTAMP, 0))
    present = state.snapshot.version
    older = [version for version in versions_on_disk(files, SNAPSHOT) if version < present]
    contents: set[str] = set()
    for version in older[len(older) - min(keep, len(older)) :]:
        try:
            _need_snapshot(files, version, needed, contents)
        except EdgeOnnxError:  # an older state that is already incomplete: what is left of it stays this time
            continue
    _need_snapshot(files, present, needed, contents)
    waiting = pending.load(files)
    if waiting is not None and RELEASES in waiting.metadata:
        _need_releases(files, cast("Targets", waiting.metadata[RELEASES].signed), needed, contents)
    return needed | {blob_path(digest) for digest in contents}


def _need_snapshot(files: Files, version: int, needed: set[str], contents: set[str]) -> None:
    path = metadata_path(SNAPSHOT, version)
    needed.add(path)
    snapshot = cast("Snapshot", parse(files.read(path), path, Snapshot).signed)
    for role in LISTED:
        path = metadata_path(role, snapshot.meta[f"{role}.json"].version)
        needed.add(path)
        targets = cast("Targets", parse(files.read(path), path, Targets).signed)
        if role == RELEASES:
            _need_releases(files, targets, needed, contents)
        elif role != TARGETS:
            needed |= {target_path(target) for target in targets.targets.values()}


def _need_releases(files: Files, releases: Targets, needed: set[str], contents: set[str]) -> None:
    for path, target in releases.targets.items():
        needed.add(target_path(target))
        release = Release.from_bytes(read_target(files, target), file=path)
        needed |= {delta_path(delta) for delta in release.deltas}
        if release.contents not in contents:
            contents |= set(Earlier(files, release).sizes)


def _newer(path: str, state: State) -> bool:
    """Whether it is metadata of a version above the present one: a leftover of a publisher that was stopped.

    It stays until the next publication, so that its number is not used again: a cache may have seen it.
    """
    parts = path.removeprefix("metadata/").split(".")
    if not path.startswith("metadata/") or len(parts) != 3 or not parts[0].isdigit():
        return False
    role = state.metadata.get(parts[1])
    return role is not None and int(parts[0]) > role.signed.version
