"""A repository of releases on the build host: keys, signed metadata, blobs. Static files for any web server."""

from edgeonnx.repository.create import Settings, create_repository
from edgeonnx.repository.files import Files
from edgeonnx.repository.publish import Published, publish
from edgeonnx.repository.repository import Repository
from edgeonnx.repository.signing.keys import FileKeys, KeyStore

__all__ = ["FileKeys", "Files", "KeyStore", "Published", "Repository", "Settings", "create_repository", "publish"]
