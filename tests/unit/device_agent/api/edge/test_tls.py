from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from device_agent.api.edge.tls import load_certificate, ssl_context
from device_agent.config import ServerConfig
from edgeonnx.errors import UsageError
from tests.support.edge import drain, serving

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="the openssl program makes the certificates")


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    extension = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*command.split(), *extension], check=True, capture_output=True, timeout=30)
    return certificate, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_pair(folder, "one")
    make_pair(folder, "two")
    encrypt = ["openssl", "pkey", "-in", folder / "one.key", "-aes256", "-passout", "pass:x", "-out", folder / "locked"]
    subprocess.run(encrypt, check=True, capture_output=True, timeout=30)
    (folder / "text").write_text("no certificate\n", encoding="utf-8")
    (folder / "empty").touch()
    return folder


def config(folder: Path, certificate: str | None, key: str | None) -> ServerConfig:
    return ServerConfig(
        tls_certificate=None if certificate is None else folder / certificate,
        tls_key=None if key is None else folder / key,
    )


def test_plain_http_has_no_context() -> None:
    assert ssl_context(ServerConfig()) is None


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("one.crt", None, "server.tls_key: server.tls_certificate needs server.tls_key too"),
        (None, "one.key", "server.tls_certificate: server.tls_key needs server.tls_certificate too"),
        ("missing", "one.key", "tls_certificate .*missing: the file cannot be read; found No such file"),
        ("one.crt", "missing", "tls_key .*missing: the file cannot be read; found No such file"),
        ("one.crt", "two.key", "tls_key .*two.key: the private key does not belong to the certificate"),
        ("one.crt", "locked", "tls_key .*locked: the private key is encrypted"),
        ("text", "one.key", "tls_certificate .*text: the certificate cannot be used; expected a certificate chain"),
        ("empty", "one.key", "tls_certificate .*empty: the certificate cannot be used"),
        ("one.key", "one.key", "tls_certificate .*one.key: the certificate cannot be used"),
        ("one.crt", "text", "tls_key .*text: the private key cannot be used; expected a private key"),
        ("one.crt", "one.crt", "tls_key .*one.crt: the private key cannot be used"),
    ],
)
def test_files_that_cannot_be_used(folder: Path, certificate: str | None, key: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ssl_context(config(folder, certificate, key))


def client(folder: Path, name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / f"{name}.crt")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_requests_over_tls(folder: Path, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    server = ServerConfig(
        tls_certificate=folder / "one.crt", tls_key=folder / "one.key", header_seconds=0.2, body_seconds=0.2
    )
    context = ssl_context(server)
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    post = b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"
    with serving(server=server, context=context, loop=loop) as edge:

        def ask(data: bytes, name: str = "one") -> bytes:
            with client(folder, name).wrap_socket(edge.connect(), server_hostname="localhost") as connection:
                assert connection.version() in ("TLSv1.2", "TLSv1.3")
                connection.sendall(data)
                return drain(connection)

        assert b'"length":5' in ask(post + b"hello")
        assert ask(post + b"hell").startswith(b"HTTP/1.1 408 ")
        assert ask(b"GET /x HTTP/1.1\r\nX: ").startswith(b"HTTP/1.1 408 ")
        assert ask(b"GARBAGE\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert ask(b"") == b""
        with edge.connect() as plain:
            plain.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" not in drain(plain)
        # A renewed certificate is used for new connections, without a restart.
        load_certificate(context, config(folder, "two.crt", "two.key"))
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(post + b"hello")
        assert b'"length":5' in ask(post + b"hello", "two")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_leaves_over_tls_is_noticed(folder: Path, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    context = ssl_context(config(folder, "one.crt", "one.key"))
    with serving(context=context, loop=loop) as edge:
        with client(folder, "one").wrap_socket(edge.connect(), server_hostname="localhost") as connection:
            connection.sendall(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            assert edge.left == []
            connection.shutdown(socket.SHUT_RDWR)
        for _ in range(100):
            if edge.left:
                break
            edge.hold.wait(0.01)
        assert edge.left == ["/hold"]
