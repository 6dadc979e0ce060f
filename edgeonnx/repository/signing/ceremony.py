"""Changes of keys: who may sign for a role, and how many of them must.

The keys of `root`, `targets`, `snapshot` and `timestamp` are named by root, those of `releases` and `rollout` by
targets. A change makes a new version of the one that names them, and new versions of all metadata that the new set of
keys does not vouch for. It waits for further people's signatures like a release does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.repository.create import check_threshold
from edgeonnx.repository.publish import conclude
from edgeonnx.repository.signing import pending
from edgeonnx.repository.signing.changes import describe
from edgeonnx.repository.signing.roles import ROOT, check_role, delegator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from securesystemslib.signer import Key
    from tuf.api.metadata import Role, Root, Targets

    from edgeonnx.repository.repository import Repository
    from edgeonnx.repository.signing.draft import Draft, Missing
    from edgeonnx.repository.signing.keys import KeyStore


def add_key(repository: Repository, keys: KeyStore, role: str, key: Key) -> tuple[Missing, ...]:
    """Let a further key sign for a role.

    Returns:
        The signatures that the change waits for; empty if it is out.

    Raises:
        UsageError: The key may sign for it already, or another change waits.
        KeyStoreError: A key cannot be used.
    """

    def change(delegator: Root | Targets, named: Role) -> None:
        if key.keyid in named.keyids:
            raise UsageError("the role has this key already", where=role, found=key.keyid[:16])
        delegator.add_key(key, role)

    return _changed(repository, keys, role, change)


def remove_key(repository: Repository, keys: KeyStore, role: str, key_id: str) -> tuple[Missing, ...]:
    """Let a key sign for a role no more.

    Args:
        repository: The repository.
        keys: Where the private keys are.
        role: The role.
        key_id: The key's id, or its beginning.

    Raises:
        UsageError: The role has no such key, or needs it to reach its threshold.
    """

    def change(delegator: Root | Targets, named: Role) -> None:
        delegator.revoke_key(match_key(named, role, key_id), role)

    return _changed(repository, keys, role, change)


def rotate_key(
    repository: Repository, keys: KeyStore, role: str, make: Callable[[], Key], key_id: str | None = None
) -> tuple[Missing, ...]:
    """Put a new key in the place of one of a role's keys.

    Args:
        repository: The repository.
        keys: Where the private keys are.
        role: The role.
        make: Makes the new key, so that none is made if the change is refused.
        key_id: The old key's id, or its beginning; may be left out if the role has one key only.
    """

    def change(delegator: Root | Targets, named: Role) -> None:
        old = match_key(named, role, key_id)
        delegator.add_key(make(), role)
        delegator.revoke_key(old, role)

    return _changed(repository, keys, role, change)


def change_threshold(repository: Repository, keys: KeyStore, role: str, count: int) -> tuple[Missing, ...]:
    """Change how many of a role's keys must sign."""

    def change(_: Root | Targets, named: Role) -> None:
        named.threshold = count

    return _changed(repository, keys, role, change)


def describe_pending(repository: Repository) -> list[str]:
    """What the change that waits would do, one line each; nothing if none waits.

    Raises:
        RepositoryError, UntrustedError: It does not fit the repository.
    """
    waiting = pending.load(repository.files)
    return [] if waiting is None else describe(repository.files, repository.state(), waiting)


def sign_pending(repository: Repository, keys: KeyStore) -> tuple[list[str], tuple[Missing, ...]]:
    """Sign the change that waits; it goes out if that completes it.

    Returns:
        The roles that got a signature, and the signatures that still lack.

    Raises:
        UsageError: Nothing waits.
        RepositoryError: The repository has changed since.
    """
    with repository.changing() as draft:
        waiting = pending.load(draft.files)
        if waiting is None:
            raise UsageError("nothing waits for signatures", where=str(draft.files.root))
        pending.resume(draft, waiting)
        signed = draft.sign(keys)
        return signed, conclude(draft, waiting.changes, keys)


def discard_pending(repository: Repository) -> bool:
    """Drop the change that waits; returns whether there was one. Its blobs stay until `gc`."""
    with repository.changing() as draft:
        return pending.discard(draft.files)


def match_key(named: Role, role: str, key_id: str | None) -> str:
    """The id of a role's key, from its beginning.

    Raises:
        UsageError: None fits, or more than one.
    """
    fitting = [each for each in named.keyids if key_id is None or each.startswith(key_id)]
    if len(fitting) == 1:
        return fitting[0]
    raise UsageError(
        "say which key" if fitting else "the role has no such key",
        where=role,
        expected="--key " + " or ".join(each[:16] for each in named.keyids),
        found=key_id,
    )


def _changed(
    repository: Repository, keys: KeyStore, role: str, change: Callable[[Root | Targets, Role], None]
) -> tuple[Missing, ...]:
    check_role(role)
    with repository.changing() as draft:
        pending.refuse_other(draft.files)
        delegator = _edit_delegator(draft, role)
        change(delegator, delegator.get_delegated_role(role))
        named = delegator.get_delegated_role(role)
        check_threshold(role, named.threshold, len(named.keyids))
        return conclude(draft, (), keys)


def _edit_delegator(draft: Draft, role: str) -> Root | Targets:
    return draft.edit_root() if delegator_of(role) == ROOT else draft.edit_targets()
