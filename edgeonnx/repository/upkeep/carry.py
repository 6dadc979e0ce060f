"""Carrying a repository elsewhere: to a bucket in the right order, or on a stick the part that a device needs."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tuf.api.metadata import Root

from edgeonnx.errors import RepositoryError, UsageError
from edgeonnx.repository.content.earlier import Earlier
from edgeonnx.repository.files import Files
from edgeonnx.repository.signing.roles import LISTED, RELEASES, ROLLOUT, ROOT, SNAPSHOT, TARGETS, TIMESTAMP
from edgeonnx.repository.state import (
    metadata_path,
    parse,
    read_release,
    read_releases,
    target_path,
    versions_on_disk,
)
from edgeonnx.spec.release import blob_path, delta_path, release_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.state import State
    from edgeonnx.spec.release import Release

IMMUTABLE = "public, max-age=31536000, immutable"
"""Cache-Control of names that are never given another content."""
CHANGING = "no-cache"
"""Cache-Control of `timestamp.json`: caches may keep it, and ask each time whether it is still the newest."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One file to copy to where the repository is served.

    Attributes:
        path: Relative to the repository.
        cache_control: The header to serve it with.
    """

    path: str
    cache_control: str


def upload_order(repository: Repository, known: Iterable[str] = ()) -> list[Upload]:
    """The files of the present state in the order in which they are copied, so that every moment serves a whole state.

    Blobs and deltas, then targets, then metadata, then `timestamp.json`. The newest root comes after it where clients
    of the root before it accept the new timestamp, and first of all metadata where they do not.

    Args:
        repository: The repository.
        known: Paths that were copied before; the timestamp is copied each time.
    """
    files, state = repository.files, repository.state()
    copied = set(known) - {metadata_path(TIMESTAMP, 0)}
    paths = [*_blobs(files, read_releases(files, state.targets(RELEASES)), deltas=True), *_targets(state)]
    roots = [metadata_path(ROOT, version) for version in versions_on_disk(files, ROOT)]
    tail = [metadata_path(role, state.metadata[role].signed.version) for role in (*LISTED, SNAPSHOT, TIMESTAMP)]
    last = roots[-1:] if _accepted_by_the_root_before(files, state) else []
    paths += [*(path for path in roots if path not in last), *tail, *last]
    return [
        Upload(path=path, cache_control=CHANGING if path == metadata_path(TIMESTAMP, 0) else IMMUTABLE)
        for path in paths
        if path not in copied
    ]


def _accepted_by_the_root_before(files: Files, state: State) -> bool:
    if state.root.version == 1:
        return False
    path = metadata_path(ROOT, state.root.version - 1)
    before = cast("Root", parse(files.read(path), path, Root).signed)
    return all(
        before.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        for role, metadata in state.metadata.items()
        if role in (TARGETS, SNAPSHOT, TIMESTAMP)
    )


def _blobs(files: Files, releases: Sequence[Release], *, deltas: bool) -> list[str]:
    contents = {digest for release in releases for digest in Earlier(files, release).sizes}
    found = sorted(blob_path(digest) for digest in contents)
    if deltas:
        found += sorted({delta_path(delta) for release in releases for delta in release.deltas})
    return found


def _targets(state: State) -> list[str]:
    return [
        target_path(target) for role in (RELEASES, ROLLOUT) for _, target in sorted(state.targets(role).targets.items())
    ]


def export(repository: Repository, releases: Sequence[tuple[str, str]], out: Path) -> list[str]:
    """Write the part of a repository that a device needs for some releases: a folder, or a tar archive.

    It has the repository's layout and its metadata as they are, so a device checks it as it checks the repository.

    Args:
        repository: The repository.
        releases: Name and version of each.
        out: What to write: an archive if it ends in `.tar`, else a folder. It must not exist.

    Returns:
        The paths in it.

    Raises:
        UsageError: `out` exists, or there is no such release.
        RepositoryError: A file is missing, or `out` cannot be written.
    """
    files, state = repository.files, repository.state()
    if os.path.lexists(out):
        raise UsageError("it exists already", where=str(out), hint="choose another --out, or move it away")
    chosen = [_release(files, state, name, version) for name, version in releases]
    wanted = {release_target(release.name, release.version) for release in chosen}
    targets = {target_path(state.targets(RELEASES).targets[path]) for path in wanted}
    targets |= {target_path(target) for target in state.targets(ROLLOUT).targets.values()}
    paths = [
        *_blobs(files, chosen, deltas=False),
        *sorted(targets),
        *(metadata_path(ROOT, version) for version in versions_on_disk(files, ROOT)),
        *(metadata_path(role, state.metadata[role].signed.version) for role in (*LISTED, SNAPSHOT, TIMESTAMP)),
    ]
    _write_out(files, paths, out)
    return paths


def _release(files: Files, state: State, name: str, version: str) -> Release:
    found = read_release(files, state.targets(RELEASES), name, version)
    if found is None:
        raise UsageError(
            "there is no such release",
            where=f"{name} {version}",
            expected=", ".join(
                path.removeprefix("releases/").removesuffix(".json") for path in sorted(state.targets(RELEASES).targets)
            )
            or "a release; there is none yet",
        )
    return found


def _write_out(files: Files, paths: Sequence[str], out: Path) -> None:
    """Write beside, then give the name; what fails or is stopped leaves no name behind."""
    beside = out.with_name(f".{out.name}.{secrets.token_hex(4)}.new")
    try:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            if out.suffix == ".tar":
                _write_archive(files, paths, beside)
            else:
                _write_tree(files, paths, beside)
            beside.rename(out)
            Files(out.parent).sync(out.parent)
        except OSError as error:
            raise RepositoryError("it cannot be written", where=str(out), found=error.strerror or str(error)) from None
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(beside) if beside.is_dir() else beside.unlink()
        raise


def _write_tree(files: Files, paths: Sequence[str], folder: Path) -> None:
    target = Files(folder)
    for path in paths:
        target.write(path, files.read(path))


def _write_archive(files: Files, paths: Sequence[str], file: Path) -> None:
    """A tar archive with nothing in it but names and contents: equal states give equal bytes."""
    with file.open("xb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in paths:
                data = files.read(path)
                info = tarfile.TarInfo(path)
                info.size, info.mode = len(data), 0o644
                archive.addfile(info, io.BytesIO(data))
        out.flush()
        os.fsync(out.fileno())
