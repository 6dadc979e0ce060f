"""`python -m tests.support.damage`: every file of a state directory is damaged, and the device started again.

A JSON line tells what went wrong: nothing served, an error that is none of ours, or a wait without end. It runs in a
process of its own, whose alarm ends such a wait.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from device_agent.slots.store import Store
from device_agent.supervision.installation import Installation
from edgeonnx.errors import EdgeOnnxError
from tests.support.crash import MODEL, STAGES, World, memory_folder, quiet
from tests.support.installed import QuickDisk

SECONDS = 10
"""For one device; it takes a tenth of a second."""


def _grown(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(10 << 30)


MOST_MEMORY = 2 << 30
"""A file of 10 GB that somebody reads whole is then an error, and not the end of the machine."""

KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "of zero bytes": lambda path: path.write_bytes(b""),
    "of zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "another document": lambda path: path.write_bytes(b'{"schema_version": "1.0"}'),
    "of 10 GB": _grown,
    "a pipe": lambda path: path.unlink() or os.mkfifo(path),
    "a folder": lambda path: path.unlink() or path.mkdir(),
    "a link to a device": lambda path: path.unlink() or path.symlink_to("/dev/zero"),
    "a link to a folder": lambda path: path.unlink() or path.symlink_to("/etc"),
}
TRAPS = ("a pipe", "a link to a device")
"""What waits for ever, or gives bytes for ever, when it is opened or read without care."""


def files_of(state: Path) -> list[str]:
    """The files of a state directory that are no contents of bundles."""
    found = [path for path in sorted(state.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = [path.relative_to(state).as_posix() for path in found]
    return [name for name in names if not name.startswith("blobs/") and "/slots/" not in name]


def damaged(world: World, kinds: Sequence[str], most: int, rng: random.Random) -> Iterator[str]:
    """Damage one file after the other, each in at most `most` of the ways; yields what went wrong."""
    for name in files_of(world.before[1] / "state"):
        for kind in rng.sample(kinds, min(most, len(kinds))):
            device = world.device(1)
            KINDS[kind](device / "state" / name)
            signal.alarm(SECONDS)
            try:
                serves(device)
                world.run(STAGES[1], device)
            except EdgeOnnxError as error:
                if not str(error):
                    yield f"{name} is {kind}: an error without words"
            except BaseException as error:  # noqa: BLE001 - that is the question
                yield f"{name} is {kind}: {type(error).__name__}: {error}"
            signal.alarm(SECONDS)
            try:
                serves(device)
            except BaseException as error:  # noqa: BLE001
                yield f"{name} is {kind}, after an update: {type(error).__name__}: {error}"
            signal.alarm(0)
            shutil.rmtree(device)


def serves(device: Path) -> None:
    """Start the serving process's side: a verified bundle must be its choice."""
    store = Store(device / "state", QuickDisk())
    here = Installation(store)
    for name in here.names():
        here._begin(name)
    choice = here.choice(MODEL, here.read(MODEL))
    assert choice is not None, "nothing serves"
    assert store.slot_fault(MODEL, str(choice[1]), hashed=True) is None


class WaitsWithoutEndError(BaseException):
    """No `OSError`, which whoever waits might take for a file that cannot be read."""


def _waited(*_: object) -> None:
    raise WaitsWithoutEndError


def main(arguments: Sequence[str]) -> int:
    """`<traps or damages> <most> <seed>`: damage devices and print what went wrong."""
    kinds = TRAPS if arguments[0] == "traps" else [kind for kind in KINDS if kind not in TRAPS]
    most, rng = int(arguments[1]), random.Random(int(arguments[2]))
    signal.signal(signal.SIGALRM, _waited)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    with quiet(), memory_folder() as folder:
        print(json.dumps(list(damaged(World(folder), kinds, most, rng))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
