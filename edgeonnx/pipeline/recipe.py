"""What the user asked for, as data, and the plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.spec.paths import check_bundle_name, check_bundle_version
from edgeonnx.spec.report import Threshold

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.spec.manifest import Task

COMPONENT = "encoder"
MODEL_FILE = "model.onnx"
TOKENIZER_FILE = "tokenizer.json"

STAGES = (
    ("load", "find the source model, check its files, load it"),
    ("export", "trace it to an ONNX graph, pooling and scores included"),
    ("check", "validate the graph against the ONNX standard and its task"),
    ("tokenize", "compare the device's text path with the source's tokenizer"),
    ("parity", "compare the graph with the source model over batches and paddings"),
    ("bundle", "write graph, tensors, tokenizer, golden set and evidence"),
    ("verify", "open the bundle as a device does and replay its golden set"),
)


@dataclass(frozen=True, kw_only=True)
class VariantRecipe:
    """How one variant is made and what it must reach; recipes are data.

    Attributes:
        name: Name of the variant, and of its folder.
        precision: `fp32`, ...
        device: `cpu`, `gpu` or `npu`.
        provider: Execution provider that it is made for.
        golden: What a device must reach when it replays the golden set.
    """

    name: str
    precision: str
    device: str
    provider: str
    golden: tuple[Threshold, ...]


FP32 = VariantRecipe(
    name="cpu-fp32",
    precision="fp32",
    device="cpu",
    provider="CPUExecutionProvider",
    # Ten times what the build host must reach: other instruction sets and libraries round in other places.
    golden=(Threshold(metric="scaled_diff", at_most=1e-3),),
)


def model_path(recipe: VariantRecipe) -> str:
    """Where a variant's graph lies in the bundle."""
    return f"{COMPONENT}/{recipe.name}/{MODEL_FILE}"


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
