"""What a release is: the signed document that names a bundle's list of files, and where its blobs lie. Pure.

A release is a bundle's digest under a name and a version. The digest is that of `contents.json`, which names every
other file by its digest, so the few hundred bytes of a release vouch for all of it. Blobs are named by the SHA-256 of
the raw content that they decode to:

    blobs/sha256/ab/<digest>.zst                          the content, compressed with zstd
    deltas/sha256/ab/<digest>.<base digest>.<encoding>    the same content as a difference to an earlier one
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from edgeonnx.spec.parse import Node

RELEASE_SCHEMA = "1.0"
FULL = "zstd"
DELTA_ENCODINGS = ("difference", "planes2", "planes4", "dictionary")
"""How a delta is made; see `edgeonnx.blobs.delta`. A device that does not know one takes the full blob."""

RELEASES_ROLE = "releases"
ROLLOUT_ROLE = "rollout"
RELEASES_PATHS = ("releases/*/*.json",)
ROLLOUT_PATHS = ("channels/*.json",)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENCODING = re.compile(r"[a-z0-9-]{1,32}")


def release_target(name: str, version: str) -> str:
    """The TUF target path of a release."""
    return f"releases/{check_bundle_name(name)}/{check_bundle_version(version)}.json"


def channel_target(channel: str) -> str:
    """The TUF target path of a channel's policy."""
    return f"channels/{check_bundle_name(channel)}.json"


def blob_path(digest: str) -> str:
    """Where the full blob of a content lies, relative to the repository."""
    return f"blobs/sha256/{digest[:2]}/{digest}.zst"


def delta_path(delta: Delta) -> str:
    """Where a delta lies, relative to the repository."""
    return f"deltas/sha256/{delta.target[:2]}/{delta.target}.{delta.base}.{delta.encoding}"


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A content as a difference to an earlier one.

    Attributes:
        target: Digest of the content that it decodes to.
        base: Digest of the content that it needs.
        encoding: One of `DELTA_ENCODINGS`, or one of a later release.
        size: Bytes on the wire.
    """

    target: str
    base: str
    encoding: str
    size: int

    @classmethod
    def from_dict(cls, node: Node) -> Delta:
        """Read one element of `deltas`."""
        node.only(("target", "base", "encoding", "size"))
        for key in ("target", "base"):
            _digest(node, key)
        if _ENCODING.fullmatch(node.text("encoding")) is None:
            node.required("encoding").fail("is no name of an encoding")
        return cls(
            target=node.text("target"),
            base=node.text("base"),
            encoding=node.text("encoding"),
            size=node.integer("size", minimum=1),
        )

    def to_dict(self) -> dict[str, object]:
        """One element of `deltas`."""
        return {"target": self.target, "base": self.base, "encoding": self.encoding, "size": self.size}


@dataclass(frozen=True, kw_only=True)
class Release:
    """The content of `releases/<name>/<version>.json`, signed by the role `releases`.

    Attributes:
        name: The model's name.
        version: Its version.
        contents: Digest of the bundle: SHA-256 of `contents.json`.
        contents_size: Size of `contents.json` in bytes.
        size: Bytes of all files of the bundle.
        deltas: What can be taken as a difference instead of whole.
    """

    name: str
    version: str
    contents: str
    contents_size: int
    size: int
    deltas: tuple[Delta, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes, *, file: str = "release") -> Release:
        """Read a release.

        Raises:
            ManifestError, SchemaVersionError: It breaks the schema, or is of another version.
        """
        node = parse_document(data, file).version("schema_version", known=RELEASE_SCHEMA)
        node.only(("schema_version", "name", "version", "contents", "contents_size", "size", "deltas"))
        return cls(
            name=check_bundle_name(node.text("name")),
            version=check_bundle_version(node.text("version")),
            contents=_digest(node, "contents"),
            contents_size=node.integer("contents_size", minimum=1),
            size=node.integer("size"),
            deltas=tuple(Delta.from_dict(item) for item in node.required("deltas").items()),
        )

    def to_bytes(self) -> bytes:
        """The canonical bytes of the release."""
        return canonical_json(
            {
                "schema_version": RELEASE_SCHEMA,
                "name": self.name,
                "version": self.version,
                "contents": self.contents,
                "contents_size": self.contents_size,
                "size": self.size,
                "deltas": [delta.to_dict() for delta in self.deltas],
            }
        )


def _digest(node: Node, key: str) -> str:
    if _SHA256.fullmatch(node.text(key)) is None:
        node.required(key).fail("is no SHA-256", expected="64 lower-case hexadecimal digits")
    return node.text(key)
