"""What a report is made of: a bundle's metadata and what was measured of it. Everything drawn is derived from this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeonnx.spec.contents import Contents
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.manifest import Manifest
    from edgeonnx.spec.timings import Timings


@dataclass(frozen=True, kw_only=True)
class Report:
    """The data of one report.

    Attributes:
        manifest: The bundle's metadata.
        evidence: What was measured when it was built.
        timings: How fast its variants were on the build host, or None if that is not known.
        contents: Its files, or None if they are not known (then the report has no sizes of files).
        digest: SHA-256 of its `contents.json` in hexadecimal, or None if it is not known.
    """

    manifest: Manifest
    evidence: Evidence
    timings: Timings | None = None
    contents: Contents | None = None
    digest: str | None = None

    def to_dict(self) -> dict[str, object]:
        """As plain data for `--json`; a figure that is not finite is null there, as JSON has no other word for it."""
        result = {
            "name": self.manifest.name,
            "version": self.manifest.version,
            "task": self.manifest.task.value,
            "digest": self.digest,
            "manifest": self.manifest.to_dict(),
            "components": {name: component.to_dict() for name, component in self.manifest.components.items()},
            "evidence": self.evidence.to_dict(),
            "timings": None if self.timings is None else self.timings.to_dict(),
            "bytes": None if self.contents is None else self.contents.total_size,
        }
        return {key: _finite(value) for key, value in result.items()}


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
