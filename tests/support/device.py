"""A device for tests: a state directory with the production updater over it, and a hand that swaps and commits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from device_agent.config import AgentConfig, UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.slots.state import SlotState, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from device_agent.update.enrollment import Enrollment, enroll, read_enrollment
from device_agent.update.install.trial import Kind, Verdict
from device_agent.update.parts import Parts, open_parts
from device_agent.update.reports import Reporter
from device_agent.update.transfer.sources import Body, Source
from device_agent.update.transfer.sources.factory import open_source
from device_agent.update.updater import Outcome, Updater
from edgeonnx.bundle import needs, open_bundle
from edgeonnx.repository import Files
from tests.support.repository import TestRepository

NOW = 2e9
"""The time of steps that a test takes by hand."""


class QuickDisk(Disk):
    """A disk that does not wait for its writes to be durable; what that is good for is tested elsewhere."""

    def sync(self, descriptor: int) -> None:
        """Wait for nothing."""


class QuickFiles(Files):
    """The same, for the repository."""

    def put(self, path: Path, data: bytes | memoryview, mode: int) -> None:
        """Write a new file."""
        with path.open("xb") as out:
            out.write(data)
        path.chmod(mode)

    def sync(self, folder: Path) -> None:
        """Wait for nothing."""


class Listening:
    """A source that notes what it is asked for."""

    def __init__(self, source: Source, asked: list[str]) -> None:
        self._source, self._asked = source, asked

    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> AbstractContextManager[Body]:
        """Read a file; see `Source.open`."""
        self._asked.append(path)
        return self._source.open(path, offset=offset, validator=validator)


def proves(*_: object) -> Verdict:
    """A candidate that is proven without being loaded."""
    return Verdict(kind=Kind.PROVEN, variants=("encoder/cpu-int8",))


def runs_first(metadata: Path, *_: object) -> Verdict:
    """This machine runs the first variant of a bundle, without being asked."""
    component = needs.read_manifest(lambda path: (metadata / path).read_bytes()).entry_component
    return Verdict(kind=Kind.PROVEN, variants=(f"{component.name}/{component.variants[0].name}",))


class TestDevice:
    """A device that is enrolled with a repository in a folder.

    Attributes:
        store: Its state directory.
        repository: The repository.
        config: Its settings; a test may change them between two runs.
        prove: What proves a candidate.
        choose: What says which variants the machine runs.
        asked: Paths that the last run asked the repository for.
        received: Bytes that it received.
        sent: What was reported, if `config.update.report_url` is set.
    """

    __test__ = False

    def __init__(self, folder: Path, repository: TestRepository, *, disk: Disk | None = None, **enrolled: str) -> None:
        self.store = Store(folder, disk or QuickDisk())
        self.repository = repository
        self.config = AgentConfig(update=UpdateConfig(state_dir=folder, disk_reserve_bytes=0, retries=0))
        self.prove: Callable[..., Verdict] = proves
        self.choose: Callable[..., Verdict] = runs_first
        self.asked: list[str] = []
        self.received = 0
        self.sent: list[bytes] = []
        wanted = {"url": repository.path.as_uri(), "channel": "stable", "device": "device-1", **enrolled}
        enroll(self.store, Enrollment(**wanted), repository.root_bytes, self.config.update)

    def set(self, **changes: object) -> None:
        """Change settings of `[update]`."""
        self.config = replace(self.config, update=replace(self.config.update, **changes))  # type: ignore[arg-type]

    def parts(self) -> Parts:
        """What the next run works with."""
        self.asked = []
        source = open_source(read_enrollment(self.store).url, self.config.update)
        parts = open_parts(self.config, None, self.store, source=Listening(source, self.asked))
        reporter = Reporter(
            self.store, self.config.update.report_url, parts.enrollment.device, lambda _, body: self.sent.append(body)
        )
        return replace(parts, prove=self.prove, choose=self.choose, reporter=reporter)

    def update(self, *, dry: bool = False) -> Outcome:
        """One run, for the only model."""
        parts = self.parts()
        try:
            (outcome,) = Updater(parts).run(dry=dry)
        finally:
            self.received = parts.downloader.received
        return outcome

    def state(self, model: str = "tiny") -> SlotState:
        """What the device knows of a model."""
        return self.store.read_state(model)

    def go(self, *states: AttemptState, model: str = "tiny") -> SlotState:
        """Take the attempt further, as the process that serves does."""
        for each in states:
            self.store.write_state(step(self.state(model), each, now=NOW))
        return self.state(model)

    def commit(self) -> SlotState:
        """A proven release serves and is committed."""
        return self.go(AttemptState.PROBATION, AttemptState.COMMITTED)

    def install(self) -> SlotState:
        """Take what is offered, and let it serve."""
        outcome = self.update()
        assert outcome.error is None, outcome.error
        return self.commit()

    def check_active(self, version: str | None) -> None:
        """The active version is this one, and its slot is whole, byte for byte."""
        active = self.state().active
        assert (None if active is None else active.version) == version
        if active is not None:
            assert self.store.slot_fault("tiny", active.contents, hashed=True) is None
            assert open_bundle(self.store.slot("tiny", active.contents)).manifest.version == version
