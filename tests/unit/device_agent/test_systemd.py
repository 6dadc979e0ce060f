from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from device_agent.config import AgentConfig
from device_agent.settings import CREDENTIALS
from device_agent.systemd import Notifier, Work, stuck
from edgeonnx import errors


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(2)
        yield receiver


def received(receiver: socket.socket) -> list[str]:
    """All that was sent so far."""
    receiver.setblocking(False)
    found = []
    while True:
        try:
            found.append(receiver.recv(4096).decode())
        except BlockingIOError:
            return found


def test_without_systemd_nothing_is_sent_and_nothing_fails(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier.from_environment({})
    notifier.ready("serves")
    notifier.status("still")
    notifier.reloading()
    notifier.stopping("stops")
    asyncio.run(asyncio.wait_for(notifier.watch(dict), 1))
    assert not caplog.records


def test_the_life_of_a_service(systemd: socket.socket) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": str(systemd.getsockname())})
    notifier.ready("serves\nMAINPID=1")
    notifier.status("serves\nMAINPID=1")
    notifier.status("waits")
    notifier.reloading()
    notifier.stopping("drains")
    ready, status, reloading, stopping = received(systemd)
    assert ready == "READY=1\nSTATUS=serves MAINPID=1"
    assert status == "STATUS=waits"
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", reloading)
    assert stopping == "STOPPING=1\nSTATUS=drains"


def test_an_abstract_socket() -> None:
    name = f"edgeonnx-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        Notifier.from_environment({"NOTIFY_SOCKET": "@" + name}).ready("x")
        assert received(receiver) == ["READY=1\nSTATUS=x"]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdogs_time(environment: dict[str, str], seconds: float | None) -> None:
    assert Notifier.from_environment(environment).watchdog_seconds == seconds


def test_a_systemd_that_is_gone_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(str(tmp_path / "nobody")).ready("x")
    assert "systemd was not told READY=1" in caplog.text


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({}, {"a": Work(True, 0)}, []),
        ({"a": Work(False, 0)}, {"a": Work(True, 0)}, []),
        ({"a": Work(True, 0)}, {"a": Work(True, 1)}, []),
        ({"a": Work(True, 1)}, {"a": Work(False, 1)}, []),
        ({"a": Work(True, 1)}, {}, []),
        ({"a": Work(True, 1), "b": Work(True, 1)}, {"a": Work(True, 1), "b": Work(True, 2)}, ["a"]),
        ({"a": Work(True, 1, 0.5)}, {"a": Work(True, 1, 1.5)}, ["a"]),
        ({"a": Work(True, 1, 1.0)}, {"a": Work(True, 2, 2.0)}, []),
        ({"a": Work(True, 1, 1.5)}, {"a": Work(True, 2, 2.5)}, ["a"]),
    ],
)
def test_stuck_is_who_had_work_and_finished_nothing_or_runs_for_too_long(
    before: dict[str, Work], now: dict[str, Work], found: list[str]
) -> None:
    assert stuck(before, now, most_seconds=2.0) == found


def watched(systemd: socket.socket, looks: list[Work], seconds: float = 0.03) -> list[str]:
    """What systemd hears while the models show one look after the other, the last one for good."""
    remaining = iter(looks)
    last = looks[-1]
    notifier = Notifier(str(systemd.getsockname()), seconds)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(notifier.watch(lambda: {"tiny": next(remaining, last)}), 0.2)

    asyncio.run(run())
    return received(systemd)


def test_the_watchdog_is_fed_while_the_models_are_idle_or_make_progress(systemd: socket.socket) -> None:
    assert len(watched(systemd, [Work(False, 0)])) > 5
    assert len(watched(systemd, [Work(True, number) for number in range(100)])) > 5


def test_a_run_that_never_ends_starves_the_watchdog(systemd: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        heard = watched(systemd, [Work(False, 3), Work(True, 3)])
    # The second look may be of a run that has just begun.
    assert heard == ["WATCHDOG=1", "WATCHDOG=1"]
    assert "no run of tiny ends" in caplog.text


def test_progress_after_a_long_run_feeds_it_again(systemd: socket.socket) -> None:
    looks = [Work(True, 3), Work(True, 3), Work(True, 3), Work(True, 4), Work(False, 4)]
    assert len(watched(systemd, looks)) > 3


def test_the_status_goes_along(systemd: socket.socket) -> None:
    notifier = Notifier(str(systemd.getsockname()), 0.03)
    texts = iter(["one", "one", "two"])

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(notifier.watch(dict, lambda: next(texts, "two")), 0.15)

    asyncio.run(run())
    assert [text for text in received(systemd) if text != "WATCHDOG=1"] == ["STATUS=one", "STATUS=two"]


UNIT = files("device_agent").joinpath("data", "edgeonnx-agent.service").read_text(encoding="utf-8")


def unit(key: str) -> list[str]:
    """The values of a key in the unit, comments left out."""
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def test_the_unit_fits_the_agent() -> None:
    assert unit("Type") == ["notify"]
    assert unit("Restart") == ["always"]
    assert unit("LoadCredential") == list(CREDENTIALS.values())
    final = (errors.UsageError, errors.BundleError, errors.GoldenSetError, errors.RuntimeUnavailableError)
    assert unit("RestartPreventExitStatus") == [" ".join(str(kind.exit_code) for kind in final)]
    assert int(unit("TimeoutStopSec")[0]) > AgentConfig().server.drain_seconds
    assert int(unit("WatchdogSec")[0]) > AgentConfig().queue.deadline_seconds
    for key in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "MemoryDenyWriteExecute", "ProtectHome"):
        assert unit(key) == ["yes"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "edgeonnx-agent.service"
    path.write_text(UNIT.replace("/opt/edgeonnx/bin/edgeonnx-agent", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
