"""Publishing a release: a bundle's contents as blobs, its name signed, and who may take it.

The order is what keeps the old state valid: blobs and deltas, then targets, then metadata with the timestamp last.
Whatever a publisher that is stopped leaves behind is named by nothing, and used by the next one.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tuf.api.metadata import TargetFile

from edgeonnx.blobs.delta import encode
from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.errors import KeyStoreError, UsageError
from edgeonnx.repository.content.blobs import Written, blob_size, file_size, write_blobs
from edgeonnx.repository.content.deltas import plan_deltas
from edgeonnx.repository.content.earlier import Earlier, read_content
from edgeonnx.repository.files import BLOBS_LOCK
from edgeonnx.repository.offers import OfferChange, changed, check_channel
from edgeonnx.repository.signing import pending
from edgeonnx.repository.signing.roles import OFFLINE, ONLINE, RELEASES, ROLLOUT, SNAPSHOT, TIMESTAMP
from edgeonnx.repository.state import read_channel, read_release, read_releases, target_path
from edgeonnx.spec.contents import CONTENTS_FILE
from edgeonnx.spec.release import Delta, Release, channel_target, delta_path, release_target
from edgeonnx.spec.rollout import Channel
from edgeonnx.spec.versions import version_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgeonnx.bundle import Bundle
    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.signing.draft import Draft, Missing
    from edgeonnx.repository.signing.keys import KeyStore


@dataclass(frozen=True, kw_only=True)
class Published:
    """What publishing did.

    Attributes:
        release: The release.
        new: Whether it was not there before.
        written: The blobs.
        channel: The channel's policy.
        missing: Signatures that it waits for; empty if the release is out.
    """

    release: Release
    new: bool
    written: Written
    channel: Channel
    missing: tuple[Missing, ...]


@dataclass(frozen=True, kw_only=True)
class DeltaBase:
    """Which earlier release deltas are made from.

    Attributes:
        version: The earlier version; the newest one before the release if None.
    """

    version: str | None = None


NEWEST_BEFORE = DeltaBase()
"""What a device most likely has."""


def publish(
    repository: Repository,
    path: Path,
    keys: KeyStore,
    *,
    channel: str,
    share: int,
    minimum_version: str | None = None,
    deltas: DeltaBase | None = NEWEST_BEFORE,
    force: bool = False,
    on_blob: Callable[[int, int], None] | None = None,
) -> Published:
    """Publish a bundle to a channel.

    Publishing the same bundle again writes what is missing, and may change the share.

    Args:
        repository: The repository.
        path: The bundle's folder.
        keys: Where the private keys are.
        channel: The channel's name.
        share: The release's share of the fleet, in parts per million.
        minimum_version: Devices of the channel never go below it; as before if not given.
        deltas: The release that deltas are made from; None makes none.
        force: Let the share shrink, or the minimum version go back.
        on_blob: Called with how many contents are written, and of how many.

    Raises:
        BundleError: The bundle is damaged; nothing was written.
        UsageError: The version was published with other contents, or the change makes no sense.
        KeyStoreError: A key is missing.
        RepositoryBusyError: Another process publishes.
    """
    check_channel(channel)
    bundle = open_bundle(path)
    if bundle.absent:
        raise UsageError(
            "only a whole bundle can be published",
            where=str(path),
            found=f"a device's copy without {', '.join(sorted(bundle.absent))}",
            hint="publish the folder that `edgeonnx package` wrote",
        )
    verify_files(bundle)
    name, version = bundle.manifest.name, bundle.manifest.version
    change = OfferChange(
        channel=channel,
        model=name,
        version=version,
        contents=bundle.digest,
        share=share,
        minimum_version=minimum_version,
        force=force,
    )
    repository.state()  # before the locks, which would make a folder in what is no repository
    with repository.files.lock(BLOBS_LOCK):
        with repository.changing() as draft:  # what makes no sense is said before anything is written
            known = _known_release(draft, bundle)
            _channel_after(draft, change)
            _check_signer(draft, keys, known)
        written = write_blobs(draft.files, bundle, on_blob)
        prepared = _prepare(draft, bundle, known, deltas)
        with repository.changing() as draft:  # shares may have changed meanwhile, so this begins anew
            known = _known_release(draft, bundle)
            if known is None:
                add_target(draft, RELEASES, release_target(name, version), prepared.to_bytes())
            policy = _channel_after(draft, change)
            missing = conclude(draft, (change,), keys)
    return Published(release=known or prepared, new=known is None, written=written, channel=policy, missing=missing)


def _prepare(draft: Draft, bundle: Bundle, known: Release | None, deltas: DeltaBase | None) -> Release:
    """The release to be signed, with its deltas written; one that is signed already has them repaired."""
    if known is None:
        return _describe(bundle, _deltas(draft, bundle, deltas))
    _repair_deltas(draft, bundle, known)
    return known


def conclude(draft: Draft, changes: tuple[OfferChange, ...], keys: KeyStore) -> tuple[Missing, ...]:
    """Commit a draft with changes of channels; keep it as pending if it must wait for keys that are not here.

    Returns:
        The signatures that it waits for; empty if it is committed.

    Raises:
        KeyStoreError: Nothing but channels would change, and an online key is missing.
    """
    draft.renew_unaccepted(OFFLINE)
    draft.sign(keys)
    missing = draft.missing(OFFLINE) or draft.unsignable(ONLINE if changes else (SNAPSHOT, TIMESTAMP), keys)
    if missing and draft.next:
        pending.save(draft, changes)
        return tuple(missing)
    for change in changes:
        apply_change(draft, change)
    draft.commit(keys)
    pending.discard(draft.files)
    return ()


def apply_change(draft: Draft, change: OfferChange) -> Channel:
    """Put a change of a channel into the draft."""
    before = read_channel(draft.files, draft.after.targets(ROLLOUT), change.channel)
    after = changed(before or Channel(name=change.channel, models={}), change)
    if after != before:
        add_target(draft, ROLLOUT, channel_target(change.channel), after.to_bytes())
    return after


def _channel_after(draft: Draft, change: OfferChange) -> Channel:
    before = read_channel(draft.files, draft.after.targets(ROLLOUT), change.channel)
    return changed(before or Channel(name=change.channel, models={}), change)


def add_target(draft: Draft, role: str, path: str, data: bytes) -> None:
    """Write a target's file, and put it into the draft of a role's metadata."""
    target = TargetFile.from_data(path, data, ["sha256"])
    draft.files.write(target_path(target), data)
    draft.edit_targets(role).targets[path] = target


def _known_release(draft: Draft, bundle: Bundle) -> Release | None:
    """The release of this bundle if it is signed already.

    Raises:
        UsageError: Another bundle was published under its name and version, or another change waits for signatures.
    """
    pending.refuse_other(draft.files)
    name, version = bundle.manifest.name, bundle.manifest.version
    known = read_release(draft.files, draft.before.targets(RELEASES), name, version)
    if known is not None and known.contents != bundle.digest:
        raise UsageError(
            "this version was published with other contents",
            where=f"{name} {version}",
            expected=f"the bundle {known.contents[:16]}",
            found=bundle.digest[:16],
            hint="releases never change: build the bundle with a higher --version",
        )
    return known


def _check_signer(draft: Draft, keys: KeyStore, known: Release | None) -> None:
    """Ask for a key before minutes of compression, not after them."""
    role = RELEASES if known is None else ROLLOUT
    wanted = draft.keys_of(role)
    if all(keys.signer(key) is None for key in wanted.values()):
        raise KeyStoreError(
            f"no key of the role {role} is here",
            expected=" or ".join(key_id[:16] for key_id in wanted),
            hint="name the folder with the keys with --keys; several may be named",
        )


def _deltas(draft: Draft, bundle: Bundle, wanted: DeltaBase | None) -> list[Delta]:
    """Make deltas from an earlier release and write them; their bytes are named by what they decode to."""
    if wanted is None:
        return []
    base = _base_release(draft, bundle, wanted.version)
    if base is None:
        return []
    earlier = Earlier(draft.files, base)
    full_size = partial(blob_size, draft.files)
    found = []
    for delta, data in plan_deltas(bundle, earlier.contents, earlier.read, full_size=full_size):
        draft.files.write(delta_path(delta), data)
        found.append(delta)
    return sorted(found, key=lambda delta: (delta.target, delta.base, delta.encoding))


def _repair_deltas(draft: Draft, bundle: Bundle, release: Release) -> None:
    """Write deltas of a signed release again that are missing or cut short, if they come out as they were signed."""
    damaged = [delta for delta in release.deltas if file_size(draft.files, delta_path(delta)) != delta.size]
    if not damaged:
        return
    paths = {entry.sha256: bundle.root / entry.path for entry in bundle.contents.files}
    paths[bundle.digest] = bundle.root / CONTENTS_FILE
    releases = read_releases(draft.files, draft.before.targets(RELEASES))
    sizes = ChainMap(*(Earlier(draft.files, each).sizes for each in releases if each.name == release.name))
    for delta in damaged:
        if delta.base not in sizes:  # its release was retired
            continue
        base = read_content(draft.files, delta.base, sizes[delta.base])
        data = encode(delta.encoding, base, paths[delta.target].read_bytes())
        if len(data) == delta.size:  # another release of zstd may give other bytes: then devices take the full blob
            draft.files.write(delta_path(delta), data)


def _base_release(draft: Draft, bundle: Bundle, version: str | None) -> Release | None:
    name = bundle.manifest.name
    releases = [each for each in read_releases(draft.files, draft.before.targets(RELEASES)) if each.name == name]
    if version is None:
        order = version_order(bundle.manifest.version)
        older = [each for each in releases if version_order(each.version) < order]
        return max(older, key=lambda each: version_order(each.version), default=None)
    found = next((each for each in releases if each.version == version), None)
    if found is None:
        raise UsageError(
            "there is no such release to make deltas from",
            where=f"{name} {version}",
            expected=", ".join(each.version for each in releases) or "a release; there is none yet",
            hint="--delta-from none makes no deltas",
        )
    return found


def _describe(bundle: Bundle, deltas: list[Delta]) -> Release:
    source = bundle.contents.source or bundle.contents.to_bytes()
    return Release(
        name=bundle.manifest.name,
        version=bundle.manifest.version,
        contents=bundle.digest,
        contents_size=len(source),
        size=bundle.contents.total_size,
        deltas=tuple(deltas),
    )
