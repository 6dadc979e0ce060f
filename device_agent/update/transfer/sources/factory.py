"""The source for a repository's URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from edgeonnx.errors import UsageError, printable

if TYPE_CHECKING:
    from device_agent.config import UpdateConfig
    from device_agent.update.transfer.sources import Source


def open_source(url: str, settings: UpdateConfig, *, check_times: bool = True) -> Source:
    """The source for a URL; nothing is fetched yet.

    Args:
        url: `https://...`, `http://...` or `file:///...`.
        settings: `[update]`.
        check_times: Whether certificates must be valid at the time of this machine's clock. False where the clock is
            known to be wrong: the signed metadata vouch for what is fetched, whoever sent it.

    Raises:
        UsageError: The URL has another scheme, or cannot be used, or a file that the settings name cannot.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https"):
        from device_agent.update.transfer.sources.http import (
            HttpSource,  # a device that reads from a stick needs no TLS
        )

        return HttpSource(url, settings, check_times=check_times)
    path = url[len("file://") :].removeprefix("localhost")
    if scheme == "file" and path.startswith("/"):
        from device_agent.update.transfer.sources.folder import FolderSource

        return FolderSource(Path(unquote(path)))
    raise UsageError(
        "is no URL of a repository",
        where="the repository's URL",
        expected="https://..., http://... or file:///...",
        found=printable(repr(url[:200])),
    )
