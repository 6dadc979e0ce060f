"""`partial.json`: which variants of a bundle are not on this device. Pure.

On a thin link a box without a GPU must not fetch the variants for one. What it holds is still that bundle, with that
digest: `contents.json` lists every file, and `partial.json` says which of them may be missing here. It belongs to the
copy and not to the bundle, so no digest covers it. It can only make variants unusable; it vouches for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeonnx.errors import ManifestError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document
from edgeonnx.spec.paths import check_relative_path

if TYPE_CHECKING:
    from edgeonnx.spec.manifest import Manifest

PARTIAL_FILE = "partial.json"
PARTIAL_SCHEMA = "1.0"


def variant_path(component: str, variant: str) -> str:
    """How `partial.json` names a variant: `<component>/<variant>`, which is also the folder that holds its graph."""
    return f"{component}/{variant}"


@dataclass(frozen=True, kw_only=True)
class Partial:
    """What is not here.

    Attributes:
        absent: The variants, each as `<component>/<variant>`.
    """

    absent: frozenset[str]

    @classmethod
    def from_bytes(cls, data: bytes) -> Partial:
        """Read a `partial.json`.

        Raises:
            ManifestError, SchemaVersionError: It breaks the schema, or is of another version.
        """
        node = parse_document(data, PARTIAL_FILE).version("schema_version", known=PARTIAL_SCHEMA)
        node.only(("schema_version", "absent"))
        absent: set[str] = set()
        for item in node.required("absent").items():
            name = check_relative_path(item.typed(str), where=item.where)
            if name in absent:
                item.fail("occurs twice")
            absent.add(name)
        return cls(absent=frozenset(absent))

    def to_bytes(self) -> bytes:
        """The canonical bytes of `partial.json`."""
        return canonical_json({"schema_version": PARTIAL_SCHEMA, "absent": sorted(self.absent)})

    def check(self, manifest: Manifest) -> None:
        """Compare it with the manifest.

        Raises:
            ManifestError: It names no variant, one that the bundle does not have, or all of a component.
        """
        every = {
            component.name: {variant_path(component.name, variant.name) for variant in component.variants}
            for component in manifest.components.values()
        }
        unknown = self.absent.difference(*every.values())
        if unknown:
            raise ManifestError(
                "names a variant that the bundle does not have", where=PARTIAL_FILE, found=repr(min(unknown)[:120])
            )
        empty = [name for name, variants in every.items() if variants <= self.absent]
        if empty:
            raise ManifestError(
                "leaves no variant", where=PARTIAL_FILE, expected=f"at least one of {empty[0]}", found="all absent"
            )
        if not self.absent:
            raise ManifestError("names no variant", where=PARTIAL_FILE, hint="a whole bundle has no partial.json")
