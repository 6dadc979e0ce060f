"""The end of every build: write the bundle, open it as a device does, add what no digest covers, give it its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeonnx.pipeline.verify import verify
from edgeonnx.report.content import Report
from edgeonnx.report.html import render
from edgeonnx.spec.contents import REPORT_FILE, canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.timings import TIMINGS_FILE, Timings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgeonnx.bundle import BundleWriter
    from edgeonnx.pipeline.progress import StageTimer
    from edgeonnx.pipeline.recipe import Catalogue
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.spec.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class PackageResult:
    """What `package` made.

    Attributes:
        path: The bundle.
        digest: Its digest.
        manifest: Its metadata.
        evidence: What was measured.
        timings: How fast the variants ran here.
        size: Bytes of all files.
        seconds: How long each stage took.
    """

    path: Path
    digest: str
    manifest: Manifest
    evidence: Evidence
    timings: Timings
    size: int
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "path": str(self.path),
            "digest": self.digest,
            "bytes": self.size,
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
            "manifest": self.manifest.to_dict(),
            "evidence": self.evidence.to_dict(),
            "timings": self.timings.to_dict(),
        }


def finish(
    writer: BundleWriter,
    target: Path,
    catalogue: Catalogue,
    timings: Timings,
    timer: StageTimer,
    assemble: Callable[[], tuple[Manifest, Evidence]],
) -> PackageResult:
    """Write, verify and publish a bundle.

    Args:
        writer: Where the bundle is written.
        target: The bundle's folder.
        catalogue: The stages, in words.
        timings: How fast the variants ran.
        timer: Runs the stages.
        assemble: Writes the files of the variants and gives the metadata.

    Raises:
        EdgeOnnxError: The bundle cannot be written, or does not keep what it promises; nothing was published.
    """
    with timer.stage(*catalogue.stage("bundle")) as stage:
        manifest, evidence = assemble()
        contents = writer.finish(manifest, evidence)
        stage.result = f"{len(contents.files)} files, {contents.total_size / 1e6:.1f} MB"
    with timer.stage(*catalogue.stage("verify")) as stage:
        report = verify(writer.staging)
        worst = max(item.comparison.scaled_diff for item in report.replays)
        stage.result = f"every byte read back, golden set of {len(report.replays)} variants within {worst:.1e}"
    timings = _rounded(replace(timings, stages=timer.seconds))
    writer.add_unsealed(TIMINGS_FILE, canonical_json(timings.to_dict()))
    page = Report(manifest=manifest, evidence=evidence, timings=timings, contents=contents, digest=contents.digest)
    writer.add_unsealed(REPORT_FILE, render(page))
    writer.publish()
    return PackageResult(
        path=target,
        digest=contents.digest,
        manifest=manifest,
        evidence=evidence,
        timings=timings,
        size=contents.total_size,
        seconds=timer.seconds,
    )


def _rounded(timings: Timings) -> Timings:
    """The timings as their file has them, so that a report drawn later shows the same figures."""
    return Timings.from_dict(parse_document(canonical_json(timings.to_dict()), TIMINGS_FILE))
