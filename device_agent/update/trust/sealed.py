"""Small JSON files with a checksum of their own: a bit that flipped on the disk must not pass for what was verified.

TUF's files carry signatures. `clock.json` and `floor.json` do not, and one wrong digit in them could stop all updates:
a time in the far future, a version that no repository will ever reach.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from edgeonnx.errors import ManifestError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeonnx.spec.parse import Node


def seal(fields: Mapping[str, object], *, schema: str) -> bytes:
    """The bytes of a file with these fields, its schema's version and its checksum."""
    content = {"schema_version": schema, **fields}
    return canonical_json({**content, "sha256": _digest(content)})


def unseal(data: bytes, *, file: str, schema: str, fields: tuple[str, ...]) -> Node:
    """Read such a file.

    Args:
        data: Its bytes.
        file: Its name, for messages.
        schema: The version of the schema that is known.
        fields: Its fields.

    Raises:
        ManifestError, SchemaVersionError: It is damaged, or of another version.
    """
    node = parse_document(data, file).version("schema_version", known=schema)
    node.only(("schema_version", "sha256", *fields))
    content = {key: child.value for key, child in node.members() if key != "sha256"}
    if node.text("sha256") != _digest(content):
        raise ManifestError("does not have its own checksum", where=file)
    return node


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical_json(dict(content))).hexdigest()
