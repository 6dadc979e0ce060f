"""A device in a state directory that is updated, cut off, and started again: what the tests of power cuts share.

A `World` is a series of repositories, each with one release more, and a series of stages. A stage is what a device does
with a repository: an update in its own process, and then the steps of the serving process. Every stage can be run with
a disk of the test's choice, and `recover` starts the device again after whatever that disk did, and checks the two
promises: a verified bundle can be served at once, and a later update finishes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from device_agent.config import AgentConfig
from device_agent.slots.disk import Disk
from device_agent.slots.state import Installed, SlotState, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import UPDATE_LOCK, Store
from device_agent.supervision.boot import enter_probation, on_probation
from device_agent.supervision.installation import Installation
from device_agent.update.enrollment import Enrollment, enroll, present_enrollment
from device_agent.update.install.trial import Kind, Verdict
from device_agent.update.parts import open_parts
from device_agent.update.reports import Status, write_status
from device_agent.update.transfer.sources.folder import FolderSource
from device_agent.update.updater import Updater
from edgeonnx.errors import CandidateError, EdgeOnnxError, IntegrityError, NoSpaceError, StateError
from tests.support.bundles import make_bundle
from tests.support.installed import QuickDisk
from tests.support.recording import RecordingDisk
from tests.support.repository import TestRepository

MODEL = "tiny"
SMALL = replace(AgentConfig().update, variants="all", disk_reserve_bytes=0, connections=1, retries=0)
CONFIG = AgentConfig(update=SMALL)
PROVEN = Verdict(kind=Kind.PROVEN)
REJECTED = Verdict(kind=Kind.REJECTED, reason="it gives other answers")


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in memory where there is one: nothing waits for the real disk, and hard links work."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="edgeonnx-crash-", dir=base) as name:
        yield Path(os.path.realpath(name))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a device does with a repository.

    Attributes:
        name: For people.
        repository: Which one of the world's.
        verdict: What the candidate's process would say.
        ends: What becomes of the probation.
        serves: The versions of which one serves after a cut; empty: nothing has to.
        version: What is active when all of it is done.
        blocked: The version that is blocked then, or None.
        damaged: A file of the active slot is missing at the start.
    """

    name: str
    repository: int
    verdict: Verdict = PROVEN
    ends: AttemptState = AttemptState.COMMITTED
    serves: tuple[str, ...]
    version: str
    blocked: str | None = None
    damaged: bool = False


STAGES = (
    Stage(name="first install", repository=0, serves=(), version="1.0.0"),
    Stage(name="update", repository=1, serves=("1.0.0", "1.1.0"), version="1.1.0"),
    Stage(name="mended", repository=1, serves=("1.0.0", "1.1.0"), version="1.1.0", damaged=True),
    Stage(name="rejected", repository=2, verdict=REJECTED, serves=("1.1.0",), version="1.1.0", blocked="1.2.0"),
    Stage(
        name="rolled back",
        repository=3,
        ends=AttemptState.ROLLED_BACK,
        serves=("1.1.0", "1.3.0"),
        version="1.1.0",
        blocked="1.3.0",
    ),
)
RELEASES = 4
"""One more in each repository: 1.0.0 to 1.3.0."""


