"""What a change that waits would do, in words: whoever signs it must see what is signed. The signed bytes tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.repository.share import show_share
from edgeonnx.repository.signing.roles import DELEGATED, RELEASES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP
from edgeonnx.repository.state import read_target
from edgeonnx.spec.release import Release

if TYPE_CHECKING:
    from tuf.api.metadata import Root, Targets

    from edgeonnx.repository.files import Files
    from edgeonnx.repository.signing.pending import Pending
    from edgeonnx.repository.state import State

SHORT = 16
"""Characters of a key's id that are shown."""


def describe(files: Files, before: State, waiting: Pending) -> list[str]:
    """One line for each thing that would change.

    Args:
        files: The repository's files.
        before: The present state.
        waiting: What waits.

    Raises:
        UntrustedError: A target's file is not what the waiting metadata names.
        RepositoryError: It is missing.
    """
    found = []
    for role, metadata in waiting.metadata.items():
        if role == ROOT:
            found += _keys(before.root, metadata.signed, (ROOT, TARGETS, SNAPSHOT, TIMESTAMP))
        elif role == TARGETS:
            found += _keys(before.targets(), metadata.signed, tuple(DELEGATED))
        elif role == RELEASES:
            found += _releases(files, before.targets(RELEASES), metadata.signed)
        found.append(f"{role}: version {metadata.signed.version}, until {metadata.signed.expires:%Y-%m-%d}")
    for change in waiting.changes:
        share = "" if change.share is None else f" to {show_share(change.share)}"
        found.append(f"channel {change.channel}: offers {change.model} {change.version}{share}")
        if change.minimum_version is not None:
            found.append(f"channel {change.channel}: {change.model} never below {change.minimum_version}")
    return found


def _keys(before: Root | Targets, after: Root | Targets, roles: tuple[str, ...]) -> list[str]:
    found = []
    for role in roles:
        old, new = before.get_delegated_role(role), after.get_delegated_role(role)
        found += [f"{role}: the key {each[:SHORT]} may sign" for each in new.keyids if each not in old.keyids]
        found += [f"{role}: the key {each[:SHORT]} may sign no more" for each in old.keyids if each not in new.keyids]
        if old.threshold != new.threshold:
            found.append(f"{role}: {new.threshold} of {len(new.keyids)} keys must sign, not {old.threshold}")
    return found


def _releases(files: Files, before: Targets, after: Targets) -> list[str]:
    found = [f"releases: {path} is taken out" for path in sorted(set(before.targets) - set(after.targets))]
    for path, target in sorted(after.targets.items()):
        if before.targets.get(path) == target:
            continue
        release = Release.from_bytes(read_target(files, target), file=path)
        verb = "replaces" if path in before.targets else "is new"
        found.append(f"releases: {release.name} {release.version} {verb}, the bundle sha256:{release.contents}")
    return found
