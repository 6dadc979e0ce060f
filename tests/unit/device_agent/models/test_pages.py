from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agent.models import pages
from device_agent.models.pages import clean_mappings, let_go

SMAPS = """\
7f0000000000-7f0000002000 rw-p 00000000 fe:00 11                         /bundles/a/tensors/one
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd wr mr
7f0000002000-7f0000004000 rw-p 00000000 fe:00 12                         /bundles/a/tensors/written to
Rss:                   8 kB
Anonymous:             4 kB
7f0000004000-7f0000006000 r--s 00000000 fe:00 13                         /bundles/a/tensors-of-another/two
Anonymous:             0 kB
7f0000006000-7f0000008000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000008000-7f000000a000 r--s 00000000 fe:00 14                         /bundles/a/tensors/three (deleted)
Anonymous:             0 kB
"""


def test_only_mappings_of_that_folder_that_nobody_wrote_to_are_found() -> None:
    found = clean_mappings(SMAPS, Path("/bundles/a/tensors"))
    assert found == [(0x7F0000000000, 0x7F0000002000), (0x7F0000008000, 0x7F000000A000)]


SIZE = 64 * mmap.PAGESIZE


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[mmap.mmap]:
    """A private, writable mapping of a file, every page of it read: as ONNX Runtime maps a tensor."""
    (tmp_path / "tensor").write_bytes(bytes(range(256)) * (SIZE // 256))
    with (tmp_path / "tensor").open("rb") as file, mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_COPY) as mapping:
        sum(mapping[:: mmap.PAGESIZE])
        yield mapping


def resident(folder: Path) -> int:
    """Kilobytes of a folder's mapped files in memory."""
    total, inside = 0, False
    for line in pages.SMAPS.read_text().splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):
            inside = len(fields) == 6 and fields[5].startswith(f"{folder}/")
        elif inside and fields[0] == "Rss:":
            total += int(fields[1])
    return total


def test_pages_that_were_read_go_and_come_back_with_the_same_bytes(mapped: mmap.mmap, tmp_path: Path) -> None:
    assert resident(tmp_path) == SIZE // 1024
    let_go(tmp_path)
    assert resident(tmp_path) < SIZE // 2048
    assert mapped[:] == bytes(range(256)) * (SIZE // 256)


def test_what_was_written_to_a_private_mapping_is_not_lost(mapped: mmap.mmap, tmp_path: Path) -> None:
    mapped[1000:1004] = b"kept"
    let_go(tmp_path)
    assert mapped[1000:1004] == b"kept"


def test_without_mapped_tensors_or_without_proc_nothing_happens(
    mapped: mmap.mmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go(None)
    monkeypatch.setattr(pages, "SMAPS", tmp_path / "missing")
    let_go(tmp_path)
    monkeypatch.undo()
    assert resident(tmp_path) == SIZE // 1024
