"""Looking at a repository as a client does, but at all of it: every signature, every target, every blob.

The first fault does not end it: everything that can still be reached is looked at, and each fault is named.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tuf.api.exceptions import RepositoryError as TufError
from tuf.api.exceptions import UnsignedMetadataError
from tuf.api.metadata import Root, Targets

from edgeonnx.blobs.delta import decode
from edgeonnx.errors import EdgeOnnxError, UntrustedError, first_line
from edgeonnx.repository.content.blobs import blob_fault
from edgeonnx.repository.content.earlier import Earlier, read_content
from edgeonnx.repository.files import SERVED
from edgeonnx.repository.signing.roles import DELEGATED, LISTED, RELEASES, ROLES, ROLLOUT, ROOT, TARGETS, delegator_of
from edgeonnx.repository.state import (
    metadata_path,
    parse,
    read_state,
    read_target,
    signed_at,
    target_path,
    versions_on_disk,
)
from edgeonnx.spec.release import Delta, Release, blob_path, delta_path, release_target
from edgeonnx.spec.rollout import Channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from edgeonnx.repository.files import Files
    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.state import State


@dataclass(kw_only=True)
class Verification:
    """What was looked at, and what is wrong.

    Attributes:
        faults: One line for each fault: where, and what.
        releases: The releases that are signed.
        channels: The channels' policies.
        blobs: Number of full blobs.
        deltas: Number of deltas.
        wire_bytes: Size of both.
        named: Paths of all files that the state names; others are older states, or leftovers.
        expires: When the signature of each role runs out.
    """

    faults: list[str] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    blobs: int = 0
    deltas: int = 0
    wire_bytes: int = 0
    named: set[str] = field(default_factory=set)
    expires: dict[str, datetime] = field(default_factory=dict)


def verify(repository: Repository, on_blob: Callable[[int, int], None] | None = None) -> Verification:
    """Look at all of a repository.

    Args:
        repository: The repository; nothing is written.
        on_blob: Called with how many blobs are looked at, and of how many.

    Raises:
        RepositoryError: It is none, or its metadata is so damaged that it leads nowhere.
    """
    files, found = repository.files, Verification()
    state = read_state(files)
    _check_roots(files, found)
    _check_signatures(state, repository.now(), found)
    _check_targets(files, state, found)
    _check_agreement(found)
    _check_contents(files, found, on_blob)
    _check_secrets(files, found)
    return found


def _check_roots(files: Files, found: Verification) -> None:
    """Every root is signed by its own keys and by those of the one before it."""
    newest = versions_on_disk(files, ROOT)[-1]
    before: Root | None = None
    for version in range(1, newest + 1):
        path = metadata_path(ROOT, version)
        found.named.add(path)
        try:
            metadata = parse(files.read(path), path, Root)
            if metadata.signed.version != version:
                raise UntrustedError("states another version", found=str(metadata.signed.version))
            root = cast("Root", metadata.signed)
            for signer in (before or root, root):
                signer.verify_delegate(ROOT, metadata.signed_bytes, metadata.signatures)
            before = root
        except (EdgeOnnxError, TufError) as error:
            found.faults.append(f"{path}: {_told(error)}")


def _check_signatures(state: State, now: datetime, found: Verification) -> None:
    """Each role's metadata has enough signatures, has not run out, and says when it was signed."""
    snapshot = state.snapshot
    for role in ROLES:
        metadata = state.metadata[role]
        path = metadata_path(role, metadata.signed.version)
        found.named.add(path)
        found.expires[role] = metadata.signed.expires
        delegator = state.root if delegator_of(role) == ROOT else state.targets()
        try:
            delegator.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
        except (UnsignedMetadataError, ValueError) as error:
            found.faults.append(f"{path}: {first_line(error)}")
        if metadata.signed.is_expired(now):
            found.faults.append(f"{path}: expired on {metadata.signed.expires:%Y-%m-%d %H:%M} UTC")
        try:
            if signed_at(metadata) > now:
                found.faults.append(f"{path}: signed in the future, at {signed_at(metadata):%Y-%m-%d %H:%M} UTC")
        except UntrustedError as error:
            found.faults.append(f"{path}: {_told(error)}")
    unlisted = set(snapshot.meta) - {f"{role}.json" for role in LISTED}
    found.faults += [f"snapshot: lists {name}, which no client looks at" for name in sorted(unlisted)]
    _check_delegations(state, found)


def _check_delegations(state: State, found: Verification) -> None:
    targets = state.targets()
    roles = {} if targets.delegations is None else targets.delegations.roles or {}
    paths = {name: tuple(role.paths or ()) for name, role in roles.items()}
    if paths != DELEGATED:
        found.faults.append(f"targets: delegates {paths}, not {DELEGATED}")
    found.faults += [f"targets: signs {path} itself" for path in sorted(targets.targets)]
    for role in (RELEASES, ROLLOUT):
        for path in sorted(state.targets(role).targets):
            if role in roles and not roles[role].is_delegated_path(path):
                found.faults.append(f"{role}: signs {path}, which is not delegated to it")


