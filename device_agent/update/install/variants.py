"""Which variants of a bundle a device fetched, and whether that choice is still the right one.

Choosing needs ONNX Runtime, and so a process of its own; a check without news must not need that. So what the choice
depends on is kept beside it, and only where that has changed (settings, a driver, another processor after the disk was
moved) the choice is made again, and what it adds is fetched.

    models/<model>/variants.json    the bundle, and what the choice depended on
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from device_agent.slots.disk import read_file
from edgeonnx.errors import EdgeOnnxError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.profile import parse_instruction_sets

if TYPE_CHECKING:
    from device_agent.config import AgentConfig
    from device_agent.slots.store import Store

SCHEMA = "1.0"
FILE = "variants.json"
MAX_BYTES = 4096


def machine_key(config: AgentConfig) -> str:
    """What the choice depends on, as a digest: settings, processor, driver, ONNX Runtime."""
    from device_agent.inference.devices.machine import CPUINFO, driver_version, nvidia_device_files, read_text

    runtime = config.runtime
    parts = {
        "settings": [config.update.variants, runtime.policy, runtime.variant, *runtime.providers],
        "cpu": sorted(parse_instruction_sets(read_text(CPUINFO))),
        "gpu": [driver_version(), *nvidia_device_files()],
        "onnxruntime": _installed("onnxruntime"),
    }
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def _installed(package: str) -> str:
    """What changes when a package is installed anew; empty without it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return ""
    return f"{found.origin} {Path(found.origin).stat().st_mtime_ns}"


def is_outdated(store: Store, model: str, contents: str, key: str) -> bool:
    """Whether the choice for a bundle was made for another machine or other settings, or is not known."""
    try:
        node = parse_document(read_file(store.model(model) / FILE, limit=MAX_BYTES), FILE)
        node = node.version("schema_version", known=SCHEMA)
        return (node.text("contents"), node.text("key")) != (contents, key)
    except (OSError, EdgeOnnxError):
        return True


def remember(store: Store, model: str, contents: str, key: str) -> None:
    """Write down for what the choice was made.

    Raises:
        StateError, NoSpaceError: It could not be written.
    """
    document = {"schema_version": SCHEMA, "contents": contents, "key": key}
    with store.writing("the choice of variants"):
        store.disk.replace(store.model(model) / FILE, canonical_json(document))
