"""Staging: its pure rules; what it does to a device is told in `test_updater.py` and the attacks."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from device_agent.slots.store import Store
from device_agent.update.install.staging import Limits, check_room, not_both
from edgeonnx.errors import NoSpaceError
from edgeonnx.spec.contents import FileEntry


def entries(*sizes: int) -> list[FileEntry]:
    return [FileEntry(path=str(index), size=size, sha256="0" * 64) for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "connections", "needed"),
    [((10, 30, 20), 1, 90), ((10, 30, 20), 2, 110), ((10,), 4, 20), ((), 2, 0)],
)
def test_room_is_needed_for_the_contents_and_for_the_blobs_that_arrive_at_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], connections: int, needed: int
) -> None:
    limits = Limits(reserve=1000, connections=connections)

    def with_free(free: int) -> None:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
        check_room(Store(tmp_path), entries(*sizes), limits)

    with_free(1000 + needed)
    if sizes:
        with pytest.raises(NoSpaceError, match=f"expected {1000 + needed:,} bytes free, 1,000 of them in reserve"):
            with_free(999 + needed)
    else:
        with_free(0)  # nothing is fetched, so nothing is asked for


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["a/b", "a/c", "ab"], None),
        (["a", "a/b"], "a"),
        (["A", "a/b"], "a"),
        (["x/y/z", "x/y"], "x/y"),
        (["contents.json/x"], "contents.json"),
        (["partial.json"], "partial.json"),
        (["partial.json/x"], "partial.json"),
    ],
)
def test_no_path_is_a_file_and_a_folder_or_one_of_the_device_s_own(paths: list[str], found: str | None) -> None:
    assert not_both(paths) == found
