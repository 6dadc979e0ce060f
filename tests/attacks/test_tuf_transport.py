"""Attacks on the way: endless data, slow retrieval, cut answers; through the real downloader and a real server."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agent.config import UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.update.transfer.downloader import Downloader
from device_agent.update.transfer.sources.factory import open_source
from device_agent.update.trust.clock import Clock
from device_agent.update.trust.metadata import TrustedMetadata
from edgeonnx.errors import FetchError, UntrustedError
from tests.support.tuf_simulator import CHANNEL, START, Simulator
from tests.support.web import Fault, StaticServer

SETTINGS = UpdateConfig(
    retries=0, proxy="none", connect_seconds=2.0, stall_seconds=0.5, stall_bytes=1024, metadata_seconds=1.0
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StaticServer]:
    for path, data in Simulator().files.items():
        file = tmp_path / "repository" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    with StaticServer(tmp_path / "repository") as running:
        yield running


@pytest.fixture
def metadata(tmp_path: Path, server: StaticServer) -> TrustedMetadata:
    return opened(tmp_path, server, SETTINGS)


def opened(folder: Path, server: StaticServer, update: UpdateConfig) -> TrustedMetadata:
    disk = Disk()
    disk.make_folder(folder / "device")
    downloader = Downloader(open_source(server.url, update), update, disk)
    clock = Clock(folder / "device" / "clock.json", disk, now=START.timestamp)
    trusted = TrustedMetadata(folder / "device" / "metadata", downloader, clock, disk)
    trusted.bootstrap((folder / "repository" / "metadata" / "1.root.json").read_bytes())
    return trusted


def test_the_honest_server_serves(metadata: TrustedMetadata) -> None:
    assert metadata.target(CHANNEL) == b'{"channel": 1}'


@pytest.mark.parametrize("path", ["metadata/2.root.json", "metadata/timestamp.json", "targets/channels/*"])
def test_endless_data_ends(metadata: TrustedMetadata, server: StaticServer, path: str) -> None:
    server.fail(path, Fault(body=b" ", endless=True))
    with pytest.raises(FetchError):
        metadata.target(CHANNEL)
    server.heal()
    assert metadata.target(CHANNEL) == b'{"channel": 1}'


def test_a_drop_at_a_time_is_no_progress(metadata: TrustedMetadata, server: StaticServer) -> None:
    server.fail("metadata/timestamp.json", Fault(rate=40.0))
    started = time.monotonic()
    with pytest.raises(FetchError):
        metadata.refresh()
    assert time.monotonic() - started < 5.0


def test_a_silent_server_is_given_up(metadata: TrustedMetadata, server: StaticServer) -> None:
    server.fail("metadata/timestamp.json", Fault(stall_after=10, stall_seconds=20.0))
    started = time.monotonic()
    with pytest.raises(FetchError):
        metadata.refresh()
    assert time.monotonic() - started < 5.0


def test_cut_metadata_is_fetched_again(tmp_path: Path, server: StaticServer) -> None:
    metadata = opened(tmp_path, server, dataclasses.replace(SETTINGS, retries=3, metadata_seconds=20.0))
    server.fail("metadata/timestamp.json", Fault(cut_after=50, times=1))
    metadata.refresh()
    assert server.paths("metadata/timestamp.json") == ["metadata/timestamp.json"] * 2


def test_a_login_page_is_no_metadata(metadata: TrustedMetadata, server: StaticServer) -> None:
    server.fail("*", Fault(body=b"<!doctype html><html>Welcome to this network</html>"))
    with pytest.raises((UntrustedError, FetchError), match=r"page"):
        metadata.refresh()
    server.heal()
    metadata.refresh()
