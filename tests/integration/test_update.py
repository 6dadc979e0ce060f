"""Updates as a device does them: real processes, a real web server, real candidates."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agent.cli.status import look
from device_agent.update.install import trial
from edgeonnx.errors import CandidateError
from tests.support.agent import ROOT, environment
from tests.support.bundles import CPU_VARIANTS, make_bundle
from tests.support.device import QuickFiles, TestDevice
from tests.support.repository import TestRepository
from tests.support.web import StaticServer

SETTINGS = """
[update]
interval_seconds = 0
probation_seconds = 0.5
disk_reserve_bytes = 0
retries = 0
"""


def agent(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of the agent to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "device_agent.cli.main", *map(str, arguments)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


class Box:
    """A device in a folder that serves 1.0.0, and its repository behind a web server."""

    def __init__(self, folder: Path, server: StaticServer, repository: TestRepository) -> None:
        self.folder, self.server, self.repository = folder, server, repository
        self.settings = folder / "agent.toml"
        self.settings.write_text(SETTINGS)
        self.publish("1.0.0", seed=1)
        self.device = TestDevice(folder / "state", repository, url=server.url.rstrip("/"))
        self.device.install()

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.device.store.root

    @property
    def common(self) -> tuple[object, ...]:
        """What every command is given."""
        return ("--config", self.settings, "--state-dir", self.state)

    def publish(self, version: str, seed: int, bias: float = 0.0) -> None:
        """Publish a version to everybody."""
        self.repository.publish(
            make_bundle(self.folder / "bundles", version=version, seed=seed, bias=bias, variants=CPU_VARIANTS)
        )


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A device that serves 1.0.0."""
    repository = TestRepository.create(tmp_path / "repo", files=QuickFiles(tmp_path / "repo"))
    with StaticServer(repository.path) as server:
        yield Box(tmp_path, server, repository)


@pytest.mark.slow
def test_a_device_installs_swaps_and_refuses(box: Box) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "device_agent.cli.main", "serve", "--port", "0", *map(str, box.common)],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert serving.stdout is not None
        assert "tiny 1.0.0" in serving.stdout.readline()
        box.publish("1.1.0", seed=2)
        # Without --once it waits for the swap and the probation.
        assert "1.1.0 was committed" in agent("update", *box.common).stdout
        box.device.check_active("1.1.0")
        # The real candidate, begun by the updater in this process.
        box.publish("1.2.0", seed=3, bias=3.0)
        box.device.prove = trial.prove
        refused = box.device.update()
        assert isinstance(refused.error, CandidateError)
        assert "golden set" in str(refused.error)
        box.device.check_active("1.1.0")
        assert look(box.device.store).serving
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=20) == 0