class World:
    """The repositories, and the state directory as it is before each stage.

    Args:
        folder: Where all of it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        repository = TestRepository.create(folder / "repository")
        self.root = repository.root_bytes
        for number in range(RELEASES):
            # Two releases share all tensors: what is here already is linked, and what is new is fetched.
            bundle = make_bundle(folder / "bundles", version=f"1.{number}.0", seed=1 + number // 2, prefix="x" * number)
            repository.publish(bundle)
            shutil.copytree(folder / "repository", folder / f"repository-{number}")
        self.before = [folder / f"before-{number}" for number in range(len(STAGES))]
        self.before[0].mkdir()
        for number, stage in enumerate(STAGES[:-1]):
            shutil.copytree(self.before[number], self.before[number + 1], symlinks=True, copy_function=_copier())
            self.run(stage, self.before[number + 1])
            if STAGES[number + 1].damaged:
                store = Store(self.before[number + 1] / "state", QuickDisk())
                active = store.read_state(MODEL).active
                assert active is not None
                (store.slot(MODEL, active.contents) / "evidence.json").unlink()

    def place(self) -> Path:
        """A path that is not used yet."""
        self._count += 1
        return self.folder / f"device-{os.getpid()}-{self._count}"

    def device(self, number: int) -> Path:
        """A device as it is before a stage; hard links stay hard links."""
        path = self.place()
        shutil.copytree(self.before[number], path, symlinks=True, copy_function=_copier())
        return path

    def source(self, stage: Stage) -> FolderSource:
        """The repository of a stage."""
        return FolderSource(self.folder / f"repository-{stage.repository}")

    # What a device does.

    def run(self, stage: Stage, device: Path, disk: Disk | None = None) -> None:
        """Carry out a stage; `device` is the folder in which the state directory lies.

        Raises:
            EdgeOnnxError: Something refused.
        """
        store = _MarkingStore(device / "state", disk or QuickDisk())
        self.update(stage, store)
        self.serve(stage, store)

    def update(self, stage: Stage, store: Store) -> None:
        """Enrol if need be, and update: what runs in the update process."""
        if present_enrollment(store) is None:
            url = (self.folder / f"repository-{stage.repository}").as_uri()
            enroll(store, Enrollment(url=url, channel="stable", device="box"), self.root, CONFIG.update)
        with store.locked(UPDATE_LOCK, "an update"):
            parts = open_parts(CONFIG, None, store, source=self.source(stage))
            parts = replace(parts, prove=lambda *_: stage.verdict)
            outcomes = Updater(parts).run()
            write_status(store, Status(checked_at=parts.clock.effective(), message="done"))
        for outcome in outcomes:
            if outcome.error is not None and not isinstance(outcome.error, CandidateError):
                raise outcome.error

    def serve(self, stage: Stage, store: Store) -> None:
        """Take what is proven, and end its probation: what the serving process writes."""
        here = Installation(store)
        state = here.read(MODEL)
        attempt = state.running
        if attempt is not None and attempt.state is AttemptState.PROVEN:
            state = here.change(MODEL, lambda found, now: enter_probation(found, now=now))
        if on_probation(state) is not None:
            here.change(MODEL, partial(_ended, to=stage.ends))
        with store.locked(UPDATE_LOCK, "an update"):
            store.collect()

    # What is promised.

    def start(self, number: int, device: Path, *, promised: int = 0) -> None:
        """Start the serving process's side again, and check that a verified bundle can be served.

        Args:
            number: The stage in which the device was cut off.
            device: The device.
            promised: The number of the last state that was promised to be durable.
        """
        stage, store = STAGES[number], Store(device / "state", QuickDisk())
        if not stage.damaged:
            check_names(store)
        found = store.read_state(MODEL).sequence
        assert found >= promised, f"the state went back from {promised} to {found}"
        here = Installation(store)
        for name in here.names():
            here._begin(name)
        served = self._served(stage, here)
        assert served is not None or not stage.serves, "nothing serves any more"
        if served is not None and stage.serves:
            assert served.version in stage.serves
            self._check_memory(number, store)

    def _served(self, stage: Stage, here: Installation) -> Installed | None:
        """What a start serves: the first choice whose every byte is right, as loading finds out."""
        for _ in range(3):
            state = here.read(MODEL)
            choice = here.choice(MODEL, state)
            if choice is None:
                return None
            contents = str(choice[1])
            fault = here.store.slot_fault(MODEL, contents, hashed=True)
            if fault is None:
                return next(each for each in (state.active, state.previous) if each and each.contents == contents)
            assert stage.damaged, f"what would serve first {fault}"
            here.failed(MODEL, contents, IntegrityError(fault))
        raise AssertionError("a start tries what is damaged for ever")

    def _check_memory(self, number: int, store: Store) -> None:
        """What was accepted before the cut is not forgotten: an attacker could show it again."""
        before = self.before[number] / "state"
        for name, keys in (
            ("metadata/timestamp.json", ("signed", "version")),
            ("metadata/snapshot.json", ("signed", "version")),
            ("clock.json", ("bound",)),
        ):
            if (before / name).exists():
                then, now = _number(before / name, keys), _number(store.root / name, keys)
                assert now >= then, f"{name} went back from {then} to {now}"

    def faulty(self, number: int, disk: Disk) -> tuple[Path, EdgeOnnxError | None]:
        """Carry out a stage on a disk that fails, and check that what serves is not touched.

        Returns:
            The device, and what it said; None if it went through all the same.
        """
        device, said = self.device(number), None
        try:
            self.run(STAGES[number], device, disk)
        except (NoSpaceError, StateError) as error:
            said = error
        self.start(number, device)
        return device, said

    def recover(self, number: int, device: Path, *, promised: int = 0) -> None:
        """Start the device again, and check that it serves, that a later update finishes, and that no rest is left."""
        stage = STAGES[number]
        self.start(number, device, promised=promised)
        self.run(stage, device)
        store = Store(device / "state", QuickDisk())
        state = store.read_state(MODEL)
        assert state.running is None
        assert state.active is not None
        assert state.active.version == stage.version
        assert store.slot_fault(MODEL, state.active.contents, hashed=True) is None
        assert store.damage(MODEL) is None
        assert stage.blocked is None or state.blocked[-1].version == stage.blocked
        rest = [path for path in store.root.rglob("*") if path.name.endswith((".new", ".part", ".old", ".damaged"))]
        rest += list(store.incoming.iterdir())
        assert rest == [], f"rests: {rest}"


def _number(path: Path, keys: tuple[str, ...]) -> float:
    """A number in a JSON file; -1 if the file is torn."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return -1
    for key in keys:
        found = found[key]
    return float(found)


class _MarkingStore(Store):
    """Tells a recording disk when a state was promised to be durable."""

    def write_state(self, state: SlotState) -> SlotState:
        written = super().write_state(state)
        if isinstance(self.disk, RecordingDisk):
            self.disk.mark(written.sequence)
        return written


def _ended(state: SlotState, now: float, *, to: AttemptState) -> SlotState:
    return step(state, to, now=now, reason="by the test")


def _copier() -> Callable[[str, str], object]:
    """Copies files; what is one file under two names stays one."""
    made: dict[int, str] = {}

    def copy(source: str, target: str) -> object:
        inode = Path(source).lstat().st_ino
        if inode in made:
            os.link(made[inode], target)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
            made[inode] = target
        return target

    return copy


def check_names(store: Store) -> None:
    """The rule of durability: what has its name is whole."""
    for path in store.blobs.glob("*/*"):
        if not path.name.endswith(".new"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, f"{path} is not what its name says"
    for model in store.models():
        for slot in store.slots(model).glob("*"):
            if not slot.name.startswith("."):
                fault = store.slot_fault(model, slot.name, hashed=True)
                assert fault is None, f"a slot that has its name {fault}"


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is logged meanwhile: thousands of devices are cut off."""
    logger = logging.getLogger("edgeonnx")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
