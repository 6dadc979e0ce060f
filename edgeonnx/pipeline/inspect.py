"""`inspect`: what a bundle or an .onnx file holds, without running or trusting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import NotABundleError, RuntimeUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.evidence import Evidence
    from edgeonnx.validate.inspection import GraphFacts


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found.

    Attributes:
        path: What was inspected.
        graphs: Facts by name: `<component>/<variant>` in a bundle, the file's name otherwise. Variants that this copy
            of the bundle does not hold have none.
        bundle: The bundle, or None for a single graph.
        evidence: The bundle's evidence, or None.
    """

    path: Path
    graphs: dict[str, GraphFacts]
    bundle: Bundle | None = None
    evidence: Evidence | None = None

    def to_dict(self) -> dict[str, object]:
        """As plain data for `--json`."""
        result: dict[str, object] = {
            "path": str(self.path),
            "graphs": {name: facts.to_dict() for name, facts in self.graphs.items()},
        }
        if self.bundle is not None and self.evidence is not None:
            result["digest"] = self.bundle.digest
            result["files"] = len(self.bundle.contents.files)
            result["absent_variants"] = sorted(self.bundle.absent)
            result["bytes"] = self.bundle.contents.total_size
            result["manifest"] = self.bundle.manifest.to_dict()
            result["components"] = {
                name: component.to_dict() for name, component in self.bundle.manifest.components.items()
            }
            result["evidence"] = self.evidence.to_dict()
        return result


def inspect(path: Path) -> Inspection:
    """Inspect a bundle or an .onnx file.

    Raises:
        NotABundleError: There is nothing of either kind.
        BundleError: The bundle is damaged.
        ValidationError: A graph is not ONNX.
    """
    try:
        from edgeonnx.validate.inspection import inspect_graph
    except ImportError as error:
        raise RuntimeUnavailableError(
            "onnx cannot be imported", found=str(error), hint="pip install 'edgeonnx[host]'"
        ) from None
    if path.is_file():
        return Inspection(path=path, graphs={path.name: inspect_graph(path)})
    if not path.exists():
        raise NotABundleError("there is no such file or folder", where=str(path))
    bundle = open_bundle(path)
    graphs = {
        f"{component.name}/{variant.name}": inspect_graph(bundle.model_path(component.name, variant))
        for component in bundle.manifest.components.values()
        for variant in component.variants
        if variant.name not in bundle.absent_variants(component.name)
    }
    return Inspection(path=path, graphs=graphs, bundle=bundle, evidence=bundle.evidence())
