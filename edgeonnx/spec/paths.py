"""Names and paths that may appear in a bundle. Pure: no file system is asked.

One rule for every path that comes from outside (manifest, contents list, external data of a graph): relative, POSIX,
normal, without `..`, without what some file system reads in another way. Links are a matter of the disk and are
checked by the reader.
"""

from __future__ import annotations

import re

from edgeonnx.errors import UnsafePathError, UsageError

MAX_PATH_LENGTH = 512
MAX_PATH_DEPTH = 16

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")
_ASSET = re.compile(r"sha256:([0-9a-f]{64})((?:/.*)?)")
# Names that Windows reserves: a bundle is built or copied there, too.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def check_relative_path(path: str, *, where: str) -> str:
    """Return `path` if it is a safe relative path inside a bundle.

    Raises:
        UnsafePathError: It is empty, absolute, has `.` or `..`, a backslash, a control character, or is too long.
    """
    reason = _path_fault(path)
    if reason is not None:
        raise UnsafePathError(
            f"is not a path inside the bundle: {reason}",
            where=where,
            found=repr(path[:120]),
            expected="a relative path of letters, digits and ._+- separated by /",
        )
    return path


def _path_fault(path: str) -> str | None:
    if not path:
        return "it is empty"
    if len(path) > MAX_PATH_LENGTH:
        return f"it is longer than {MAX_PATH_LENGTH} characters"
    if path.startswith("/"):
        return "it is absolute"
    segments = path.split("/")
    if len(segments) > MAX_PATH_DEPTH:
        return f"it is deeper than {MAX_PATH_DEPTH} folders"
    for segment in segments:
        if segment in ("", ".", ".."):
            return f"it has the segment {segment!r}"
        if _SEGMENT.fullmatch(segment) is None:
            return f"the segment {segment[:60]!r} has characters outside letters, digits and ._+-"
        if _RESERVED.fullmatch(segment):
            return f"the segment {segment!r} is a reserved device name"
    return None


def split_asset_reference(reference: str, *, where: str) -> tuple[str, str]:
    """Split `sha256:<hex>[/path]` into the digest and the path inside the asset ("" for the asset itself).

    Raises:
        UnsafePathError: It is no such reference, or the path leaves the asset.
    """
    match = _ASSET.fullmatch(reference)
    if match is None:
        raise UnsafePathError(
            "is not a reference to a shared asset",
            where=where,
            expected="sha256:<64 hexadecimal digits>[/path]",
            found=repr(reference[:120]),
        )
    inner = match.group(2)[1:]
    if inner or match.group(2):
        check_relative_path(inner, where=where)
    return match.group(1), inner


def asset_directory(digest: str) -> str:
    """Where the shared asset of that digest lives, relative to the bundle."""
    return f"shared_assets/sha256-{digest}"


def check_bundle_name(name: str) -> str:
    """Return `name` if it can name a bundle: it becomes a folder, a URL segment and a metrics label.

    Raises:
        UsageError: It has other characters than lower-case letters, digits and `._-`, or is too long.
    """
    if _NAME.fullmatch(name) is None or ".." in name or _RESERVED.fullmatch(name):
        raise UsageError(
            "the bundle name cannot be used",
            where="--name",
            found=repr(name[:80]),
            expected="1 to 64 lower-case letters, digits and ._-, beginning with a letter or digit",
        )
    return name


def check_bundle_version(version: str) -> str:
    """Return `version` if it can be a bundle's version (a semantic version fits).

    Raises:
        UsageError: It has other characters than letters, digits and `.+_-`, or is too long.
    """
    if _VERSION.fullmatch(version) is None or ".." in version:
        raise UsageError(
            "the bundle version cannot be used",
            where="--version",
            found=repr(version[:80]),
            expected="1 to 64 letters, digits and .+_-, beginning with a letter or digit (1.0.0, for example)",
        )
    return version
