"""`python -m tests.support.kills`: update processes are killed at one operation after the other; a JSON line tells.

Each device is updated in a process of its own, forked from this one, so that nothing has to be imported anew. It is
ended by SIGKILL before an operation of its `Disk` (`by_disk`), or by strace at a system call (`by_strace`), which also
finds writes that go around the `Disk`. Then the device is started again in this process.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from device_agent.slots.disk import Disk
from device_agent.slots.store import Store
from device_agent.update.enrollment import read_enrollment, write_enrollment
from tests.support.crash import STAGES, World, memory_folder, quiet
from tests.support.faulty import CountingDisk, KillingDisk
from tests.support.installed import QuickDisk
from tests.support.recording import RecordingDisk

CALLS = (
    "openat,write,pwrite64,writev,fsync,fdatasync,ftruncate,truncate,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fchmod,chmod,fchmodat"
)
WRITES = re.compile(r"^\d+ +(\w+)\((.*)")
ATTACH_SECONDS = 10.0
T = TypeVar("T")


def spread(points: Sequence[T], most: int, rng: random.Random) -> list[T]:
    """At most so many of the points, by chance, in their order."""
    chosen = sorted(rng.sample(range(len(points)), min(most, len(points))))
    return [points[index] for index in chosen]


def by_disk(world: World, most: int, rng: random.Random) -> Iterator[tuple[int, str]]:
    """Kill a device before each operation of its disk in every stage, or before at most `most` of all.

    Yields:
        The stage, and where the device was killed, after it was recovered.
    """
    points: list[tuple[int, int]] = []
    for number, stage in enumerate(STAGES):
        device, disk = world.device(number), CountingDisk()
        world.run(stage, device, disk)
        shutil.rmtree(device)
        points += [(number, at) for at in range(1, disk.count + 1)]
    for number, at in spread(points, most, rng):
        device = world.device(number)
        child = forked(lambda: world.run(STAGES[number], device, KillingDisk(at)))  # noqa: B023 - called at once
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"stage {number}: the process was not killed at {at}: status {status}"
        world.recover(number, device)
        shutil.rmtree(device)
        yield number, f"operation {at}"


def forked(work: Callable[[], None], *, stopped: bool = False) -> int:
    """Begin a process that does the work and ends with 0; its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
    finally:
        os._exit(code)


def traced(work: Callable[[], None], options: Sequence[str], log: Path) -> int:
    """Do the work in a process under strace; its wait status."""
    child = forked(work, stopped=True)
    os.waitpid(child, os.WUNTRACED)
    command = ["strace", "-f", "-q", "-o", str(log), "-e", f"trace={CALLS}", *options, "-p", str(child)]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + ATTACH_SECONDS
    while "TracerPid:\t0" in Path(f"/proc/{child}/status").read_text():
        if time.monotonic() > until or tracer.poll() is not None:
            os.kill(child, signal.SIGKILL)
            raise RuntimeError("strace does not attach")
        time.sleep(0.002)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    tracer.wait(ATTACH_SECONDS)
    return status


def system_calls(log: Path) -> list[tuple[str, int]]:
    """Every call of a log that changes something, as (name, how many of that name its thread had made)."""
    counts: Counter[tuple[str, str]] = Counter()
    points: dict[tuple[str, int], None] = {}
    for line in log.read_text(errors="replace").splitlines():
        thread = line.partition(" ")[0]
        found = WRITES.match(line)
        if found is None:
            continue
        name, rest = found.groups()
        counts[thread, name] += 1
        if name != "openat" or "O_CREAT" in rest:
            points[name, counts[thread, name]] = None
    return list(points)


