"""What went wrong on the network, in words that say what to do; and whether trying again may help."""

from __future__ import annotations

import datetime
import email.utils
import http.client
import re
import socket
import ssl
from typing import TYPE_CHECKING

from urllib3 import exceptions as http_errors

from device_agent.update.transfer.sources import PORTAL_HINT, NotFound, TemporaryError
from device_agent.update.transfer.sources.tls import TIME_CODES, explain
from edgeonnx.errors import FetchError, first_line, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

_ASKS_WHO = re.compile(r"(?:failed:|status) 407\b")
BUSY = frozenset({408, 425, 429, 503})


def of_exception(error: Exception, url: str, host: str) -> FetchError:
    """Our error for one that urllib3, or the system below it, raised.

    Args:
        error: What was raised.
        url: What was asked for.
        host: The host and port of the URL.
    """
    if isinstance(error, http_errors.ProxyError):
        return _of_proxy(error, url)
    tls = _tls_error(error)
    if tls is not None:
        return _of_tls(tls, url)
    if isinstance(error, http_errors.NameResolutionError):
        return TemporaryError(
            f"the name {host} is not known",
            where=url,
            hint="check the host in the repository's URL, this device's network and its DNS server",
        )
    if isinstance(error, http_errors.NewConnectionError):
        return TemporaryError(
            f"no connection to {host}",
            where=url,
            found=_system_words(error),
            hint="check host and port of the repository's URL, and whether the server runs",
        )
    if isinstance(error, http_errors.ConnectTimeoutError):
        return TemporaryError(
            f"{host} does not answer",
            where=url,
            found="no connection in the time of update.connect_seconds",
            hint="check this device's network and firewalls on the way; some networks need update.proxy",
        )
    if isinstance(error, (http_errors.ReadTimeoutError, TimeoutError)):
        return TemporaryError("the server is silent", where=url, found="nothing in the time of update.stall_seconds")
    if isinstance(error, http_errors.EmptyPoolError):
        return TemporaryError("all connections to the server are in use", where=url)
    return TemporaryError("the connection broke", where=url, found=_system_words(error))


def _of_proxy(error: http_errors.ProxyError, url: str) -> FetchError:
    cause = error.original_error
    if _ASKS_WHO.search(str(cause)):
        return FetchError(
            "the proxy wants to know who asks",
            where=url,
            found="status 407",
            hint="give user and password in the proxy's URL: http://USER:PASSWORD@HOST:PORT",
        )
    tls = _tls_error(cause)
    return TemporaryError(
        "the proxy does not connect to the server",
        where=url,
        found=explain(tls)[0] if tls is not None else _system_words(cause),
        hint="check update.proxy, and the variables https_proxy and no_proxy of the environment",
    )


def _of_tls(error: ssl.SSLError, url: str) -> FetchError:
    message, hint = explain(error)
    # A certificate stays as it is; a connection that was cut in the handshake may do better.
    kind = FetchError if isinstance(error, ssl.SSLCertVerificationError) or error.reason else TemporaryError
    found = first_line(error)
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in TIME_CODES:
        found += f"; this device's clock says {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    return kind(message, where=url, found=found, hint=hint)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error in a chain of errors, unless it is a plain end of file or a timeout."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
            return None
        if isinstance(error, ssl.SSLError):
            return error
        inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else None
        error = inner or error.__cause__ or error.__context__
        seen += 1
    return None


def _system_words(error: BaseException) -> str:
    """What the system said, without the library's words and the addresses of its objects."""
    seen = 0
    found: BaseException | None = error
    while found is not None and seen < 8:
        if isinstance(found, socket.gaierror) or (isinstance(found, OSError) and found.strerror):
            return str(found.strerror or found)
        if isinstance(found, http.client.IncompleteRead | http.client.RemoteDisconnected):
            return "an end in the middle of the answer"
        if isinstance(found, http.client.HTTPException):
            return "what is no HTTP"
        inner = next((part for part in found.args if isinstance(part, Exception)), None)
        found, seen = inner or found.__cause__ or found.__context__, seen + 1
    text = first_line(error, 200)
    return printable(text.rpartition(">: ")[2])


def of_status(status: int, url: str, headers: Mapping[str, str]) -> FetchError:
    """Our error for an answer that is not the file.

    Args:
        status: The HTTP status.
        url: What was asked for.
        headers: Of the answer; names in any case.
    """
    found = f"status {status}"
    if status in (404, 410):
        return NotFound("is not in the repository", where=url, found=found)
    if status == 403:
        return NotFound(
            "is not in the repository, or not for this device",
            where=url,
            found=found,
            hint="if nothing can be fetched, check update.token_file and update.client_certificate",
        )
    if status == 401:
        return FetchError(
            "the server wants to know who asks", where=url, found=found, hint="set update.token_file to a valid token"
        )
    if status == 407:
        return _of_proxy(http_errors.ProxyError("", OSError(found)), url)
    if status == 511:
        return FetchError("this network wants to be signed in to", where=url, found=found, hint=PORTAL_HINT)
    if status in BUSY or status >= 500:
        return TemporaryError("the server is in trouble", where=url, found=found, retry_after=retry_after(headers))
    return FetchError("the server gives another answer than the file", where=url, expected="status 200", found=found)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait (RFC 9110, 10.2.3), or None.

    A date is taken relative to the server's own `Date`, since this device's clock may be wrong; without it, the wish
    is not understood.
    """
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    wanted, now = parsed_date(text), parsed_date(headers.get("Date"))
    return max(0.0, wanted - now) if wanted is not None and now is not None else None


def parsed_date(text: str | None) -> float | None:
    """An HTTP date as seconds since 1970, or None if it is none."""
    if not text:
        return None
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
