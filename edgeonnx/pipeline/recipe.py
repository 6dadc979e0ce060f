"""What the user asked for, as data, and the plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
    ("quantize", "calibrate, make each variant, refine it until the gate lets it through"),
    ("speed", "measure the variants' throughput and latency on this machine"),
    ("bundle", "write graphs, tensors, tokenizer, golden set and evidence"),
    ("verify", "open the bundle as a device does and replay its golden set"),
)


class Scheme(Enum):
    """How a variant's numbers are made smaller."""

    FLOAT = "float"
    ROWWISE = "row-wise dynamic int8"
    WEIGHT_ONLY = "weight-only, in blocks (MatMulNBits)"
    STATIC = "static int8 (QDQ)"
    BATCH_DYNAMIC = "dynamic int8 a batch (ONNX Runtime's quantize_dynamic)"
    HALF = "half precision"


PLANNED = (Scheme.ROWWISE, Scheme.STATIC)
"""Schemes that decide something about a model by calibration; the others follow from its weights alone."""


@dataclass(frozen=True, kw_only=True)
class VariantRecipe:
    """How one variant is made; recipes are data.

    Attributes:
        name: Name of the variant, and of its folder.
        precision: `fp32`, `int8`, ...: what the gate's default thresholds go by.
        scheme: How it is made.
        device: `cpu`, `gpu` or `npu`.
        provider: Execution provider that it is made for.
        weight_bits: Bits of a weight.
        integer: Range of its integer arithmetic, for CPUs that saturate; None if it has none.
    """

    name: str
    precision: str
    scheme: Scheme
    device: str
    provider: str
    weight_bits: int
    integer: IntegerRange | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether it is made for the provider that the build host measures with."""
        return self.provider == CPU


CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
FULL_RANGE = IntegerRange(activation_max=255, weight_max=127)
SAFE_RANGE = IntegerRange(activation_max=255, weight_max=64)


def _recipe(
    name: str, precision: str, scheme: Scheme, provider: str, bits: int, integer: IntegerRange | None = None
) -> VariantRecipe:
    device = "cpu" if provider == CPU else "gpu"
    return VariantRecipe(
        name=name,
        precision=precision,
        scheme=scheme,
        device=device,
        provider=provider,
        weight_bits=bits,
        integer=integer,
    )


FP32 = _recipe("cpu-fp32", "fp32", Scheme.FLOAT, CPU, 32)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        # In order of preference: of the variants that a device can run, it takes the first.
        _recipe("tensorrt-int8", "int8", Scheme.STATIC, TENSORRT, 8),
        _recipe("tensorrt-fp16", "fp16", Scheme.HALF, TENSORRT, 16),
        _recipe("cuda-fp16", "fp16", Scheme.HALF, CUDA, 16),
        _recipe("cuda-bf16", "bf16", Scheme.HALF, CUDA, 16),
        _recipe("cpu-int8", "int8", Scheme.ROWWISE, CPU, 8, FULL_RANGE),
        _recipe("cpu-int8-avx2", "int8", Scheme.ROWWISE, CPU, 7, SAFE_RANGE),
        _recipe("cpu-int8-batch", "int8", Scheme.BATCH_DYNAMIC, CPU, 8, FULL_RANGE),
        _recipe("cpu-int8-weights", "int8", Scheme.WEIGHT_ONLY, CPU, 8),
        _recipe("cpu-int4-weights", "int4", Scheme.WEIGHT_ONLY, CPU, 4),
        FP32,
    )
}
"""Every variant that can be built, in order of preference."""

TARGETS = {
    "cpu": ("cpu-int8",),
    "avx2": ("cpu-int8-avx2",),
    "cuda": ("cuda-fp16",),
    "tensorrt": ("tensorrt-int8", "tensorrt-fp16"),
}
"""Variants by the kind of device that a user names. `cpu-fp32`, which runs everywhere, is always built as well."""
DEFAULT_TARGETS = ("cpu",)


def choose_variants(targets: Sequence[str] = DEFAULT_TARGETS, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The variants to build, in order of preference.

    Args:
        targets: Kinds of device.
        names: Further variants by name.

    Raises:
        UsageError: There is no such target or variant.
    """
    for kind, given, known in (("target", targets, TARGETS), ("variant", names, RECIPES)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f"no such {kind}", expected=f"one of {', '.join(known)}", found=", ".join(unknown))
    wanted = {FP32.name, *names, *(name for target in targets for name in TARGETS[target])}
    return tuple(name for name in RECIPES if name in wanted)


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
        variants: Names of the variants (`choose_variants`).
        texts: The user's own texts to measure with, or None for those that ship with edgeonnx.
        thresholds: Bounds by metric that replace the gate's defaults for every variant but fp32.
        search_seconds: How long the refinement of one variant may take.
        base: The bundle of an earlier version, whose names, recipe and scales are kept where the gate allows; or None.
    """

    source: str
    name: str
    version: str
    out: Path
    task: Task | None = None
    max_length: int | None = None
    replace: bool = False
    variants: tuple[str, ...] = field(default_factory=choose_variants)
    texts: Path | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    search_seconds: float = 60.0
    base: Path | None = None

    def __post_init__(self) -> None:
        check_bundle_name(self.name)
        check_bundle_version(self.version)
        if self.search_seconds < 0:
            raise UsageError("the budget of the search is negative", where="--search-seconds", expected="0 or more")

    @property
    def recipes(self) -> tuple[VariantRecipe, ...]:
        """The recipes of the variants, in order of preference."""
        return tuple(RECIPES[name] for name in self.variants)

    @property
    def target(self) -> Path:
        """The bundle's folder."""
        return self.out / f"{self.name}-{self.version}"
