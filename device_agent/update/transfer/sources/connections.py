"""Connections to the servers that requests go to, and what the device shows of itself to each."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection

from device_agent.update.transfer.sources.proxies import proxy_for, without_password
from device_agent.update.transfer.sources.tls import tls_context
from device_agent.update.transfer.sources.watch import WatchedPool, WatchedTlsPool
from edgeonnx import __version__
from edgeonnx.errors import UsageError

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from urllib3 import BaseHTTPResponse

    from device_agent.config import UpdateConfig

MAX_TOKEN_FILE_BYTES = 16 << 10
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SMALLEST_RECEIVE_BUFFER = 16 << 10
PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int]


class Connections:
    """Sends requests; the credentials go to the repository's own origin alone.

    Args:
        base: The repository's URL.
        settings: `[update]`.
        check_times: Whether certificates must be valid at the time of this machine's clock.

    Raises:
        UsageError: A file that the settings name cannot be used, or would travel in the clear.
    """

    def __init__(self, base: str, settings: UpdateConfig, *, check_times: bool) -> None:
        self._settings = settings
        self._check_times = check_times
        self._own = origin_of(base)
        self._authorization = _authorization(settings.token_file, self._own)
        if (settings.client_certificate is None) != (settings.client_key is None):
            raise UsageError(
                "a certificate and its private key belong together",
                where="[update]",
                expected="both client_certificate and client_key, or neither",
            )
        self._lock = threading.Lock()
        self._managers: dict[tuple[str | None, bool, bool], urllib3.PoolManager] = {}
        # It logs a traceback for each odd header that a server sends; what matters is in our errors.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        # It warns of a clock in the past, which is what `check_times` is for.
        urllib3.disable_warnings(urllib3.exceptions.SystemTimeWarning)
        self._manager(base)  # so that settings that cannot be used are told at once

    def get(self, url: str, headers: dict[str, str]) -> BaseHTTPResponse:
        """Begin a GET; the answer's head has arrived, its body has not. No redirect is followed, nothing tried twice.

        Raises:
            urllib3.exceptions.HTTPError, OSError: As urllib3 raises them.
        """
        sent = {"User-Agent": f"edgeonnx-agent/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        sent.update(headers)
        if self._authorization is not None and origin_of(url) == self._own:
            sent["Authorization"] = self._authorization
        settings = self._settings
        return self._manager(url).request(
            "GET",
            url,
            headers=sent,
            timeout=urllib3.Timeout(connect=settings.connect_seconds, read=settings.stall_seconds),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
            pool_timeout=settings.stall_seconds,
        )

    def _manager(self, url: str) -> urllib3.PoolManager:
        """The connections for a URL: by proxy, and by whether the device shows its certificate there."""
        parts = urlsplit(url)
        proxy = proxy_for(parts.scheme, parts.netloc, self._settings.proxy)
        key = (proxy, parts.scheme == "https", origin_of(url) == self._own)
        with self._lock:
            if key not in self._managers:
                self._managers[key] = self._new_manager(*key)
            return self._managers[key]

    def _new_manager(self, proxy: str | None, tls: bool, own: bool) -> urllib3.PoolManager:
        context = self._context(with_certificate=own) if tls else None
        buffer = self._socket_options()
        size = self._settings.connections
        if proxy is None:
            manager = urllib3.PoolManager(maxsize=size, block=True, ssl_context=context, socket_options=buffer)
        else:
            parts = urlsplit(proxy)
            user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            manager = urllib3.ProxyManager(
                without_password(proxy),
                proxy_headers=urllib3.make_headers(proxy_basic_auth=user) if parts.username else None,
                proxy_ssl_context=self._context(with_certificate=False) if parts.scheme == "https" else None,
                maxsize=size,
                block=True,
                ssl_context=context,
                socket_options=buffer,
            )
        manager.pool_classes_by_scheme = {"http": WatchedPool, "https": WatchedTlsPool}
        return manager

    def _context(self, *, with_certificate: bool) -> ssl.SSLContext:
        return tls_context(self._settings, with_certificate=with_certificate, check_times=self._check_times)

    def _socket_options(self) -> list[tuple[int, int, int]]:
        """With a bandwidth limit, a buffer of half a second: else the kernel takes megabytes ahead of the limit."""
        options = [(level, name, int(value)) for level, name, value in HTTPConnection.default_socket_options]
        if self._settings.bandwidth_bytes is not None:
            size = max(SMALLEST_RECEIVE_BUFFER, min(self._settings.bandwidth_bytes // 2, 4 << 20))
            options.append((socket.SOL_SOCKET, socket.SO_RCVBUF, size))
        return options


def origin_of(url: str) -> Origin:
    """Scheme, host and port of a URL: what decides about credentials (RFC 6454)."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").rstrip("."), parts.port or PORTS.get(parts.scheme, 0)


def _authorization(file: Path | None, own: Origin) -> str | None:
    """The value of the header `Authorization`.

    Raises:
        UsageError: The file cannot be used, or its secret would travel in the clear.
    """
    if file is None:
        return None
    where = f"update.token_file: {file}"
    if own[0] != "https" and own[1] not in LOOPBACK:
        raise UsageError("the token would travel in the clear", where=where, expected="a repository at https://")
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_TOKEN_FILE_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "other bytes than ASCII"
        raise UsageError("the token cannot be read", where=where, found=reason) from None
    if not text or not text.isprintable():
        raise UsageError(
            "holds no token", where=where, expected='one line: a token, or a scheme and its value ("Basic ...")'
        )
    return text if " " in text else f"Bearer {text}"
