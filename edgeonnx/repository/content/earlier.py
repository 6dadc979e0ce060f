"""Contents of a release that the repository already holds, read back out of its blobs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from edgeonnx.blobs.codec import decompressed
from edgeonnx.errors import BlobError
from edgeonnx.spec.contents import Contents
from edgeonnx.spec.release import blob_path

if TYPE_CHECKING:
    from edgeonnx.repository.files import Files
    from edgeonnx.spec.release import Release


class Earlier:
    """The contents of a release.

    Args:
        files: The repository's files.
        release: The release.

    Attributes:
        contents: The list of its files.
        sizes: The size in bytes of each content, by digest; that of the list itself, too.

    Raises:
        BlobError: The blob of its list is damaged.
        RepositoryError: A blob is missing.
    """

    def __init__(self, files: Files, release: Release) -> None:
        self._files = files
        self.contents = Contents.from_bytes(read_content(files, release.contents, release.contents_size))
        self.sizes = {entry.sha256: entry.size for entry in self.contents.files}
        self.sizes[release.contents] = release.contents_size

    def read(self, digest: str) -> bytes:
        """A content of the release by its digest, verified."""
        return read_content(self._files, digest, self.sizes[digest])


def read_content(files: Files, digest: str, size: int) -> bytes:
    """A content out of its full blob, verified.

    Raises:
        BlobError: The blob is damaged.
        RepositoryError: It is missing.
    """
    path = blob_path(digest)
    data = b"".join(decompressed([files.read(path)], size=size))
    if hashlib.sha256(data).hexdigest() != digest:
        raise BlobError("the blob decodes to another content", where=path)
    return data
