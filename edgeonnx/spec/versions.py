"""The order of versions: which of two releases is the newer one. Pure."""

from __future__ import annotations

import re

_PARTS = re.compile(r"[0-9]+|[A-Za-z]+")


def version_order(version: str) -> tuple[tuple[tuple[int, int, str], ...], int, tuple[tuple[int, int, str], ...], str]:
    """A key that sorts versions from the oldest to the newest.

    Semantic versions sort as their specification says (https://semver.org, section 11): numbers as numbers and before
    words, a pre-release (`-rc.1`) before its release, a longer version after its beginning. Beyond it, words with
    digits in them are cut (`rc9` before `rc10`), a leading `v` is left out, and build metadata (`+...`) decides
    between versions that are equal otherwise.
    """
    core, _, build = version.removeprefix("v").partition("+")
    release, dash, pre = core.partition("-")
    return _parts(release), 0 if dash else 1, _parts(pre), build


def _parts(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in _PARTS.findall(text))
