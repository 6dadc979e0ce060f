"""Bundles on disk: writing them deterministically, reading them with suspicion, replaying their golden sets."""

from edgeonnx.bundle.golden import Comparison, GoldenSet, compare_outputs
from edgeonnx.bundle.reader import Bundle, identify, open_bundle, verify_files
from edgeonnx.bundle.verifier import Verifier
from edgeonnx.bundle.writer import BundleWriter

__all__ = [
    "Bundle",
    "BundleWriter",
    "Comparison",
    "GoldenSet",
    "Verifier",
    "compare_outputs",
    "identify",
    "open_bundle",
    "verify_files",
]
