"""Who is trusted in TLS, and as whom the device shows itself."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from edgeonnx.errors import UsageError, first_line

if TYPE_CHECKING:
    from pathlib import Path

    from device_agent.config import UpdateConfig

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module `ssl` does not name: chain and host name are still checked."""


def tls_context(settings: UpdateConfig, *, with_certificate: bool, check_times: bool) -> ssl.SSLContext:
    """What a connection over TLS asks of the other side and shows of this one.

    Args:
        settings: `[update]`.
        with_certificate: Whether the device's own certificate is shown where it is asked for.
        check_times: Whether certificates must be valid now.

    Raises:
        UsageError: A file of the settings cannot be used.
    """
    context = _trusting(settings.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not check_times:
        context.verify_flags = ssl.VerifyFlags(context.verify_flags | NO_CHECK_TIME)
    if with_certificate and settings.client_certificate is not None:
        _show(context, settings.client_certificate, settings.client_key)
    return context


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            "holds no certificates that can be read",
            where=f"update.ca_file: {ca_file}",
            expected="certificates in PEM form",
            found=getattr(error, "strerror", None) or first_line(error),
        ) from None


def _show(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    def refuse_to_ask() -> str:
        raise ValueError("the key has a passphrase")  # else OpenSSL asks for it at the terminal

    try:
        context.load_cert_chain(str(certificate), None if key is None else str(key), password=refuse_to_ask)
    except (OSError, ValueError) as error:
        raise UsageError(
            "the device's certificate and key cannot be used",
            where=f"update.client_certificate: {certificate}",
            expected="a certificate in PEM form, and its private key without a passphrase in update.client_key",
            found=getattr(error, "strerror", None) or first_line(error),
        ) from None


def explain(error: ssl.SSLError) -> tuple[str, str]:
    """What a failure of TLS means, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFICATION.get(
            error.verify_code,
            (f"the certificate is not accepted ({error.verify_message})", "look at the server's certificate"),
        )
    reason = (error.reason or "").upper()
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS at this port", "check the port, or whether the URL should be http://"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return (
            "the server does not accept the device's certificate, or asks for one",
            "set update.client_certificate and update.client_key to what the server's operator issued",
        )
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE") or "PROTOCOL_VERSION" in reason:
        return "the server speaks no version of TLS that is safe", "let the server offer TLS 1.2 or 1.3"
    return "the TLS connection failed", "something between this device and the server may cut or change it"


_UNKNOWN = (
    "no authority that this device trusts vouches for the certificate",
    (
        "set update.ca_file to the authority's certificate, or install the system's (Debian: ca-certificates); where "
        "this comes unexpectedly, something on the path poses as the server"
    ),
)
TIME_CODES = frozenset({9, 10})
"""Verification failed on the certificate's dates alone."""

_CLOCK = "look at this device's clock, and at the server's certificate"
_HOST = (
    "the certificate is for another host",
    "check the host in the repository's URL; where this comes unexpectedly, something on the path poses as the server",
)
_VERIFICATION = {
    # The codes of OpenSSL, X509_V_ERR_*: https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/.
    2: _UNKNOWN,
    9: ("the certificate is not yet valid", _CLOCK),
    10: ("the certificate has expired", _CLOCK),
    18: _UNKNOWN,
    19: _UNKNOWN,
    20: _UNKNOWN,
    21: _UNKNOWN,
    62: _HOST,
    64: _HOST,
}
