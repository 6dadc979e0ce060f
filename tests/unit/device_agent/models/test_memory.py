from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from device_agent.models import memory
from device_agent.models.memory import (
    NOTHING,
    Room,
    Taken,
    Usage,
    cgroup_free,
    check_fits,
    parse_cgroup,
    parse_usage,
    room_of,
)
from edgeonnx.bundle import open_bundle
from edgeonnx.errors import MemoryBudgetError
from tests.support import bundles

MIB = 1 << 20
ROLLUP = """55d0c8a00000-7ffd3b9f2000 ---p 00000000 00:00 0                          [rollup]
Rss:               54332 kB
Pss:               36120 kB
Pss_Anon:          27040 kB
Anonymous:         27040 kB
AnonHugePages:         0 kB
"""


def test_resident_memory_is_what_is_our_own_and_what_is_mapped() -> None:
    assert parse_usage(ROLLUP) == Usage(anonymous=27040 * 1024, mapped=(54332 - 27040) * 1024)


@pytest.mark.parametrize("text", ["", "Rss: 12 kB\n", "Anonymous: 12 kB\n"])
def test_no_rollup(text: str) -> None:
    assert parse_usage(text) is None


def test_growth_is_never_negative() -> None:
    before = Usage(anonymous=10, mapped=5)
    assert Usage(anonymous=17, mapped=3).since(before) == Usage(anonymous=7, mapped=0)
    assert before.since(before) == NOTHING
    assert before.total == 15


def test_the_cgroup_of_version_2() -> None:
    assert parse_cgroup("0::/system.slice/edgeonnx.service\n") == "system.slice/edgeonnx.service"
    assert parse_cgroup("0::/\n") == ""
    assert parse_cgroup("12:memory:/docker/abc\n") is None


@pytest.mark.parametrize(
    ("limit", "current", "stat", "free"),
    [
        ("max\n", "100\n", "", None),
        ("1000\n", "400\n", "anon 300\ninactive_file 50\n", 650),
        ("1000\n", "1200\n", "", 0),
        ("", "", "", None),
    ],
)
def test_what_a_cgroup_has_left(limit: str, current: str, stat: str, free: int | None) -> None:
    assert cgroup_free(limit, current, stat) == free


@pytest.mark.parametrize(
    ("limit", "taken", "available", "free"),
    [
        (None, (500, 0), 300, 300),
        (None, (500, 0), None, None),
        (1000, (300, 0), 5000, 700),
        (1000, (300, 0), None, 700),
        (1000, (300, 0), 200, 200),  # the operator allows more than there is
        (1000, (1300, 0), 5000, 0),
        # What caches may still take is not there for others, whoever set the limit.
        (None, (500, 100), 300, 200),
        (None, (500, 400), 300, 0),
        (1000, (300, 100), 5000, 600),
        (1000, (300, 100), 650, 550),
    ],
)
def test_room(limit: int | None, taken: tuple[int, int], available: int | None, free: int | None) -> None:
    assert room_of(limit, Taken(*taken), available).free == free


def test_the_reason_names_what_is_short() -> None:
    assert "runtime.memory_bytes is 1,000" in room_of(1000, Taken(300), 5000).reason
    assert "the machine" in room_of(1000, Taken(300), 200).reason
    assert "their caches up to 100 more" in room_of(1000, Taken(300, 100), 5000).reason
    assert "beside 100 bytes for caches" in room_of(None, Taken(300, 100), 200).reason


def test_what_fits_is_let_through() -> None:
    check_fits("tiny", 100, Room(free=100, reason=""))
    check_fits("tiny", 1 << 60, Room(free=None, reason=""))


def test_a_model_without_room_is_refused_with_the_reason() -> None:
    with pytest.raises(MemoryBudgetError, match=r"tiny: .* at most 99 bytes, because of me; found 100 bytes at least"):
        check_fits("tiny", 100, Room(free=99, reason="of me"))
    with pytest.raises(MemoryBudgetError, match="measured after loading it"):
        check_fits("tiny", 100, Room(free=99, reason=""), measured=True)


def test_a_swap_without_room_says_that_it_needs_both_at_once() -> None:
    with pytest.raises(MemoryBudgetError, match=r"both versions at once: unload tiny 1\.0\.0 first"):
        check_fits("tiny", 100, Room(free=99, reason=""), beside="tiny 1.0.0")


def test_a_variant_needs_what_its_manifest_says_and_its_graph_at_least(tmp_path: Path) -> None:
    bundle = open_bundle(bundles.make_bundle(tmp_path))
    (variant,) = bundle.manifest.entry_component.variants
    size = (bundle.root / "encoder/cpu-fp32/model.onnx").stat().st_size
    assert variant.requirements.memory_bytes == size
    assert memory.needed_bytes(bundle, variant) == size


def proc(folder: Path, meminfo: str, cgroup: str) -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(meminfo)
    (folder / "self/cgroup").write_text(cgroup)
    return folder


def test_the_tightest_limit_above_the_process_counts(tmp_path: Path) -> None:
    own = proc(tmp_path / "proc", "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n", "0::/a/b\n")
    cgroups = tmp_path / "cgroup"
    (cgroups / "a/b").mkdir(parents=True)
    assert memory.available(own, cgroups) == 4000 * 1024
    (cgroups / "a/memory.max").write_text("3000000\n")
    (cgroups / "a/memory.current").write_text("1000000\n")
    assert memory.available(own, cgroups) == 2_000_000
    (cgroups / "a/b/memory.max").write_text("1500000\n")
    (cgroups / "a/b/memory.current").write_text("1000000\n")
    assert memory.available(own, cgroups) == 500_000


def test_a_system_without_proc(tmp_path: Path) -> None:
    assert memory.available(tmp_path, tmp_path) is None
    assert memory.usage(tmp_path) is None


def test_this_process_has_memory() -> None:
    found, left = memory.usage(), memory.available()
    assert found is not None
    assert left is not None
    assert found.anonymous > MIB
    assert left > MIB


def test_freed_memory_goes_back() -> None:
    """Small blocks that live on lie between the freed ones, so that the C library keeps those unless it is told."""
    blocks = [(bytes(100_000), bytes(2_000)) for _ in range(600)]
    kept = [small for _, small in blocks]
    full = memory.usage()
    del blocks
    memory.give_back()
    empty = memory.usage()
    assert full is not None
    assert empty is not None
    assert empty.anonymous < full.anonymous - 20 * MIB
    assert len(kept) == 600


HEAPS = """
import ctypes, sys, threading
from device_agent.models.memory import share_heaps
if sys.argv[1] == "shared":
    share_heaps()
together = threading.Barrier(8)
def allocate():
    together.wait()
    kept = [bytearray(5000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = libc.fdopen(1, b"w")
libc.malloc_info(0, ctypes.c_void_p(stream))
libc.fflush(ctypes.c_void_p(stream))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library than glibc")
def test_threads_share_two_heaps() -> None:
    def heaps(how: str) -> int:
        found = subprocess.run([sys.executable, "-c", HEAPS, how], capture_output=True, text=True, check=True)
        return found.stdout.count("<heap nr=")

    assert heaps("shared") <= 2 < heaps("each")
