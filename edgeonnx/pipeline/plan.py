"""What `package` would do: found out from the source's files alone, without loading the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.bundle.writer import check_target
from edgeonnx.errors import RuntimeUnavailableError, UsageError
from edgeonnx.pipeline.recipe import PackageRequest, catalogue_of
from edgeonnx.spec.manifest import Task

if TYPE_CHECKING:
    from edgeonnx.export.source import Source
    from edgeonnx.export.tasks import TaskPlan
    from edgeonnx.pipeline.base import Base
    from edgeonnx.pipeline.recipe import VariantRecipe


@dataclass(frozen=True, kw_only=True)
class PackagePlan:
    """What `package` would do, found out from the source's files alone.

    Attributes:
        request: What was asked for.
        source: The source model.
        plan: Its task.
        base: The bundle that the build would follow, or None.
    """

    request: PackageRequest
    source: Source
    plan: TaskPlan
    base: Base | None = None

    @property
    def recipes(self) -> tuple[VariantRecipe, ...]:
        """What would be built, in order of preference."""
        return self.request.recipes(self.plan.task)

    @property
    def stages(self) -> tuple[tuple[str, str], ...]:
        """The stages of the build, each with what it does."""
        return catalogue_of(self.plan.task).stages

    def facts(self) -> dict[str, str]:
        """For people."""
        source = self.source
        rows = {
            "source": f"{source.identity} ({source.architecture or source.model_type})",
            "weights": ", ".join(source.weights),
            "task": self.plan.task.value,
            "bundle": str(self.request.target),
            "variants": ", ".join(recipe.name for recipe in self.recipes),
        }
        head = self.plan.embedding
        if head is not None:
            steps = [f"{' + '.join(head.pooling)} pooling"]
            steps += [layer if isinstance(layer, str) else f"dense {layer.out_features}" for layer in head.layers]
            steps += [] if head.keep is None else [f"first {head.keep} elements"]
            rows["in the graph"] = " -> ".join(steps)
        if self.plan.labels:
            rows["labels"] = ", ".join(self.plan.labels)
        if self.base is not None:
            rows["base"] = f"{self.base.identity}, sha256:{self.base.bundle.digest}"
            rows.update({f"{recipe.name} keeps": self.base.expected(recipe) for recipe in self.recipes})
        return rows

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {"plan": self.facts(), "stages": [{"stage": name, "about": about} for name, about in self.stages]}


def plan(request: PackageRequest) -> PackagePlan:
    """Find and check the source, decide the task; load, export and write nothing.

    Raises:
        EdgeOnnxError: As `package` raises before it loads the model.
    """
    check_target(request.target, replace=request.replace)
    source, decided = plan_source(request)
    request.recipes(decided.task)
    return PackagePlan(request=request, source=source, plan=decided, base=plan_base(request, source, decided))


def plan_base(request: PackageRequest, source: Source, decided: TaskPlan) -> Base | None:
    """The bundle that the build follows, opened, verified, and of the same kind of model; None if there is none.

    Raises:
        BundleError: It is no bundle, or a damaged one.
        UsageError: It is a bundle of another kind of model, or no base is of use for this one.
        RuntimeUnavailableError: A library of the build host is missing.
    """
    if request.base is None:
        return None
    if decided.task is Task.TEXT_GENERATION:
        raise UsageError(
            "a model that generates text needs no base",
            where="--base",
            hint="its variants follow from its weights alone: tensors that did not change are shared without it",
        )
    try:
        from edgeonnx.pipeline.base import open_base
    except ImportError as error:
        raise missing_library(error) from None
    return open_base(request.base, task=decided.task, model_type=source.model_type)


def plan_source(request: PackageRequest) -> tuple[Source, TaskPlan]:
    """The source and its task, from the files alone; torch is not imported for it.

    Raises:
        SourceError, UsageError: The source cannot be used, or its task is not clear.
        RuntimeUnavailableError: A library of the build host is missing.
    """
    try:
        from edgeonnx.export.source import locate
        from edgeonnx.export.tasks import plan_task

        source = locate(request.source)
    except ImportError as error:
        raise missing_library(error) from None
    return source, plan_task(source, request.task)


def missing_library(error: ImportError) -> RuntimeUnavailableError:
    """The error for a library that the build host lacks."""
    return RuntimeUnavailableError(
        "a library of the build host cannot be imported", found=str(error), hint="pip install 'edgeonnx[host]'"
    )
