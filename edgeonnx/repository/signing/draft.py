"""A change of a repository's signed state: edited in memory, signed by one person or several, written in one order.

A draft begins as the present state. `edit` gives a role a new version to change, `sign` signs what is new with the
keys at hand, `missing` says which signatures still lack. `commit` then lists the outcome in a new snapshot, checks the
whole of it as a client would, and only then writes: first what nobody reads yet, the timestamp last. Stopped anywhere,
the old state stays what `timestamp.json` leads to.

No name is ever given to two contents: a new version takes the next number for which there is no file, so leftovers of
a publisher that was stopped never meet a cache that has seen them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from edgeonnx.errors import KeyStoreError
from edgeonnx.repository.signing.roles import (
    EXPIRES,
    LISTED,
    OFFLINE,
    ROLES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    delegator_of,
)
from edgeonnx.repository.state import AnyMetadata, State, metadata_path, versions_on_disk
from edgeonnx.spec.signing import SIGNED_AT, stamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from securesystemslib.signer import Key

    from edgeonnx.repository.files import Files
    from edgeonnx.repository.signing.keys import KeyStore


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Signatures that a role's new metadata lacks.

    Attributes:
        role: The role.
        count: How many more are needed.
        key_ids: The keys that have not signed, any of which counts.
    """

    role: str
    count: int
    key_ids: tuple[str, ...]

    def __str__(self) -> str:
        """One line for people."""
        plural = "signature" if self.count == 1 else "signatures"
        return f"{self.role}: {self.count} more {plural}, by {' or '.join(each[:16] for each in self.key_ids)}"


