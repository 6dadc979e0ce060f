"""Where a repository's files come from: a web server, or a folder. This module is the port; each source is a module.

A source gives bytes, as they lie at a path, and says what went wrong. It verifies nothing: metadata is signed, and
contents are named by their digests. It does not try again either: `device_agent.update.transfer.downloader` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeonnx.errors import FetchError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

PIECE_BYTES = 64 << 10
"""The most that a source reads at once, and so what one download takes of memory."""

MAX_PATH_CHARACTERS = 1024

PORTAL_HINT = (
    "a captive portal (a network that wants to be signed in to) or a wrong URL? Open the repository's URL in a browser "
    "of this network"
)

_HTML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!--|(?:!doctype\s+html|html|head|body|script|meta)\b)", re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


class NotFound(FetchError):  # noqa: N818 - named as HTTP names it
    """The repository has no such file, or does not give it to this device."""


class TemporaryError(FetchError):
    """Trying again soon may help.

    Attributes:
        retry_after: Seconds after which the server asks to be tried again, or None.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, **parts: str | None) -> None:
        super().__init__(
            message,
            where=parts.get("where"),
            expected=parts.get("expected"),
            found=parts.get("found"),
            hint=parts.get("hint"),
        )
        self.retry_after = retry_after


class RangeError(TemporaryError):
    """The source does not go on where it was asked to: the file has to be fetched from its start."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Body:
    """A file that is being read.

    Attributes:
        offset: Where `pieces` start in the file: as asked, or 0 if the source cannot go on there, or must not, because
            the file is not the one that the validator is of.
        total: Size of the whole file in bytes, or None if the source does not say.
        validator: What identifies this state of the file, for `open`; None: it cannot be gone on with.
        pieces: The bytes, each piece at most `PIECE_BYTES` long.
        cancel: Ends, from another thread, the wait for a piece.
    """

    offset: int
    total: int | None
    validator: str | None
    pieces: Iterator[bytes]
    cancel: Callable[[], None] = _nothing


class Source(Protocol):
    """A repository's files."""

    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> AbstractContextManager[Body]:
        """Read a file.

        Args:
            path: Its path, relative to the repository.
            offset: Where to start, in bytes.
            validator: What an earlier `Body` said; the source starts at `offset` only if the file is still the same.

        Raises:
            NotFound: There is no such file.
            RangeError: The file does not go on at `offset`.
            TemporaryError: It does not come now.
            FetchError: It cannot be read.
        """
        ...


def check_path(path: str) -> str:
    """Return `path` if it can name a file of a repository; it may be percent-encoded as in a URL.

    Raises:
        FetchError: It is empty, absolute, too long, or has `.`, `..`, a backslash or a control character in it.
    """
    segments = path.split("/")
    if len(path) > MAX_PATH_CHARACTERS or _UNSAFE.search(path) or any(part in ("", ".", "..") for part in segments):
        raise FetchError(
            "is no path of a repository",
            where=printable(path[:120]),
            expected="a relative path without '.', '..', backslashes and control characters",
        )
    return path


def looks_like_html(data: bytes) -> bool:
    """Whether the first bytes of a file are those of a web page: what captive portals and wrong URLs answer with."""
    return _HTML.match(data[:4096]) is not None
