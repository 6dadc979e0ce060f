"""What the user asked for, as data, and the plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.spec.manifest import Task

COMPONENT = "encoder"
VARIANT = "cpu-fp32"

STAGES = (
    ("load", "find the source model, check its files, load it"),
    ("export", "trace it to an ONNX graph, pooling and scores included"),
    ("check", "validate the graph against the ONNX standard and its task"),
    ("tokenize", "compare the device's text path with the source's tokenizer"),
    ("parity", "compare the graph with the source model over batches and paddings"),
    ("bundle", "write graph, tensors, tokenizer, golden set and evidence"),
    ("verify", "open the bundle as a device does and replay its golden set"),
)


def stage_of(name: str) -> tuple[str, str]:
    """A stage and what it does."""
    return next(stage for stage in STAGES if stage[0] == name)


@dataclass(frozen=True, kw_only=True)
class PackageRequest:
    """One call of `edgeonnx package`.

    Attributes:
        source: Directory or hub id.
        name: Name of the bundle.
        version: Version of the bundle.
        out: Folder in which `<name>-<version>` is made.
        task: The task, or None to take what the source's files say.
        max_length: Longest row in tokens, or None for the source's own.
        replace: Replace an existing bundle of that name and version.
    """

    source: str
    name: str
    version: str
    out: Path
    task: Task | None = None
    max_length: int | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        check_bundle_name(self.name)
        check_bundle_version(self.version)

    @property
    def target(self) -> Path:
        """The bundle's folder."""
        return self.out / f"{self.name}-{self.version}"
