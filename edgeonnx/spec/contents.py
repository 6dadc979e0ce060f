"""`contents.json`: every file of a bundle with its size and digest. Its own digest is the bundle's digest."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeonnx.spec.parse import Node, parse_document
from edgeonnx.spec.paths import check_relative_path
from edgeonnx.spec.timings import TIMINGS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTENTS_FILE = "contents.json"
CONTENTS_SCHEMA = "1.0"
REPORT_FILE = "report.html"
UNSEALED_FILES = (REPORT_FILE, TIMINGS_FILE)
"""Files that may lie at a bundle's root although `contents.json`, and so the digest, does not cover them.

They tell how fast the build host was, which no two builds measure alike. Nothing that serves may depend on them.
"""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def canonical_json(value: object) -> bytes:
    """JSON in one fixed form: sorted keys, two spaces, UTF-8, a final newline. Equal data gives equal bytes."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2, allow_nan=False)
    return text.encode("utf-8") + b"\n"


@dataclass(frozen=True, kw_only=True, order=True)
class FileEntry:
    """One file of a bundle: path relative to its root, size in bytes, SHA-256 in lower-case hexadecimal."""

    path: str
    size: int
    sha256: str

    @classmethod
    def from_dict(cls, node: Node) -> FileEntry:
        """Read one element of `files`."""
        node.only(("path", "size", "sha256"))
        check_relative_path(node.text("path"), where=node.required("path").where)
        if _SHA256.fullmatch(node.text("sha256")) is None:
            node.required("sha256").fail("is no SHA-256", expected="64 lower-case hexadecimal digits")
        return cls(path=node.text("path"), size=node.integer("size"), sha256=node.text("sha256"))

    def to_dict(self) -> dict[str, object]:
        """One element of `files`."""
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The list of a bundle's files, sorted by path, without `contents.json` itself and `UNSEALED_FILES`.

    Attributes:
        files: The files.
        source: The bytes that the list was read from, or None if it was made here.
    """

    files: tuple[FileEntry, ...]
    source: bytes | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> Contents:
        """A list of the given entries, sorted."""
        return cls(files=tuple(sorted(entries)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Contents:
        """Read a `contents.json`; a path must occur once, also when case is ignored, and not be of `UNSEALED_FILES`."""
        node = parse_document(data, CONTENTS_FILE)
        node = node.version("schema_version", known=CONTENTS_SCHEMA)
        node.only(("schema_version", "files"))
        files = tuple(FileEntry.from_dict(item) for item in node.required("files").items())
        seen: dict[str, int] = {CONTENTS_FILE: -1}
        for index, entry in enumerate(files):
            if entry.path.lower() in UNSEALED_FILES:
                Node(value=entry.path, file=CONTENTS_FILE, path=f"files[{index}].path").fail(
                    "must not be listed: the digest does not cover a file of this name"
                )
            if seen.setdefault(entry.path.lower(), index) != index:
                Node(value=entry.path, file=CONTENTS_FILE, path=f"files[{index}].path").fail("occurs twice")
        return cls(files=files, source=data)

    def to_bytes(self) -> bytes:
        """The canonical bytes of `contents.json`."""
        return canonical_json({"schema_version": CONTENTS_SCHEMA, "files": [entry.to_dict() for entry in self.files]})

    @property
    def digest(self) -> str:
        """The bundle's digest: SHA-256 of the bytes of `contents.json`."""
        return hashlib.sha256(self.to_bytes() if self.source is None else self.source).hexdigest()

    @property
    def total_size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)


def asset_digest(files: Iterable[tuple[str, str]]) -> str:
    """The content address of a shared asset: a folder, given as (path inside it, SHA-256 of the file).

    ONNX Runtime's model package format defines it: SHA-256 of the lines `<sha256>  <path>` sorted by path, each with a
    newline.
    """
    listing = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(files))
    return hashlib.sha256(listing.encode("utf-8")).hexdigest()
