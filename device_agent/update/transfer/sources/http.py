"""A repository behind a web server.

Each file is one GET. What is asked for is the file as it lies there (`Accept-Encoding: identity`), from the place where
an earlier try ended (`Range`), if the file is still the same (`If-Range`). Redirects are followed by hand, because who
may see the device's credentials is decided anew at each step.
"""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

import urllib3

from device_agent.update.transfer.sources import PIECE_BYTES, Body, TemporaryError, check_path
from device_agent.update.transfer.sources.answers import range_headers, read_answer
from device_agent.update.transfer.sources.connections import Connections
from device_agent.update.transfer.sources.failures import of_exception, of_status
from device_agent.update.transfer.sources.proxies import without_password
from device_agent.update.transfer.sources.watch import Watch
from edgeonnx.errors import FetchError, UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from urllib3 import BaseHTTPResponse

    from device_agent.config import UpdateConfig

MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
DRAINED_BYTES = 16 << 10
"""Largest body of an error page that is read, so that its connection can be used again (each refresh meets a 404)."""


class HttpSource:
    """The files below a URL. One source may be used from several threads.

    Args:
        url: `https://HOST/...` or `http://HOST/...`, without user, query and fragment.
        settings: `[update]`.
        check_times: Whether certificates must be valid at the time of this machine's clock.

    Raises:
        UsageError: The URL cannot be used, or a file that the settings name cannot.
    """

    def __init__(self, url: str, settings: UpdateConfig, *, check_times: bool = True) -> None:
        self._base = checked_url(url)
        self._settings = settings
        self._connections = Connections(self._base, settings, check_times=check_times)

    def __repr__(self) -> str:
        return f"HttpSource({self._base!r})"

    @contextlib.contextmanager
    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
        """Read a file; see `Source.open`."""
        watch = Watch()
        url = self._base + quote(check_path(path), safe="/%")
        response, url = self._get(url, range_headers(offset, validator), watch)
        try:
            answer = read_answer(response.status, response.headers, asked=offset, validator=validator, url=shown(url))
            yield Body(
                offset=answer.offset,
                total=answer.total,
                validator=answer.validator,
                pieces=self._pieces(response, watch, url) if answer.has_body else iter(()),
                cancel=watch.end,
            )
        finally:
            watch.forget()
            _end(response)

    def _get(self, url: str, headers: dict[str, str], watch: Watch) -> tuple[BaseHTTPResponse, str]:
        """The answer that has the file's bytes, or says that there are none left; and the URL that gave it."""
        settings = self._settings
        for _ in range(MAX_REDIRECTS + 1):
            with _explained(url, watch), watch.limit(settings.connect_seconds + settings.stall_seconds):
                response = self._connections.get(url, headers)
            if response.status in (200, 206, 416):
                return response, url
            with watch.limit(settings.stall_seconds):
                _drain(response)
            if response.status not in REDIRECTS:
                raise of_status(response.status, shown(url), response.headers)
            url = redirected(url, response.headers.get("Location"))
        raise FetchError(
            "the server redirects again and again", where=shown(url), expected=f"at most {MAX_REDIRECTS} times"
        )

    def _pieces(self, response: BaseHTTPResponse, watch: Watch, url: str) -> Iterator[bytes]:
        """The body as it comes: `read1` waits for one piece from the system, and not until so many bytes are there."""
        chunked = bool(getattr(response, "chunked", False))
        while True:
            watched = watch.limit(self._settings.stall_seconds) if chunked else contextlib.nullcontext()
            with _explained(url, watch), watched:
                piece = response.read1(PIECE_BYTES, decode_content=False)
            if watch.expired:  # the library takes an end in the length of a chunk for the end of the file
                raise _too_slow(url)
            if not piece:
                return
            yield piece


@contextlib.contextmanager
def _explained(url: str, watch: Watch) -> Iterator[None]:
    try:
        yield
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        if watch.expired:
            raise _too_slow(url) from None
        raise of_exception(error, shown(url), urlsplit(url).netloc) from None


def _too_slow(url: str) -> TemporaryError:
    return TemporaryError(
        "the server is too slow", where=shown(url), found="no whole head of an answer, or of a part of one, in time"
    )


def _drain(response: BaseHTTPResponse) -> None:
    """Read a small body to its end; leave a large one, and its connection with it."""
    left = DRAINED_BYTES
    with contextlib.suppress(urllib3.exceptions.HTTPError, http.client.HTTPException, OSError):
        while left > 0 and (piece := response.read1(left, decode_content=False)):
            left -= len(piece)
    _end(response)


def _end(response: BaseHTTPResponse) -> None:
    """Close the connection, unless all was read, and give its place back."""
    response.close()
    response.release_conn()


def redirected(url: str, location: str | None) -> str:
    """Where a redirect leads.

    Raises:
        FetchError: Nowhere, out of TLS, or to what is no web server.
    """
    text = (location or "").strip()
    try:
        target = urljoin(url, text)
        parts = urlsplit(target)
        usable = bool(text) and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or not target.isprintable() or len(target) > 4096:
        raise FetchError(
            "the server redirects to what is no URL of a file", where=shown(url), found=printable(repr(text[:120]))
        )
    if urlsplit(url).scheme == "https" and parts.scheme != "https":
        raise FetchError(
            "the server redirects from https:// to http://",
            where=shown(url),
            found=printable(shown(target)[:200]),
            hint="a captive portal does so; else correct the server's configuration",
        )
    return target


def shown(url: str) -> str:
    """A URL for messages: what follows a `?` is often a secret (a signed URL of a bucket)."""
    return url.partition("?")[0]


def checked_url(url: str) -> str:
    """A repository's URL with a slash at its end.

    Raises:
        UsageError: It is none.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        usable = False
    shown = printable(without_password(url)[:200])
    if not usable or " " in url:
        raise UsageError(
            "is no URL of a repository", where="the repository's URL", expected="https://HOST/PATH", found=shown
        )
    if "@" in parts.netloc:
        raise UsageError(
            "has a user or a password in it",
            where="the repository's URL",
            found=shown,
            hint="put the value of the header Authorization into a file, and name it in update.token_file",
        )
    if parts.query or parts.fragment:
        raise UsageError(
            "has a query or a fragment", where="the repository's URL", expected="https://HOST/PATH", found=shown
        )
    return url if url.endswith("/") else url + "/"