def by_strace(world: World, most: int, rng: random.Random) -> Iterator[tuple[int, str]]:
    """Kill a device at each system call that changes something, in every stage, or at most `most` of all.

    Yields:
        As `by_disk`.
    """
    log = world.folder / "strace.log"
    points: list[tuple[int, tuple[str, int]]] = []
    for number, stage in enumerate(STAGES):
        device = world.device(number)
        status = traced(lambda: world.run(stage, device, Disk()), (), log)  # noqa: B023 - called at once
        assert os.waitstatus_to_exitcode(status) == 0
        shutil.rmtree(device)
        points += [(number, point) for point in system_calls(log)]
    for number, (name, at) in spread(points, most, rng):
        device = world.device(number)
        inject = ("-e", f"inject={name}:signal=SIGKILL:when={at}")
        status = traced(lambda: world.run(STAGES[number], device, Disk()), inject, log)  # noqa: B023 - called at once
        # Two threads share the calls differently each time, so that the last ones may not come.
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or os.waitstatus_to_exitcode(status) == 0
        world.recover(number, device)
        shutil.rmtree(device)
        if killed:
            yield number, f"{name} {at}"


def by_command(world: World, most: int, rng: random.Random) -> Iterator[tuple[int, str]]:
    """Kill `edgeonnx-agent update --once`, with its real candidate process, at calls that make or keep names.

    Yields:
        As `by_disk`.
    """
    log = world.folder / "strace.log"
    for _ in range(most):
        name, at = rng.choice(
            (("fsync", rng.randint(1, 30)), ("rename", rng.randint(1, 12)), ("link", rng.randint(1, 10)))
        )
        device = world.device(1)
        store = Store(device / "state", QuickDisk())
        write_enrollment(store, replace(read_enrollment(store), url=(world.folder / "repository-1").as_uri()))
        inject = ("-e", f"trace={name}", "-e", f"inject={name}:signal=SIGKILL:when={at}")
        update = (sys.executable, "-m", "device_agent.cli.main", "update", "--once", "--state-dir", str(store.root))
        done = subprocess.run(
            ["strace", "-f", "-q", "-o", str(log), *inject, *update],
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        killed = "killed by SIGKILL" in log.read_text(errors="replace")
        assert killed or done.returncode == 0, done.stderr
        world.recover(1, device)
        shutil.rmtree(device)
        if killed:
            yield 1, f"{name} {at}"


PATHS = {
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "link": "link",
    "linkat": "link",
    "symlink": "symlink",
    "symlinkat": "symlink",
    "unlink": "unlink",
    "unlinkat": "unlink",
    "mkdir": "mkdir",
    "mkdirat": "mkdir",
    "rmdir": "rmdir",
    "truncate": "truncate",
    "openat": "open",
    "open": "open",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def around(world: World) -> list[str]:
    """What an update writes to its state directory without its `Disk`: the kinds of operations that strace counts more
    often than the `Disk` did.
    """
    log, noted = world.folder / "strace.log", world.folder / "noted.json"
    device = world.device(1)

    def work() -> None:
        disk = RecordingDisk(device)
        world.run(STAGES[1], device, disk)
        kinds = (each.kind for each in disk.operations if each.kind != "open" or each.offset & WRITING)
        noted.write_text(json.dumps(Counter(kinds)))

    assert os.waitstatus_to_exitcode(traced(work, (), log)) == 0
    seen: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        found = WRITES.match(line)
        if found is not None and str(device) in found.group(2) and found.group(1) in PATHS:
            kind = PATHS[found.group(1)]
            if kind != "open" or re.search("O_WRONLY|O_RDWR|O_CREAT", found.group(2)):
                seen[kind] += 1
    assert seen["rename"] > 10, "strace saw the update"
    known = Counter(json.loads(noted.read_text()))
    return [f"{kind}: {seen[kind]}, of which the disk knows {known[kind]}" for kind in seen if seen[kind] > known[kind]]


WAYS = {"disk": by_disk, "strace": by_strace, "command": by_command}


def main(arguments: Sequence[str]) -> int:
    """`<seed> <way>=<most> ...`: kill, recover, and print how often for each way. `around` kills nothing."""
    told: dict[str, object] = {}
    with quiet(), memory_folder() as folder:
        world = World(folder)
        for argument in arguments[1:]:
            way, _, most = argument.partition("=")
            if way == "around":
                told[way] = around(world)
            else:
                told[way] = sum(1 for _ in WAYS[way](world, int(most), random.Random(int(arguments[0]))))
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
