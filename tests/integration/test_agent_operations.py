"""The agent as a service: systemd's notifications and credentials, the settings file, metrics."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import bundles
from tests.support.agent import ROOT, Agent, environment

TOKEN = "a" * 32
GOOD = {"model": "tiny", "input": "the cat"}
WATCHDOG_SECONDS = 0.3


class Systemd:
    """The socket that systemd listens on, and what came to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def listen(self, seconds: float, until: str | None = None) -> list[str]:
        """The messages of the next seconds, or those up to the first that begins with `until`."""
        found: list[str] = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                found.append(self._socket.recv(4096).decode())
            except TimeoutError:
                break
            if until is not None and found[-1].startswith(until):
                break
        self.heard += found
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.make_bundle(tmp_path_factory.mktemp("operations"))


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    found = Systemd(tmp_path / "notify")
    yield found
    found.close()


@pytest.mark.slow
def test_a_service_from_its_start_to_its_end(
    tiny: Path, tmp_path: Path, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, cache = tmp_path / "credentials", tmp_path / "cache"
    credentials.mkdir()
    (credentials / "edgeonnx.tokens").write_text(TOKEN)
    (credentials / "edgeonnx.tokens").chmod(0o600)
    settings = tmp_path / "agent.toml"
    settings.write_text("[queue]\ndeadline_seconds = 7\n")
    monkeypatch.setenv("NOTIFY_SOCKET", str(systemd.path))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_SECONDS * 1e6)))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    monkeypatch.setenv("CACHE_DIRECTORY", str(cache))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with Agent(bundle=tiny, arguments=("--config", str(settings))) as agent:
        ready = systemd.listen(5, until="READY=1")[-1]
        assert ready.startswith("READY=1\nSTATUS=")
        assert "tiny 1.0.0" in ready
        fed = systemd.listen(WATCHDOG_SECONDS * 2)
        assert fed.count("WATCHDOG=1") >= 3

        assert httpx.post(f"{agent.url}/v1/embeddings", json=GOOD).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.post(f"{agent.url}/v1/embeddings", json=GOOD, headers=bearer).status_code == 200
        text = httpx.get(f"{agent.url}/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        responses = {sample.labels["status"]: sample.value for sample in families["edgeonnx_http_responses"].samples}
        assert responses == {"200": 1, "401": 1}

        agent.terminate()
        assert systemd.listen(5, until="STOPPING=1")[-1].startswith("STOPPING=1\nSTATUS=")
        assert agent.wait() == 0
    # ONNX Runtime's official builds keep an id and a database there where they report to Microsoft.
    assert not list(Path(tmp_path, "home").rglob("*onnxruntime*"))


HANGING = """
import pathlib, sys, threading
from device_agent.cli import main
from device_agent.inference import session
run = session.Session.run
def hanging(self, inputs, outputs=None):
    if pathlib.Path(sys.argv[-1] + "-hangs").exists():
        threading.Event().wait()
    return run(self, inputs, outputs)
session.Session.run = hanging
sys.argv.insert(1, "serve")
main.main()
"""


@pytest.mark.slow
def test_a_run_that_never_ends_starves_the_watchdog(tiny: Path, tmp_path: Path, systemd: Systemd) -> None:
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    flag = tmp_path / "flag"
    variables = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "300000"}
    command = [sys.executable, str(script), "--port", "0", "--bundle", str(tiny), "--cache-dir", str(flag)]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**environment(), **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert systemd.listen(15, until="READY=1")[-1].startswith("READY=1")
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        Path(f"{flag}-hangs").touch()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/embeddings", json=GOOD, timeout=0.2)
        systemd.listen(0.3)
        assert "WATCHDOG=1" not in systemd.listen(0.5)
        # The event loop answers all the same: only the watchdog knows.
        assert httpx.get(f"{url}/v2/health/live").status_code == 200
    finally:
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate(timeout=10)
    assert "no run of tiny 1.0.0 ends" in stderr
