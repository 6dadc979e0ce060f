"""`package --base`: a bundle of an earlier version, whose decisions the next one repeats so that few bytes change.

The base tells how each of its variants was quantized (`edgeonnx.quantize.earlier`) and how its tensors are called. A
variant is first made that way; only if the gate refuses it, it is made as without a base. Either way the result is
compared with the base, and the evidence says how much of it is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import onnx

from edgeonnx.blobs.codec import compress
from edgeonnx.bundle import open_bundle, verify_files
from edgeonnx.errors import UsageError
from edgeonnx.model.graph import StoredGraph
from edgeonnx.pipeline.names import keep_names
from edgeonnx.pipeline.recipe import FP32, PLANNED, Scheme
from edgeonnx.quantize.earlier import SCALE, read_constants, read_plan
from edgeonnx.spec.parse import Node

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edgeonnx.bundle import Bundle
    from edgeonnx.pipeline.recipe import VariantRecipe
    from edgeonnx.quantize.earlier import EarlierPlan
    from edgeonnx.spec.manifest import Task, Variant

    Constants = Mapping[str, NDArray[np.generic]]

SHOWN_TENSORS = 20
ESTIMATE_LEVEL = 6
"""zstd's level for the estimate of what travels. For a light fine-tune it is about a quarter above what publishing, at
level 19, comes to, and takes a second or two."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What of a variant the base does not hold.

    Attributes:
        tensors: Number of the variant's external tensors.
        tensor_bytes: Their bytes.
        changed: Names of those that the base does not hold.
        scales: Number of weight scales.
        new_scales: Number of those that differ from the base's.
        wire_bytes: About what a device with the base fetches for the tensors: compressed, or as compressed differences.
    """

    tensors: int
    tensor_bytes: int
    changed: tuple[str, ...]
    scales: int
    new_scales: int
    wire_bytes: int

    def to_dict(self) -> dict[str, object]:
        """For the evidence. Of many tensors only the first names are told, so that the evidence stays small."""
        shown = list(self.changed[:SHOWN_TENSORS])
        more = len(self.changed) - len(shown)
        return {
            "tensors": self.tensors,
            "changed_tensors": len(self.changed),
            "changed": [*shown, f"and {more} more"] if more else shown,
            "weight_scales": self.scales,
            "new_weight_scales": self.new_scales,
            "wire_bytes": self.wire_bytes,
        }

    def __str__(self) -> str:
        """In a few words."""
        scales = f"{self.new_scales} of {self.scales} weight scales new, " if self.scales else ""
        return (
            f"{scales}{len(self.changed)} of {self.tensors} tensors changed, about {self.wire_bytes / 1e6:.1f} MB of "
            f"{self.tensor_bytes / 1e6:.1f} MB travel"
        )


@dataclass(frozen=True, kw_only=True)
class Base:
    """A bundle that a build follows.

    Attributes:
        bundle: The bundle, every byte of it verified.
    """

    bundle: Bundle

    @property
    def identity(self) -> str:
        """Name and version."""
        return f"{self.bundle.manifest.name} {self.bundle.manifest.version}"

    def to_dict(self) -> dict[str, object]:
        """For the evidence: which bundle it is."""
        manifest = self.bundle.manifest
        return {"name": manifest.name, "version": manifest.version, "digest": self.bundle.digest}

    @cached_property
    def exact(self) -> StoredGraph:
        """Its graph in float."""
        return self.graph(self._required(FP32))

    def variant(self, recipe: VariantRecipe) -> Variant | None:
        """Its variant of that name, if it was made in the same way."""
        variants = self.bundle.manifest.entry_component.variants
        return next(
            (
                item
                for item in variants
                if item.name == recipe.name and item.recipe.get("scheme") == recipe.scheme.value
            ),
            None,
        )

    def _required(self, recipe: VariantRecipe) -> Variant:
        found = self.variant(recipe)
        if found is None:
            raise UsageError(
                f"the base has no variant {recipe.name}, from which its decisions are read",
                where=str(self.bundle.root),
                hint="give a bundle that `edgeonnx package` wrote, or leave --base out",
            )
        return found

    def graph(self, variant: Variant) -> StoredGraph:
        """A variant's graph as the stages of the build host hand it on."""
        component, folder = self.bundle.manifest.entry_component, self.bundle.tensors_path(variant)
        data = self.bundle.model_path(component.name, variant).read_bytes()
        model = onnx.ModelProto.FromString(data)
        entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
        names = sorted({entry.value for entry in entries if entry.key == "location"})
        return StoredGraph(
            model=data,
            tensors={} if folder is None else {name: (folder / name).read_bytes() for name in names},
            signature=component.signature,
            opset=next(item.version for item in model.opset_import if item.domain == ""),
            node_count=len(model.graph.node),
            domains=tuple(sorted(item.domain for item in model.opset_import if item.domain)),
        )

    def name(self, graph: StoredGraph) -> StoredGraph:
        """A float graph of the same model with this bundle's names for its tensors.

        Raises:
            UsageError: The two have no weight in common, by name and shape.
        """
        named = keep_names(graph, self.exact)
        before, after = read_constants(self.exact), read_constants(named)
        weights = {name: array for name, array in after.items() if array.dtype == np.float32 and array.ndim > 1}
        if not any(_alike(before, array, name) for name, array in weights.items()):
            raise UsageError(
                "the base has no weight in common with this model",
                where=str(self.bundle.root),
                expected="a model of the same architecture and sizes",
                hint="give a bundle of an earlier version of this model, or leave --base out",
            )
        return named

    def plan_of(self, recipe: VariantRecipe) -> EarlierPlan | None:
        """How its variant was quantized; None if it has none, or nothing was decided about it."""
        variant = self.variant(recipe)
        if variant is None or recipe.scheme not in PLANNED:
            return None
        return read_plan(_recipe_of(variant), self.graph(variant), self.exact)

    def expected(self, recipe: VariantRecipe) -> str:
        """What a build would keep of it, from its metadata alone."""
        variant = self.variant(recipe)
        if variant is None:
            return "nothing to keep: the base has no such variant"
        if recipe.scheme not in PLANNED:
            return "tensor names; the rest follows from the weights"
        node = _recipe_of(variant)
        groups = list(node.required("groups").items())
        migrated = sum(group.child("strength") is not None for group in groups)
        kept = node.child("kept")
        left = 0 if kept is None else len(list(kept.items()))
        scales = "and weight scales" if recipe.scheme is Scheme.ROWWISE else "but not weight scales"
        return f"{len(groups)} groups ({migrated} with migration factors, {left} kept in fp32), names {scales}"

    def compare(self, recipe: VariantRecipe, graph: StoredGraph) -> Changes:
        """Compare a finished variant with what the base holds."""
        variant = self.variant(recipe)
        before = {} if variant is None else read_constants(self.graph(variant))
        return compare(before, read_constants(graph), graph, {entry.sha256 for entry in self.bundle.contents.files})


