"""A change that waits for further people's signatures: kept beside the repository's served folders, in one file.

Blobs and targets of a pending release are written already; they are named by nothing that is signed, so no device can
take them. The file holds the metadata of offline roles with the signatures that they have, and the changes of channels
that follow once they are complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import RepositoryError, UsageError
from edgeonnx.repository.files import HOST
from edgeonnx.repository.offers import OfferChange
from edgeonnx.repository.signing.roles import OFFLINE
from edgeonnx.repository.state import parse
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from edgeonnx.repository.files import Files
    from edgeonnx.repository.signing.draft import Draft
    from edgeonnx.repository.state import AnyMetadata, State
    from edgeonnx.spec.parse import Node

PENDING = f"{HOST}/pending.json"
PENDING_SCHEMA = "1.0"


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A change that waits.

    Attributes:
        based_on: Version of each offline role that it was made from.
        metadata: New metadata of offline roles.
        changes: Changes of channels that follow.
    """

    based_on: dict[str, int]
    metadata: dict[str, AnyMetadata]
    changes: tuple[OfferChange, ...]


def save(draft: Draft, changes: tuple[OfferChange, ...]) -> None:
    """Keep a draft's offline roles with their signatures."""
    document = {
        "schema_version": PENDING_SCHEMA,
        "based_on": {role: draft.before.metadata[role].signed.version for role in OFFLINE},
        "metadata": {role: draft.next[role].to_dict() for role in OFFLINE if role in draft.next},
        "changes": [_change_to_dict(change) for change in changes],
    }
    draft.files.write(PENDING, canonical_json(document))


def load(files: Files) -> Pending | None:
    """The change that waits, or None.

    Raises:
        ManifestError, SchemaVersionError, UntrustedError: The file is damaged, or of another version.
    """
    if not files.exists(PENDING):
        return None
    node = parse_document(files.read(PENDING), PENDING).version("schema_version", known=PENDING_SCHEMA)
    node.only(("schema_version", "based_on", "metadata", "changes"))
    metadata = {
        role: parse(json.dumps(child.typed(dict)).encode(), f"{PENDING}: {role}", object)
        for role, child in node.required("metadata").members()
    }
    return Pending(
        based_on={role: node.required("based_on").integer(role) for role in OFFLINE},
        metadata=metadata,
        changes=tuple(_change_from_dict(item) for item in node.required("changes").items()),
    )


def resume(draft: Draft, waiting: Pending) -> None:
    """Put what waits into a draft.

    Raises:
        RepositoryError: The repository went on without it.
    """
    found = {role: draft.before.metadata[role].signed.version for role in OFFLINE}
    if found != waiting.based_on:
        raise RepositoryError(
            "the repository has changed since the pending change was made",
            where=str(draft.files.root / PENDING),
            expected=", ".join(f"{role} {version}" for role, version in waiting.based_on.items()),
            found=", ".join(f"{role} {version}" for role, version in found.items()),
            hint="`edgeonnx repo sign --discard` drops it; then make the change again",
        )
    draft.next.update(waiting.metadata)


def refuse_other(files: Files) -> None:
    """Refuse a further change of offline roles while one waits: both would want the same version number.

    Raises:
        UsageError: One waits.
    """
    if files.exists(PENDING):
        raise UsageError(
            "another change waits for signatures",
            where=str(files.root / PENDING),
            hint="sign it with `edgeonnx repo sign`, or drop it with `edgeonnx repo sign --discard`",
        )


def discard(files: Files) -> bool:
    """Drop what waits; returns whether something did."""
    found = files.exists(PENDING)
    if found:
        files.remove(PENDING)
    return found


def clear_done(files: Files, state: State) -> None:
    """Drop what waited if it is out: its publisher was stopped between the two."""
    waiting = load(files)
    if waiting is not None and all(
        state.metadata[role].signed == metadata.signed for role, metadata in waiting.metadata.items()
    ):
        discard(files)


def _change_to_dict(change: OfferChange) -> dict[str, object]:
    return {
        "channel": change.channel,
        "model": change.model,
        "version": change.version,
        "contents": change.contents,
        "share": change.share,
        "minimum_version": change.minimum_version,
        "force": change.force,
    }


def _change_from_dict(node: Node) -> OfferChange:
    share = node.required("share")
    return OfferChange(
        channel=node.text("channel"),
        model=node.text("model"),
        version=node.text("version"),
        contents=node.text("contents"),
        share=None if share.value is None else share.typed(int),
        minimum_version=node.optional_text("minimum_version"),
        force=node.flag("force", default=False),
    )
