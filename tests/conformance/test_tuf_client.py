"""The entry point for tuf-conformance, as the suite runs it: a process for each command, against a real server.

The suite itself is not on PyPI; `docs/security.md` tells how to run it. What it asks of the entry point is tested
here: exit codes, names of files, what is requested, and that it obeys faketime.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from device_agent.slots.disk import Disk
from device_agent.update.trust.clock import Clock
from device_agent.update.trust.metadata import TrustedMetadata
from tests.support.tuf_simulator import CHANNEL, MemoryDownloader, Simulator
from tests.support.web import StaticServer

CLIENT = Path(__file__).with_name("tuf_client.py")
ROOT = Path(__file__).parents[2]
FAKETIME = shutil.which("faketime")
# Linux: the uptime is real, only the system clock is not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Client:
    """Runs the entry point."""

    def __init__(self, folder: Path, server: StaticServer) -> None:
        self.metadata = folder / "client metadata"
        self.targets = folder / "client targets"
        self.targets.mkdir()
        self._url = server.url
        self.log = ""

    def run(self, *arguments: str, at: str | None = None) -> int:
        command = [sys.executable, str(CLIENT), "--metadata-dir", str(self.metadata), *arguments]
        if at is not None:
            assert FAKETIME is not None
            command = [FAKETIME, at, *command]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
        self.log = done.stdout + done.stderr
        assert "Traceback" not in self.log, self.log
        return done.returncode

    def refresh(self, at: str | None = None) -> int:
        return self.run("--metadata-url", f"{self._url}metadata", "refresh", at=at)

    def download(self, *names: str) -> int:
        given = [word for name in names for word in ("--target-name", name)]
        options = ("--target-base-url", f"{self._url}targets/", "--target-dir", str(self.targets))
        return self.run("--metadata-url", f"{self._url}metadata/", *given, *options, "download")

    def versions(self) -> dict[str, int]:
        files = sorted(self.metadata.glob("*.json"))
        return {path.stem: json.loads(path.read_bytes())["signed"]["version"] for path in files}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StaticServer]:
    folder = tmp_path / "repository"
    folder.mkdir()
    with StaticServer(folder) as running:
        yield running


def write(server: StaticServer, repository: Simulator) -> None:
    for path, data in repository.files.items():
        (server.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (server.folder / path).write_bytes(data)


@pytest.fixture
def repository(server: StaticServer) -> Simulator:
    simulator = Simulator(now=datetime.now(UTC).replace(microsecond=0))
    write(server, simulator)
    return simulator


@pytest.fixture
def client(tmp_path: Path, server: StaticServer) -> Client:
    return Client(tmp_path, server)


def test_a_device_from_its_root_to_the_second_channel(
    client: Client, server: StaticServer, repository: Simulator, tmp_path: Path
) -> None:
    page, root = tmp_path / "page.json", tmp_path / "trusted root.json"
    page.write_bytes(b"<html>")
    root.write_bytes(repository.root)
    assert client.run("init", str(page)) == 1
    assert client.run("init", str(root)) == 0, client.log
    assert server.requests == []

    assert client.refresh() == 0, client.log
    assert server.paths() == [
        "metadata/2.root.json",
        "metadata/timestamp.json",
        "metadata/1.snapshot.json",
        "metadata/1.targets.json",
    ]
    assert client.versions() == {"root": 1, "snapshot": 1, "targets": 1, "timestamp": 1}

    old = repository.files["metadata/timestamp.json"]
    repository.add_target("rollout", CHANNEL, b'{"channel": 2}')
    repository.release("rollout")
    write(server, repository)
    assert client.download(CHANNEL, "channels/none.json") == 1
    assert [path.read_bytes() for path in client.targets.iterdir()] == [b'{"channel": 2}']
    server.forget()
    assert client.download(CHANNEL) == 0, client.log
    assert server.paths("targets/*") == []

    (server.folder / "metadata" / "timestamp.json").write_bytes(old)
    assert client.refresh() == 1
    assert "UntrustedError" in client.log
    assert client.versions()["timestamp"] == 2


@pytest.mark.skipif(FAKETIME is None, reason="faketime is not installed")
def test_a_box_in_1970_refreshes_and_one_in_the_future_says_why_not(client: Client, repository: Simulator) -> None:
    client.metadata.mkdir()
    downloader: Any = MemoryDownloader(repository.files)
    clock = Clock(client.metadata / "clock", Disk())
    TrustedMetadata(client.metadata, downloader, clock, Disk()).bootstrap(repository.root)
    later = (repository.now + timedelta(days=8)).strftime("%Y-%m-%d %H:%M:%S")
    assert client.refresh(at=later) == 1
    assert "timestamp has expired" in client.log
    assert client.refresh(at="1970-01-03 00:00:00") == 0, client.log