class Draft:
    """A change of the signed state.

    Args:
        files: The repository's files. The lock must be held.
        state: The present state; metadata of a role that is absent is yet to be made.
        now: The time of the change.
        expires: How long the signature of each role holds.
    """

    def __init__(
        self, files: Files, state: State, *, now: datetime, expires: Mapping[str, timedelta] = EXPIRES
    ) -> None:
        self.files = files
        self.before = state
        self.now = now
        self.next: dict[str, AnyMetadata] = {}
        self._expires = expires

    @property
    def after(self) -> State:
        """The state that the draft leads to, as far as it is made."""
        return State(metadata={**self.before.metadata, **self.next})

    def edit(self, role: str) -> Any:
        """The signed part of a new version of a role's metadata, to be changed; signatures go with each call."""
        metadata = self.next.get(role)
        if metadata is None:
            metadata = Metadata(copy.deepcopy(self.before.metadata[role].signed))
            metadata.signed.version = self._next_version(role)
            self.next[role] = metadata
        metadata.signatures.clear()
        metadata.signed.expires = self.now + self._expires[role]
        metadata.signed.unrecognized_fields[SIGNED_AT] = stamp(self.now)
        return metadata.signed

    def edit_targets(self, role: str = TARGETS) -> Targets:
        """The same, for `targets` and the roles that it delegates to."""
        return cast("Targets", self.edit(role))

    def edit_root(self) -> Root:
        """The same, for `root`."""
        return cast("Root", self.edit(ROOT))

    def _next_version(self, role: str) -> int:
        known = self.before.metadata.get(role)
        present = 0 if known is None else known.signed.version
        if role == ROOT:  # roots are followed one by one, without gaps
            return int(present) + 1
        return int(max([present, *versions_on_disk(self.files, role)])) + 1

    def keys_of(self, role: str) -> dict[str, Key]:
        """The keys that may sign a role's new metadata, by id.

        For roles under `root` these are the keys of the old and of the new root: what both accept can be published
        before the new root is, so that no client ever finds one without the other.
        """
        delegators = [self._delegator(self.after, role)]
        if delegator_of(role) == ROOT and ROOT in self.before.metadata:
            delegators.append(self._delegator(self.before, role))
        return {
            key_id: delegator.get_key(key_id)
            for delegator in delegators
            for key_id in delegator.get_delegated_role(role).keyids
        }

    def sign(self, keys: KeyStore) -> list[str]:
        """Sign what is new with the keys at hand.

        Returns:
            The roles that got a further signature.
        """
        return [role for role in ROLES if role in self.next and self._sign(role, keys)]

    def _sign(self, role: str, keys: KeyStore) -> bool:
        metadata = self.next[role]
        done = False
        for key_id, key in self.keys_of(role).items():
            signer = None if key_id in metadata.signatures else keys.signer(key)
            if signer is not None:
                metadata.sign(signer, append=True)
                done = True
        return done

    def missing(self, roles: tuple[str, ...] = OFFLINE) -> list[Missing]:
        """What some roles' metadata lacks to be accepted by every client."""
        found = []
        for role in roles:
            if role not in self.after.metadata:
                continue
            results = [self._result(self.after, role)]
            if role == ROOT and ROOT in self.next and ROOT in self.before.metadata:
                results.append(self._result(self.before, role))
            worst = max(results, key=lambda result: result[0])
            if worst[0]:
                found.append(Missing(role=role, count=worst[0], key_ids=worst[1]))
        return found

    def _result(self, state: State, role: str) -> tuple[int, tuple[str, ...]]:
        """How many signatures lack by what a state says of the role's keys, and which keys did not sign."""
        metadata = self.after.metadata[role]
        result = self._delegator(state, role).get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        return max(0, result.threshold - len(result.signed)), tuple(result.unsigned)

    def _delegator(self, state: State, role: str) -> Root | Targets:
        return state.root if delegator_of(role) == ROOT else state.targets()

    def commit(self, keys: KeyStore) -> State:
        """Sign what the online keys sign, check everything, and write it.

        Args:
            keys: Where at least the online keys are.

        Returns:
            The new state.

        Raises:
            KeyStoreError: A key is missing; nothing was written.
        """
        if not self.next and not self.missing(ROLES):
            return self.before
        self.renew_unaccepted(LISTED)
        self._complete((ROOT, *LISTED), keys)
        snapshot = cast("Snapshot", self.edit(SNAPSHOT))
        for role in LISTED:
            if role in self.next:
                snapshot.meta[f"{role}.json"] = _meta_file(self.next[role])
        self._complete((SNAPSHOT,), keys)
        timestamp = cast("Timestamp", self.edit(TIMESTAMP))
        timestamp.snapshot_meta = _meta_file(self.next[SNAPSHOT])
        self._complete((TIMESTAMP,), keys)
        self._write()
        return self.after

    def commit_timestamp(self, keys: KeyStore) -> State:
        """Sign nothing but the timestamp anew."""
        self.edit(TIMESTAMP)
        self._complete((TIMESTAMP,), keys)
        self._write()
        return self.after

    def renew_unaccepted(self, roles: tuple[str, ...]) -> None:
        """Give those roles a new version that a change of keys leaves without enough signatures."""
        for role in roles:
            if role not in self.next and self.missing((role,)):
                self.edit(role)

    def unsignable(self, roles: tuple[str, ...], keys: KeyStore) -> list[Missing]:
        """What would lack if the keys at hand signed new metadata of some roles."""
        found = []
        for role in roles:
            wanted = self._delegator(self.after, role).get_delegated_role(role)
            absent = tuple(key_id for key_id, key in self.keys_of(role).items() if keys.signer(key) is None)
            here = len([key_id for key_id in wanted.keyids if key_id not in absent])
            if here < wanted.threshold:
                absent = tuple(key_id for key_id in absent if key_id in wanted.keyids)
                found.append(Missing(role=role, count=wanted.threshold - here, key_ids=absent))
        return found

    def _complete(self, roles: tuple[str, ...], keys: KeyStore) -> None:
        for role in roles:
            if role in self.next:
                self._sign(role, keys)
        lacking = self.missing(roles)
        if lacking:
            raise KeyStoreError(
                "signatures are missing; nothing was changed",
                where=str(self.files.root),
                details=tuple(str(each) for each in lacking),
                hint="name the folder with the keys with --keys; several may be named",
            )

    def _write(self) -> None:
        order = [role for role in (*LISTED, SNAPSHOT, TIMESTAMP) if role in self.next]
        if ROOT in self.next:
            # Where clients of the old root accept all that is new, the new root goes last: none of them ever meets
            # metadata that it has no key for. Else it goes first, and for the instant until the timestamp follows the
            # old timestamp may lack the new keys.
            accepted = ROOT in self.before.metadata and self._accepted_before()
            order = [*order, ROOT] if accepted else [ROOT, *order]
        for role in order:
            metadata = self.next[role]
            self.files.write(metadata_path(role, metadata.signed.version), metadata.to_bytes())

    def _accepted_before(self) -> bool:
        return all(self._result(self.before, role)[0] == 0 for role in (TARGETS, SNAPSHOT, TIMESTAMP))


def _meta_file(metadata: AnyMetadata) -> MetaFile:
    """What the snapshot or the timestamp says of a file: version, length and digest, so that nothing can be mixed."""
    return MetaFile.from_data(metadata.signed.version, metadata.to_bytes(), ["sha256"])
