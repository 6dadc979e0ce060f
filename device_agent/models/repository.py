"""Which bundles can be loaded by name: those that the agent was started with, and those in the repository's folder.

A name in a request is never part of a path: it is compared with the names in the bundles' own manifests. Several
folders may hold versions of one name. The newest is the one of the highest version (`version_order`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgeonnx.bundle import identify
from edgeonnx.errors import BundleError, EdgeOnnxError, ModelNotFoundError, printable
from edgeonnx.spec.versions import version_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_FOLDERS = 1000
"""Folders of the repository that are looked at, in alphabetical order."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A folder that holds a bundle, or should.

    Attributes:
        path: The folder, without links.
        name: The model's name; the folder's, where the bundle cannot be read.
        version: Its version; empty where the bundle cannot be read.
        digest: The digest of its `contents.json` as it lies there; empty where it cannot be read.
        error: Why it cannot be read; None if it can.
    """

    path: Path
    name: str
    version: str = ""
    digest: str = ""
    error: EdgeOnnxError | None = None


def look(path: Path) -> Found:
    """What a folder says it is. Its metadata are read, nothing is verified."""
    root = Path(os.path.realpath(path))
    try:
        name, version, digest = identify(root)
    except EdgeOnnxError as error:
        return Found(path=root, name=printable(path.name), error=error)
    return Found(path=root, name=name, version=version, digest=digest)


def expect(found: Found, name: str, digest: str | None) -> Found:
    """A folder that must hold a certain bundle: under the name that is expected, with an error if it holds another one.

    Args:
        found: What the folder says it is.
        name: The model that it must be.
        digest: The digest that it must have; None: any.
    """
    if found.error is not None:
        return replace(found, name=name)
    if (found.name, found.digest) == (name, digest or found.digest):
        return found
    error = BundleError(
        "the folder holds another bundle",
        where=str(found.path),
        expected=f"{name} {digest or ''}".strip(),
        found=f"{found.name} {found.digest}",
    )
    return replace(found, name=name, error=error)


def candidates(bundles: Sequence[Path], repository: Path | None) -> list[Found]:
    """Every bundle that could be loaded: those of the start first, then the repository's folders by name.

    Hidden folders are left out: writers use them for what is not complete yet.
    """
    paths = list(bundles)
    if repository is not None:
        paths += sorted(_folders(repository))[:MAX_FOLDERS]
    return [look(path) for path in dict.fromkeys(Path(os.path.realpath(path)) for path in paths)]


def _folders(repository: Path) -> list[Path]:
    try:
        return [path for path in repository.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return []


def choose(found: Iterable[Found], name: str, version: str | None = None) -> Found:
    """The bundle to load for a name.

    Args:
        found: The candidates.
        name: The model's name.
        version: Its version; None or empty takes the newest.

    Raises:
        ModelNotFoundError: There is none of that name or version.
        BundleError: The only folder of that name cannot be read, or two folders hold the same version.
    """
    found = list(found)
    named = [each for each in found if each.name == name and each.error is None]
    if not named:
        broken = next((each for each in found if each.name == name and each.error is not None), None)
        if broken is not None and broken.error is not None:
            raise broken.error
        names = dict.fromkeys(each.name for each in found if each.error is None)
        raise ModelNotFoundError(
            "no such model in the repository",
            where="model",
            expected=" or ".join(map(repr, names)) or "a bundle in the repository's folder",
            found=repr(name[:80]),
        )
    if version:
        fitting = [each for each in named if each.version == version]
        if not fitting:
            versions = sorted((each.version for each in named), key=version_order)
            raise ModelNotFoundError(
                "no such version of the model in the repository",
                where="version",
                expected=" or ".join(map(repr, versions)),
                found=repr(version[:80]),
            )
    else:
        newest = max(named, key=lambda each: version_order(each.version)).version
        fitting = [each for each in named if each.version == newest]
    if len({each.digest for each in fitting}) > 1:
        raise BundleError(
            "several folders hold different bundles of this name and version",
            where=f"{name} {fitting[0].version}",
            found=", ".join(str(each.path) for each in fitting),
            hint="remove all but one, or give the bundles different versions",
        )
    return fitting[0]
