"""Is there a moment at which a power cut, a kill or a full disk leaves a device that does not serve, or never updates?

Four ways of cutting a device off, each at every point or as many as asked for, in each stage of its life (first
install, update, a release that is rejected, one that is rolled back):

    crash     every distinct tree that a POSIX file system may hold after each operation (tests/support/crash_model.py)
    disk      SIGKILL before each operation of the update process's `Disk`
    strace    SIGKILL at each system call that changes something
    command   SIGKILL in `edgeonnx-agent update --once`, with its candidate process
    fault     the n-th operation fails: disk full (once, for ever, after half a write), quota, I/O error, read-only

After each the device is started again. It must serve a verified bundle at once, and the update must finish afterwards
and leave no rest. The first point that does not ends the run and is printed. Counts are printed.

Run it with `PYTHONPATH=. python bench/power_cuts.py [--most N] [--seed N] [WAY ...]`.
"""

from __future__ import annotations

import argparse
import errno
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator

from tests.support.crash import STAGES, World, memory_folder, quiet
from tests.support.crash_model import build, crash_states
from tests.support.faulty import CountingDisk, FaultyDisk
from tests.support.kills import WAYS, spread
from tests.support.recording import RecordingDisk, promised

LEAST_POINTS = 1000
FEW = {"strace": 300, "command": 20}
"""Points of the ways that take a second or more for each, unless more are asked for."""
WILD = 2
FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("disk full for ever", {"number": errno.ENOSPC, "lasting": True}),
    ("disk full once", {"number": errno.ENOSPC}),
    ("half a write, then full", {"number": errno.ENOSPC, "short": True}),
    ("quota", {"number": errno.EDQUOT, "lasting": True}),
    ("input/output error", {"number": errno.EIO}),
    ("read-only from then on", {"number": errno.EROFS, "lasting": True}),
)


def by_crash(world: World, most: int, rng: random.Random) -> Iterator[tuple[int, str]]:
    """Start devices from what crashes may leave; yields the stage and the crash of each that recovered."""
    for number, stage in enumerate(STAGES):
        device = world.device(number)
        disk = RecordingDisk(device)
        world.run(stage, device, disk)
        shutil.rmtree(device)
        states = list(crash_states(world.before[number], disk.operations, rng, wild=WILD))
        for place, name, tree in spread(states, most // len(STAGES), rng):
            device = world.place()
            build(tree, device)
            try:
                world.recover(number, device, promised=promised(disk.operations, place))
            except Exception as error:
                error.add_note(f"{stage.name}, after {place} of {len(disk.operations)} operations: {name}")
                raise
            shutil.rmtree(device)
            yield number, name


def by_fault(world: World, most: int, rng: random.Random) -> Iterator[tuple[int, str]]:
    """Let operations fail; yields the stage and the fault of each device that refused or went on, and recovered."""
    points = []
    for number, stage in enumerate(STAGES):
        device, disk = world.device(number), CountingDisk()
        world.run(stage, device, disk)
        shutil.rmtree(device)
        points += [(number, at) for at in range(1, disk.count + 1)]
    for index, (number, at) in enumerate(spread(points, most, rng)):
        name, fault = FAULTS[(index + number) % len(FAULTS)]
        try:
            device, _ = world.faulty(number, FaultyDisk(at, **fault))  # type: ignore[arg-type]
            world.recover(number, device)
        except Exception as error:
            error.add_note(f"{STAGES[number].name}, operation {at}: {name}")
            raise
        shutil.rmtree(device)
        yield number, name


ALL = {"crash": by_crash, **WAYS, "fault": by_fault}


def main() -> None:
    """Cut devices off, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(ALL))
    parser.add_argument("--most", type=int, help="points of each way at most [default: all; few of the slow ways]")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    unknown = set(options.ways) - set(ALL)
    if unknown:
        parser.error(f"no such way: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    total = 0
    with quiet(), memory_folder() as folder:
        world = World(folder)
        for way in options.ways or ALL:
            if way in ("strace", "command") and shutil.which("strace") is None:
                print(f"{way:8} left out: strace is not installed")
                continue
            most = options.most or FEW.get(way, 1_000_000)
            started, counts = time.perf_counter(), Counter[str]()
            for number, _ in ALL[way](world, most, random.Random(options.seed)):
                counts[STAGES[number].name] += 1
            points = sum(counts.values())
            total += points
            shown = ", ".join(f"{name} {count}" for name, count in counts.items())
            print(f"{way:8} {points:6,} points in {time.perf_counter() - started:5.0f} s  ({shown})", flush=True)
    print(f"{total:,} points: each device served a verified bundle at once, and its update finished afterwards")
    if not options.ways and options.most is None and total < LEAST_POINTS:
        raise SystemExit(f"fewer than {LEAST_POINTS:,} points")


if __name__ == "__main__":
    main()