def _recipe_of(variant: Variant) -> Node:
    return Node(value=variant.recipe, file="component.json", path=f"variants.{variant.name}.recipe")


def open_base(path: Path, *, task: Task, model_type: str) -> Base:
    """Open and verify a base.

    Args:
        path: The bundle's folder.
        task: The task of the model that is to be packaged.
        model_type: Its family (`bert`).

    Raises:
        BundleError: It is no bundle, or a damaged one.
        UsageError: It is a bundle of another kind of model.
    """
    bundle = open_bundle(path)
    verify_files(bundle)
    family = str(bundle.evidence().source.get("model_type", "unknown"))
    expected, found = f"{model_type}, task {task.value}", f"{family}, task {bundle.manifest.task.value}"
    if expected != found:
        raise UsageError(
            "the base is a bundle of another kind of model",
            where=f"--base {path}",
            expected=expected,
            found=found,
            hint="give a bundle of an earlier version of this model, or leave --base out",
        )
    base = Base(bundle=bundle)
    base._required(FP32)
    return base


def compare(before: Constants, after: Constants, graph: StoredGraph, held: set[str]) -> Changes:
    """What of a graph a device lacks that has an earlier one.

    Args:
        before: The earlier graph's constants by name.
        after: The constants of `graph` by name.
        graph: The graph.
        held: Digests of all contents that the device has.
    """
    external = _external(onnx.ModelProto.FromString(graph.model))
    changed = [name for name, digest in external.items() if digest not in held]
    scales = {name: array for name, array in after.items() if name.endswith(SCALE)}
    total = sum(array.size for array in scales.values())
    kept = sum(int((array == before[name]).sum()) for name, array in scales.items() if _alike(before, array, name))
    return Changes(
        tensors=len(external),
        tensor_bytes=graph.tensor_bytes,
        changed=tuple(changed),
        scales=total,
        new_scales=total - kept,
        wire_bytes=sum(_wire_bytes(before, after[name], name) for name in changed),
    )


def _external(model: onnx.ModelProto) -> dict[str, str]:
    """The file of each external tensor of a graph, by the tensor's name."""
    return {
        tensor.name: entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _alike(before: Constants, array: NDArray[np.generic], name: str) -> bool:
    """Whether the earlier graph had a tensor of this name, type and shape."""
    old = before.get(name)
    return old is not None and old.dtype == array.dtype and old.shape == array.shape


def _wire_bytes(before: Constants, array: NDArray[np.generic], name: str) -> int:
    """About what a tensor takes on the wire: compressed, or its difference to the earlier one of its name."""
    new = np.frombuffer(array.tobytes(), np.uint8).reshape(-1, array.dtype.itemsize)
    sizes = [len(compress(new.tobytes(), ESTIMATE_LEVEL))]
    if _alike(before, array, name):
        old = np.frombuffer(before[name].tobytes(), np.uint8).reshape(new.shape)
        apart = new - old if array.dtype.itemsize == 1 else np.ascontiguousarray((new ^ old).T)
        sizes.append(len(compress(apart.tobytes(), ESTIMATE_LEVEL)))
    return min(sizes)
