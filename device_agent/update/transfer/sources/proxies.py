"""Which proxy a request goes through: as the settings say, else as the environment says."""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from edgeonnx.errors import UsageError, printable

DIRECT = "none"
"""The word in the settings that turns proxies off."""


def proxy_for(scheme: str, host: str, setting: str | None) -> str | None:
    """The URL of the proxy for a request, or None.

    The environment's variables are those of most programs: `https_proxy`, `http_proxy` and `all_proxy`, in small
    letters or (all but `http_proxy` in a CGI program) capitals; `no_proxy` names the hosts that are reached directly.

    Args:
        scheme: "http" or "https", of the request.
        host: Its host, with `:port` where that is not the scheme's own.
        setting: `update.proxy`.

    Raises:
        UsageError: It is no URL of an HTTP proxy.
    """
    if setting == DIRECT:
        return None
    proxies = urllib.request.getproxies_environment()
    if urllib.request.proxy_bypass(host, proxies):
        return None
    if setting is not None:
        return _checked(setting, "update.proxy")
    found = proxies.get(scheme) or proxies.get("all")
    return _checked(found if "://" in found else f"http://{found}", f"{scheme}_proxy") if found else None


def _checked(url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            "is no URL of an HTTP proxy",
            where=where,
            expected=f'http://HOST:PORT, or "{DIRECT}" in the settings',
            found=printable(without_password(url)[:120]),
        )
    return url


def without_password(url: str) -> str:
    """A URL that may be shown: its user and password are left out."""
    scheme, separator, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return scheme + separator + authority.rpartition("@")[2] + slash + path