def _check_targets(files: Files, state: State, found: Verification) -> None:
    """Every target has the bytes that were signed, and says what its path says."""
    for role in (TARGETS, RELEASES, ROLLOUT):
        for path, target in sorted(cast("Targets", state.metadata[role].signed).targets.items()):
            found.named.add(target_path(target))
            try:
                data = read_target(files, target)
                if role == RELEASES:
                    release = Release.from_bytes(data, file=path)
                    if release_target(release.name, release.version) != path:
                        raise UntrustedError("is another release", found=f"{release.name} {release.version}")
                    found.releases.append(release)
                elif role == ROLLOUT:
                    found.channels.append(Channel.from_bytes(data, file=path))
            except EdgeOnnxError as error:
                found.faults.append(f"{target_path(target)}: {_told(error)}")


def _check_agreement(found: Verification) -> None:
    """Channels offer only what the releases' role has signed, under the same digest."""
    signed = {(release.name, release.version): release.contents for release in found.releases}
    for channel in found.channels:
        for model, offers in channel.models.items():
            for offer in offers.offers:
                contents = signed.get((model, offer.version))
                if contents != offer.contents:
                    what = "no such release is signed" if contents is None else "another bundle than the release"
                    found.faults.append(f"channel {channel.name}: {model} {offer.version}: {what}")


def _check_contents(files: Files, found: Verification, on_blob: Callable[[int, int], None] | None) -> None:
    """Every blob decodes to its content, and every delta does on its base."""
    sizes: dict[str, int] = {}
    for release in found.releases:
        sizes[release.contents] = release.contents_size
        try:
            sizes.update(Earlier(files, release).sizes)
        except EdgeOnnxError as error:
            found.faults.append(f"release {release.name} {release.version}: contents.json: {_told(error)}")
    deltas = sorted({delta for release in found.releases for delta in release.deltas}, key=delta_path)
    checks: list[Callable[[], str | None]] = [
        *(lambda digest=digest, size=size: _blob(files, digest, size) for digest, size in sorted(sizes.items())),
        *(lambda delta=delta: _delta(files, delta, sizes) for delta in deltas),
    ]
    found.named |= {*map(blob_path, sizes), *map(delta_path, deltas)}
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for done, fault in enumerate(pool.map(lambda check: check(), checks), start=1):
            if fault is not None:
                found.faults.append(fault)
            if on_blob is not None:
                on_blob(done, len(checks))
    found.blobs, found.deltas = len(sizes), len(deltas)
    found.wire_bytes = sum(
        (files.root / path).stat().st_size
        for path in found.named
        if path.startswith(("blobs/", "deltas/")) and files.exists(path)
    )


def _blob(files: Files, digest: str, size: int) -> str | None:
    fault = blob_fault(files, digest, size)
    return None if fault is None else f"{blob_path(digest)}: {fault}"


def _delta(files: Files, delta: Delta, sizes: dict[str, int]) -> str | None:
    """What is wrong with a delta; its base is the newest release's before it, or the device's own business."""
    path = delta_path(delta)
    try:
        data = files.read(path)
        if len(data) != delta.size:
            return f"{path}: {len(data)} bytes, {delta.size} were signed"
        if delta.base not in sizes or delta.target not in sizes:
            return None if delta.target in sizes else f"{path}: makes a content that no release has"
        base = read_content(files, delta.base, sizes[delta.base])
        digest = hashlib.sha256()
        for piece in decode(delta.encoding, [data], base, size=sizes[delta.target]):
            digest.update(piece)
    except EdgeOnnxError as error:
        return f"{path}: {_told(error)}"
    return None if digest.hexdigest() == delta.target else f"{path}: decodes to another content"


def _check_secrets(files: Files, found: Verification) -> None:
    """No private key lies where a web server finds it."""
    for path in files.walk(""):
        if path.endswith((".pem", ".key")) and b"PRIVATE KEY" in files.read(path):
            found.faults.append(f"{path}: a private key; move it away, and replace it with `repo keys rotate`")


def unnamed_files(files: Files, found: Verification) -> list[str]:
    """Files in the served folders that the present state does not name: older states, and leftovers."""
    return [path for path in files.walk(*SERVED) if path not in found.named]


def _told(error: Exception) -> str:
    """An error in one line, without its place."""
    if isinstance(error, EdgeOnnxError):
        parts = [error.message, error.expected and f"expected {error.expected}", error.found and f"found {error.found}"]
        return ", ".join(part for part in parts if part)
    return first_line(error)
