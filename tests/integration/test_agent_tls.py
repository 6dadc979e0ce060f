"""A live agent behind TLS: an unmodified client over it, a renewed certificate, and wrong files."""

from __future__ import annotations

import re
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import agent as agents
from tests.support import bundles
from tests.support.agent import Agent, run_to_end

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="the openssl program makes the certificates")


def make_pair(certificate: Path, key: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    extension = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*command.split(), *extension], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_pair(folder / "agent.crt", folder / "agent.key")
    make_pair(folder / "new.crt", folder / "new.key")
    return folder


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    return bundles.make_bundle(folder)


def options(folder: Path, certificate: str = "agent.crt", key: str = "agent.key") -> tuple[str, ...]:
    return ("--tls-certificate", str(folder / certificate), "--tls-key", str(folder / key))


@pytest.fixture(scope="module")
def agent(folder: Path, bundle: Path) -> Iterator[Agent]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents, "READY", re.compile(r"^ready: (https?://\S+) "))
        with Agent(bundle=bundle, arguments=options(folder)) as running:
            yield running
    assert "Traceback" not in running.log


def client(agent: Agent, certificate: Path) -> httpx.Client:
    return httpx.Client(base_url=agent.url, timeout=30, verify=ssl.create_default_context(cafile=certificate))


def test_requests_over_tls_and_a_renewed_certificate(agent: Agent, folder: Path) -> None:
    assert agent.url.startswith("https://")
    body = {"model": "tiny", "input": "the cat"}
    certificate = folder / "agent.crt"
    before = certificate.read_bytes()
    with client(agent, certificate) as kept:
        assert kept.post("/v1/embeddings", json=body).status_code == 200
        certificate.write_bytes((folder / "new.crt").read_bytes())
        (folder / "agent.key").write_bytes((folder / "new.key").read_bytes())
        agent.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 5
        while True:
            try:
                with client(agent, folder / "new.crt") as renewed:
                    assert renewed.post("/v1/embeddings", json=body).status_code == 200
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert kept.post("/v1/embeddings", json=body).status_code == 200  # its connection is still open
    (folder / "old.crt").write_bytes(before)
    with client(agent, folder / "old.crt") as old, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        old.get("/v2")


def test_plain_http_is_not_answered(agent: Agent) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(agent.url.replace("https", "http") + "/v2")


def test_a_key_of_another_certificate_ends_the_start(bundle: Path, folder: Path) -> None:
    make_pair(folder / "other.crt", folder / "other.key")
    result = run_to_end(bundle, "--check", *options(folder, "agent.crt", "other.key"))
    assert result.returncode == 2
    assert "the private key does not belong to the certificate" in result.stderr
    assert "Traceback" not in result.stderr
