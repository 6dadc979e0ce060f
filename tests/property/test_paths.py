"""Any text as a path either stays below the bundle's root or is refused."""

from __future__ import annotations

import ntpath
import os
import posixpath

from hypothesis import example, given
from hypothesis import strategies as st

from edgeonnx.errors import UnsafePathError, UsageError
from edgeonnx.spec.paths import (
    asset_directory,
    check_bundle_name,
    check_bundle_version,
    check_relative_path,
    split_asset_reference,
)
from tests.support.outcome import refusal

PIECES = st.sampled_from(
    ["..", ".", "", "/", "\\", "a", "b.c", "C:", "~", "\0", "\n", "con", "%2e", "sha256:" + "0" * 64]
)
PATHS = st.one_of(st.text(), st.lists(PIECES, max_size=8).map("/".join), st.lists(PIECES, max_size=8).map("".join))


def stays_below(path: str, module: object) -> bool:
    join, normpath, isabs = (getattr(module, name) for name in ("join", "normpath", "isabs"))
    root = "/r" if module is posixpath else "C:\\r"
    joined = normpath(join(root, path))
    return not isabs(path) and joined.startswith(root + ("/" if module is posixpath else "\\"))


@given(PATHS)
@example("a/" * 15 + "a")
@example("a/../../b")
def test_an_accepted_path_stays_below_the_root_on_every_system(path: str) -> None:
    error = refusal(lambda: check_relative_path(path, where="w"))
    if error is not None:
        assert isinstance(error, UnsafePathError)
        assert error.where == "w"
        return
    assert posixpath.normpath(path) == path
    assert stays_below(path, posixpath)
    assert stays_below(path, ntpath)
    assert os.fsencode(path).decode("ascii") == path


@given(PATHS.map(lambda path: f"sha256:{'0' * 64}{path}") | PATHS)
def test_an_accepted_reference_stays_below_its_asset(reference: str) -> None:
    try:
        digest, inner = split_asset_reference(reference, where="w")
    except UnsafePathError:
        return
    assert reference == f"sha256:{digest}" + (f"/{inner}" if inner else "")
    assert stays_below(f"{asset_directory(digest)}/{inner}".rstrip("/"), posixpath)


@given(PATHS)
def test_an_accepted_name_is_one_folder_on_every_system(text: str) -> None:
    for check in (check_bundle_name, check_bundle_version):
        try:
            accepted = check(text)
        except UsageError:
            continue
        assert posixpath.basename(accepted) == ntpath.basename(accepted) == text
        assert text not in (".", "..")
        assert text.isprintable()
