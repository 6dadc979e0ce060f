"""How much memory a model takes, how much there is, and whether one more fits.

The decisions (`room_of`, `check_fits`) and the parsers are pure. What a model takes is what this process's resident
memory grew by while it was loaded and had replayed its golden set, in two parts:

- anonymous: weights that ONNX Runtime repacked for its kernels, its arena, the tokenizer. Only unloading gives it back.
- mapped: tensors that are read from the bundle's files through the page cache. The kernel may drop these pages, but
  each run needs them again, so a budget that left them out would let a box read its disk for every request.

ONNX Runtime's arena stays on, without shrinkage after each run. Measured with MiniLM int8 and runs of up to 512 tokens
(resident megabytes, milliseconds for 16 x 32 tokens): arena 116 and 51, no arena 138 and 55, arena with shrinkage 230
and 62. It grows with the largest batch, which `queue.batch_tokens` bounds. All three return to the start after the
session is gone and `malloc_trim` was called; without that call the C library keeps between 5 and 150 MB.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edgeonnx.errors import MemoryBudgetError
from edgeonnx.spec.profile import parse_available_memory

if TYPE_CHECKING:
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Variant

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_M_ARENA_MAX = -8  # malloc.h
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resident memory, in bytes.

    Attributes:
        anonymous: Memory of the process's own.
        mapped: Pages of mapped files, the process's libraries among them.
    """

    anonymous: int
    mapped: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.anonymous + self.mapped

    def since(self, before: Usage) -> Usage:
        """What was added since `before`; never less than nothing."""
        return Usage(
            anonymous=max(0, self.anonymous - before.anonymous),
            mapped=max(0, self.mapped - before.mapped),
        )


NOTHING = Usage(anonymous=0, mapped=0)


class Taken(NamedTuple):
    """Memory of the loaded models, in bytes.

    Attributes:
        now: What they take now.
        promised: What they may still take: caches that are not as large yet as they may become.
    """

    now: int = 0
    promised: int = 0


NOTHING_TAKEN = Taken()


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory that one more model may take.

    Attributes:
        free: Bytes; None if nothing is known, and so nothing is refused.
        reason: What it comes from, for messages.
    """

    free: int | None
    reason: str


def parse_usage(smaps_rollup: str) -> Usage | None:
    """The resident memory in the text of /proc/self/smaps_rollup; None if it is not there.

    Shared memory counts as mapped: `Rss` is `Anonymous` and everything else.
    """
    fields = dict.fromkeys(("Rss", "Anonymous"), -1)
    for line in smaps_rollup.splitlines():
        key, _, value = line.partition(":")
        if key in fields:
            fields[key] = int(value.split()[0]) * 1024
    if min(fields.values()) < 0:
        return None
    return Usage(anonymous=fields["Anonymous"], mapped=fields["Rss"] - fields["Anonymous"])


def parse_cgroup(text: str) -> str | None:
    """The path of the process's cgroup v2 in the text of /proc/self/cgroup; None if it has none."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            return line[4:]
    return None


def cgroup_free(limit: str, current: str, stat: str) -> int | None:
    """Memory that a cgroup may still take, in bytes.

    Args:
        limit: Text of `memory.max`.
        current: Text of `memory.current`.
        stat: Text of `memory.stat`. Its `inactive_file` is page cache that the kernel drops first, and counts as free.

    Returns:
        The bytes, at least 0; None without a limit.
    """
    if not limit.strip().isdigit() or not current.strip().isdigit():
        return None
    droppable = 0
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key == "inactive_file":
            droppable = int(value)
    return max(0, int(limit) - int(current) + droppable)


def room_of(limit: int | None, taken: Taken, available: int | None) -> Room:
    """The memory that one more model may take: what the operator allows, and never more than there is.

    Args:
        limit: `runtime.memory_bytes`: what all models together may take; None leaves it to the machine.
        taken: What the loaded models take, and may still take.
        available: What the machine, or the container, has left; None if that is not known.
    """
    budget = None if limit is None else max(0, limit - sum(taken))
    free = None if available is None else max(0, available - taken.promised)
    if budget is not None and (free is None or budget <= free):
        return Room(free=budget, reason=f"runtime.memory_bytes is {limit:,} and the loaded models take {_told(taken)}")
    if free is not None:
        promised = f" beside {taken.promised:,} bytes for caches of loaded models" if taken.promised else ""
        return Room(free=free, reason=f"the machine, or the container, has no more available{promised}")
    return Room(free=None, reason="how much memory is available is not known")


def _told(taken: Taken) -> str:
    return f"{taken.now:,} of it" + (f", their caches up to {taken.promised:,} more" if taken.promised else "")


def needed_bytes(bundle: Bundle, variant: Variant) -> int:
    """The least memory that a variant takes: what its manifest says, or its graph where that is more.

    Activations come on top; what a model really takes is measured when it was loaded.
    """
    folder = f"{bundle.manifest.entry}/{variant.name}/"
    graph = sum(entry.size for entry in bundle.contents.files if entry.path.startswith(folder))
    return max(variant.requirements.memory_bytes, graph)


def check_fits(model: str, needed: int, room: Room, *, beside: str | None = None, measured: bool = False) -> None:
    """Refuse a model for which there is no room.

    Args:
        model: Its name, version and variant, for the message.
        needed: Bytes that it needs.
        room: The room.
        beside: The version that it would replace: until the swap, both are in memory.
        measured: It was loaded, and `needed` is what it takes.

    Raises:
        MemoryBudgetError: It does not fit.
    """
    if room.free is None or needed <= room.free:
        return
    hint = "unload another model, raise runtime.memory_bytes if the machine has more, or package a smaller variant"
    if beside is not None:
        hint = f"a swap needs both versions at once: unload {beside} first, and nothing serves meanwhile; or {hint}"
    raise MemoryBudgetError(
        "the model does not fit into the memory",
        where=model,
        expected=f"at most {room.free:,} bytes, because {room.reason}",
        found=f"{needed:,} bytes {'measured after loading it' if measured else 'at least'}",
        hint=hint,
    )


def usage(proc: Path = PROC) -> Usage | None:
    """The resident memory of this process; None where there is no /proc."""
    return parse_usage(_read(proc / "self/smaps_rollup"))


def available(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Memory that this process may still take, in bytes: the machine's, or less if a cgroup v2 says so."""
    found = [parse_available_memory(_read(proc / "meminfo"))]
    path = parse_cgroup(_read(proc / "self/cgroup"))
    if path is not None:
        folder = cgroups / path
        # Every cgroup above limits this one too.
        while folder.is_relative_to(cgroups):
            files = [_read(folder / name) for name in ("memory.max", "memory.current", "memory.stat")]
            found.append(cgroup_free(*files))
            folder = folder.parent
    return min((value for value in found if value is not None), default=None)


def share_heaps() -> None:
    """Let all threads allocate from two heaps. Call it before the threads of a model start.

    glibc gives each thread a heap of its own. Every swap brings new threads, and what the old ones leave behind in
    theirs is not given back: memory would creep upwards with each swap. A handful of threads that mostly compute do
    not miss the heaps.
    """
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:  # glibc
        set_option(_M_ARENA_MAX, 2)


def give_back() -> None:
    """Return freed memory to the system. Blocking, some milliseconds: call it in a thread."""
    import ctypes  # a start needs none of it

    # Nothing of a model is in a reference cycle; what libraries leave in one may hold its arrays.
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc; other C libraries return memory by themselves, or cannot
        trim(0)


def mebibytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / MIB:.1f} MiB"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
