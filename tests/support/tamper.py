"""Changing a finished bundle as an attacker or a bad disk would, with or without a contents.json that agrees."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeonnx.spec.partial import PARTIAL_FILE, Partial

CONTENTS = "contents.json"


def copy_of(bundle: Path, folder: Path) -> Path:
    """A private copy of a bundle."""
    return Path(shutil.copytree(bundle, folder / bundle.name, symlinks=True))


def edit_json(bundle: Path, file: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file of a bundle in place; `change` may return a new document."""
    document = json.loads((bundle / file).read_bytes())
    changed = change(document)
    (bundle / file).write_text(json.dumps(document if changed is None else changed), encoding="utf-8")


def relist(bundle: Path) -> None:
    """Make contents.json agree with the files, so that only what the metadata says can be wrong."""
    files = [
        {
            "path": path.relative_to(bundle).as_posix(),
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(bundle.rglob("*"))
        if path.is_file() and path.name != CONTENTS
    ]
    (bundle / CONTENTS).write_text(json.dumps({"schema_version": "1.0", "files": files}), encoding="utf-8")


def leave_out(bundle: Path, *names: str) -> Path:
    """Remove variants (`<component>/<variant>`) as a device does that cannot use them, and say so in `partial.json`."""
    for name in names:
        shutil.rmtree(bundle / name)
    (bundle / PARTIAL_FILE).write_bytes(Partial(absent=frozenset(names)).to_bytes())
    return bundle


def replace_asset(bundle: Path, holding: str, change: Callable[[Path], None]) -> None:
    """Change the shared asset that holds a file of that name, and give it the digest and references that fit.

    Args:
        bundle: The bundle.
        holding: Name of a file in the asset.
        change: Called with a copy of the asset's folder.
    """
    folder = next((bundle / "shared_assets").glob(f"*/{holding}")).parent
    before = folder.name.removeprefix("sha256-")
    change(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = "".join(
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(folder).as_posix()}\n" for p in files
    )
    after = hashlib.sha256(lines.encode()).hexdigest()
    folder.rename(folder.parent / f"sha256-{after}")
    for file in (bundle / "manifest.json", *bundle.glob("*/component.json")):
        file.write_text(file.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
    relist(bundle)
