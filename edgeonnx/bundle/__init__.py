"""Bundles on disk: writing them deterministically, reading them with suspicion, replaying their golden sets.

`golden` needs NumPy and is imported from its own module: looking at a bundle needs none.
"""

from edgeonnx.bundle.reader import Bundle, identify, open_bundle, verify_files
from edgeonnx.bundle.verifier import Verifier
from edgeonnx.bundle.writer import BundleWriter

__all__ = [
    "Bundle",
    "BundleWriter",
    "Verifier",
    "identify",
    "open_bundle",
    "verify_files",
]
