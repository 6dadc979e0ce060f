"""Taking a release out of the signed list, so that `gc` may remove its blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.repository.offers import needed_by_devices, without_release
from edgeonnx.repository.publish import add_target, conclude
from edgeonnx.repository.signing import pending
from edgeonnx.repository.signing.roles import RELEASES, ROLLOUT
from edgeonnx.repository.state import read_channels, read_release
from edgeonnx.spec.release import channel_target, release_target

if TYPE_CHECKING:
    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.signing.draft import Missing
    from edgeonnx.repository.signing.keys import KeyStore


def retire(repository: Repository, keys: KeyStore, name: str, version: str) -> tuple[Missing, ...]:
    """Take a release out of all channels and out of the list of releases.

    Args:
        repository: The repository.
        keys: Where the online keys are, and those of `releases`.
        name: The model's name.
        version: The release's version.

    Returns:
        The signatures that it waits for; empty if it is done.

    Raises:
        UsageError: There is no such release, or devices may still need it.
    """
    with repository.changing() as draft:
        pending.refuse_other(draft.files)
        release = read_release(draft.files, draft.before.targets(RELEASES), name, version)
        if release is None:
            raise UsageError("there is no such release", where=f"{name} {version}")
        channels = read_channels(draft.files, draft.before.targets(ROLLOUT))
        needing = [each.name for each in channels if needed_by_devices(each, name, release.contents)]
        if needing:
            raise UsageError(
                "devices may still take the release",
                where=f"{name} {version}",
                found=f"offered by {', '.join(needing)}",
                expected="a newer release that is open to 100%, or the release withdrawn",
                hint="`edgeonnx rollout` changes that",
            )
        for channel in channels:
            after = without_release(channel, name, release.contents)
            if after != channel:
                add_target(draft, ROLLOUT, channel_target(channel.name), after.to_bytes())
        if draft.next:  # in two steps: the channels need online keys alone, and no channel may name what is not signed
            draft.commit(keys)
    with repository.changing() as draft:
        pending.refuse_other(draft.files)
        del draft.edit_targets(RELEASES).targets[release_target(name, version)]
        return conclude(draft, (), keys)
