"""`report`: what a finished bundle says about itself. Only its metadata is read: no weights, no onnx, no torch."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from edgeonnx.bundle import open_bundle
from edgeonnx.errors import UsageError
from edgeonnx.report.content import Report

if TYPE_CHECKING:
    from pathlib import Path


def report(path: Path) -> Report:
    """Read a bundle's report.

    Raises:
        BundleError: `path` holds no bundle, or a damaged one.
    """
    bundle = open_bundle(path)
    return Report(
        manifest=bundle.manifest,
        evidence=bundle.evidence(),
        timings=bundle.timings(),
        contents=bundle.contents,
        digest=bundle.digest,
    )


def check_output(file: Path, *, replace: bool) -> None:
    """Refuse early what `write_page` would refuse.

    Raises:
        UsageError: There is such a file already and `replace` is not set, or it is no regular file.
    """
    if os.path.lexists(file) and not file.is_file():
        raise UsageError("is not a file", where=str(file), expected="a file to replace, or none")
    if os.path.lexists(file) and not replace:
        raise UsageError("exists already", where=str(file), hint="choose another name, or give --force")


def write_page(page: bytes, file: Path, *, replace: bool = False) -> None:
    """Write a page all or nothing: beside its place first, then under its name.

    Raises:
        UsageError: `check_output` refuses the file, or it cannot be written.
    """
    check_output(file, replace=replace)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as out:
            out.write(page)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(file)
    except OSError as error:
        raise UsageError("cannot be written", where=str(file), found=error.strerror or str(error)) from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
