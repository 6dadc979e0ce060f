"""TLS of the HTTP listener: 1.2 and newer, with an error that says which file is wrong and why."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError, first_line

if TYPE_CHECKING:
    from pathlib import Path

    from device_agent.config import ServerConfig


def ssl_context(server: ServerConfig) -> ssl.SSLContext | None:
    """The context of the listener; None where plain HTTP is served.

    Raises:
        UsageError: Only one of certificate and key is given, or they cannot be used.
    """
    if server.tls_certificate is None and server.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, server)
    return context


def load_certificate(context: ssl.SSLContext, server: ServerConfig) -> None:
    """Read certificate and key into a context; on one that serves, later connections get the new certificate.

    Raises:
        UsageError: See `ssl_context`.
    """
    if server.tls_certificate is None or server.tls_key is None:
        given, missing = (
            ("tls_key", "tls_certificate") if server.tls_certificate is None else ("tls_certificate", "tls_key")
        )
        raise UsageError(f"server.{given} needs server.{missing} too", where=f"server.{missing}")
    for path, name in ((server.tls_certificate, "tls_certificate"), (server.tls_key, "tls_key")):
        _check_readable(path, name)
    _check_certificate(server.tls_certificate)
    asked = False

    def password() -> str:
        nonlocal asked
        asked = True
        return ""

    try:
        context.load_cert_chain(server.tls_certificate, server.tls_key, password=password)
    except ssl.SSLError as error:
        if asked:
            raise UsageError(
                "the private key is encrypted, and a service has nobody to ask for its password",
                where=f"server.tls_key {server.tls_key}",
                hint="decrypt it (openssl pkey -in KEY -out PLAIN) and let only the agent read it",
            ) from None
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                "the private key does not belong to the certificate",
                where=f"server.tls_key {server.tls_key}",
                expected=f"the key of {server.tls_certificate}",
            ) from None
        raise UsageError(
            "the private key cannot be used",
            where=f"server.tls_key {server.tls_key}",
            expected="a private key in PEM form",
            found=first_line(error),
        ) from None


def _check_readable(path: Path, name: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(
            "the file cannot be read", where=f"server.{name} {path}", found=error.strerror or str(error)
        ) from None


def _check_certificate(path: Path) -> None:
    """Tell a wrong certificate from a wrong key: OpenSSL's own error names neither."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise UsageError(
            "the certificate cannot be used",
            where=f"server.tls_certificate {path}",
            expected="a certificate chain in PEM form",
            found=first_line(error),
        ) from None
