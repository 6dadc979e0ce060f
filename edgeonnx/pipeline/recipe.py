"""What the user asked for, as data, and the plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError
from edgeonnx.spec.manifest import Task
from edgeonnx.spec.numerics import IntegerRange
from edgeonnx.spec.paths import check_bundle_name, check_bundle_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

COMPONENT = "encoder"
DECODER = "decoder"
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

DECODER_STAGES = (
    ("load", "find the source model, check its files, load it"),
    ("export", "make the ONNX graph of the decoder, its caches included"),
    ("check", "validate the graph against the ONNX standard and the contract of decoders"),
    ("tokenize", "compare the device's text path with the source's tokenizer"),
    ("parity", "compare prompts, cached runs and greedy answers with the source model"),
    ("quantize", "make each variant, the fastest candidate first, until the gate lets one through"),
    ("speed", "measure prompts and tokens per second on this machine"),
    ("bundle", "write graphs, tensors, tokenizer, chat template, golden set and evidence"),
    ("verify", "open the bundle as a device does and replay its golden set"),
)
"""The same stages for a model that generates text."""


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


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What can be built of one kind of model.

    Attributes:
        component: Name of the component.
        recipes: Every variant by name, in order of preference.
        targets: Variants by the kind of device that a user names.
        stages: The stages of the build, each with what it does.
        optional: Variants of a target that are left out where no candidate passes.
    """

    component: str
    recipes: Mapping[str, VariantRecipe]
    targets: Mapping[str, tuple[str, ...]]
    stages: tuple[tuple[str, str], ...]
    optional: frozenset[str] = frozenset()

    def stage(self, name: str) -> tuple[str, str]:
        """A stage and what it does."""
        return next(stage for stage in self.stages if stage[0] == name)

    def path(self, recipe: VariantRecipe, file: str = MODEL_FILE) -> str:
        """Where a file of a variant lies in the bundle."""
        return f"{self.component}/{recipe.name}/{file}"


ENCODERS = Catalogue(component=COMPONENT, recipes=RECIPES, targets=TARGETS, stages=STAGES)
DECODERS = Catalogue(
    component=DECODER,
    # A step reads every weight once, so the fewer bytes, the faster: that is the order of preference.
    recipes={
        recipe.name: recipe
        for recipe in (
            _recipe("cuda-fp16", "fp16", Scheme.HALF, CUDA, 16),
            _recipe("cpu-int4", "int4", Scheme.WEIGHT_ONLY, CPU, 4),
            _recipe("cpu-int8", "int8", Scheme.WEIGHT_ONLY, CPU, 8),
            FP32,
        )
    },
    targets={"cpu": ("cpu-int4", "cpu-int8"), "cuda": ("cuda-fp16",)},
    stages=DECODER_STAGES,
    # Whether 4 bits are enough depends on the model: on how it was made more than on its size.
    optional=frozenset({"cpu-int4"}),
)


def catalogue_of(task: Task) -> Catalogue:
    """What can be built of a model for a task."""
    return DECODERS if task is Task.TEXT_GENERATION else ENCODERS


def choose_variants(
    targets: Sequence[str] = DEFAULT_TARGETS, names: Sequence[str] = (), catalogue: Catalogue = ENCODERS
) -> tuple[str, ...]:
    """The variants to build, in order of preference.

    Args:
        targets: Kinds of device.
        names: Further variants by name.
        catalogue: What there is.

    Raises:
        UsageError: There is no such target or variant.
    """
    _check_known("target", targets, catalogue.targets)
    _check_known("variant", names, catalogue.recipes)
    wanted = {FP32.name, *names, *(name for target in targets for name in catalogue.targets[target])}
    return tuple(name for name in catalogue.recipes if name in wanted)


def _check_known(kind: str, given: Sequence[str], known: Iterable[str]) -> None:
    names = dict.fromkeys(known)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UsageError(
            f"no such {kind}",
            expected=f"one of {', '.join(names)}",
            found=", ".join(unknown),
            hint="text encoders and models that generate text are built for different ones",
        )


def model_path(recipe: VariantRecipe) -> str:
    """Where a variant's graph lies in the bundle of an encoder."""
    return ENCODERS.path(recipe)


def stage_of(name: str) -> tuple[str, str]:
    """A stage of the build of an encoder, and what it does."""
    return ENCODERS.stage(name)


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
        targets: Kinds of device to build for; None: the default, or none if variants are named.
        variants: Further variants, by name.
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
    targets: tuple[str, ...] | None = None
    variants: tuple[str, ...] = ()
    texts: Path | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    search_seconds: float = 60.0
    base: Path | None = None

    def __post_init__(self) -> None:
        check_bundle_name(self.name)
        check_bundle_version(self.version)
        if self.search_seconds < 0:
            raise UsageError("the budget of the search is negative", where="--search-seconds", expected="0 or more")
        self._check_names()

    def _check_names(self) -> None:
        """Refuse early what no model has: which kind of model it is may only turn out from the source's files."""
        catalogues = (ENCODERS, DECODERS) if self.task is None else (catalogue_of(self.task),)
        targets = [name for catalogue in catalogues for name in catalogue.targets]
        variants = [name for catalogue in catalogues for name in catalogue.recipes]
        _check_known("target", self.targets or (), targets)
        _check_known("variant", self.variants, variants)

    def recipes(self, task: Task) -> tuple[VariantRecipe, ...]:
        """The recipes of the variants, in order of preference.

        Raises:
            UsageError: There is no such target or variant of a model for this task.
        """
        targets = self.targets if self.targets is not None else (() if self.variants else DEFAULT_TARGETS)
        catalogue = catalogue_of(task)
        return tuple(catalogue.recipes[name] for name in choose_variants(targets, self.variants, catalogue))

    def optional(self, task: Task) -> frozenset[str]:
        """Names of the variants that are left out where no candidate passes; one that the user named must pass."""
        return catalogue_of(task).optional.difference(self.variants)

    @property
    def target(self) -> Path:
        """The bundle's folder."""
        return self.out / f"{self.name}-{self.version}"
