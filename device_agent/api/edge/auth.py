"""Who may ask what: bearer tokens from files, and what is allowed without any.

There are two scopes. `infer` is every request for a result, metadata or statistics; `admin` is loading and unloading
models, and includes `infer`. Health needs no token, nor do metrics and the status page if `security.open_metrics`.

| `token_file` | `admin_token_file` | `infer` | `admin` |
|---|---|---|---|
| none | none | anyone | anyone, on a loopback listener; else nobody |
| set | none | a token | nobody |
| none | set | anyone | an admin token |
| set | set | a token of either file | an admin token |

**Browsers.** A page in the browser of someone who works on the box reaches a loopback listener, and may send a POST
without asking (no CORS preflight for plain text). Where `admin` needs no token, such requests are refused: by
`Sec-Fetch-Site` and `Origin`, which browsers set and pages cannot, and by a `Host` that is neither a loopback address
nor the agent's own name, which is how a page that rebinds its own DNS name gives itself away. Tokens need no such
check: a browser adds none by itself, and the agent never answers a preflight, so no page can add one.

**Files.** They are read at the start, and again on SIGHUP: the operator says when a file is whole, and a request costs
no look at the disk. A file that cannot be used then leaves the tokens as they were. Tokens are held as SHA-256 digests
and compared in constant time, always with all of them, so that the time of an answer tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_agent.api.edge.errors import answer_error
from edgeonnx.errors import EdgeOnnxError, ForbiddenError, ServingError, UnauthorizedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from device_agent.config import AgentConfig, SecurityConfig


logger = logging.getLogger("edgeonnx.agent")

ADMIN_PREFIX = "/v2/repository/models/"
"""Loading and unloading; the index of the repository is a question like any other."""
OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready", "/health"})
METRICS_PATHS = frozenset({"/metrics", "/", "/status.json"})
MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_FILE_BYTES = 64 << 10
HOW_TO_MAKE = "make one with: openssl rand -hex 32"

_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""What a bearer token consists of (RFC 6750, 2.1)."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """SHA-256 digests of the tokens; None: there is no such file."""

    infer: tuple[bytes, ...] | None = None
    admin: tuple[bytes, ...] | None = None

    def scopes(self, authorization: str | None) -> frozenset[str]:
        """What the bearer of an `Authorization` header may do: a set of "infer" and "admin"."""
        scheme, _, token = (authorization or "").partition(" ")
        digest = _digest(token.strip()) if scheme.lower() == "bearer" else b""
        admin = _any_equal(digest, self.admin or ())
        infer = _any_equal(digest, self.infer or ())
        return frozenset({"infer", "admin"} if admin else {"infer"} if infer else ())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _any_equal(digest: bytes, known: Iterable[bytes]) -> bool:
    """Whether the digest is one of those; every one is compared, also after one was equal."""
    found = False
    for other in known:
        found |= hmac.compare_digest(digest, other)
    return found


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a decision needs to know of a request; headers that are missing are None.

    Attributes:
        path: Percent-decoded, as the router matches it.
        authorization: `Authorization`; two of them count as a wrong one.
        host: `Host`.
        origin: `Origin`.
        fetch_site: `Sec-Fetch-Site`.
    """

    path: str
    authorization: str | None = None
    host: str | None = None
    origin: str | None = None
    fetch_site: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the configuration allows without a token.

    Attributes:
        open_metrics: Metrics and the status page.
        loopback: The agent listens on a loopback address.
        host: The name or address that it listens on.
    """

    open_metrics: bool = True
    loopback: bool = True
    host: str = "127.0.0.1"


def decide(asked: Asked, tokens: Tokens, rules: Rules) -> ServingError | None:
    """Whether a request is allowed.

    Returns:
        None if it is; else why not: `UnauthorizedError` (401) where a token could help, `ForbiddenError` (403) where
        this one does not.
    """
    admin = asked.path.startswith(ADMIN_PREFIX)
    if not admin and (
        tokens.infer is None or asked.path in OPEN_PATHS or (rules.open_metrics and asked.path in METRICS_PATHS)
    ):
        return None
    if admin and tokens.admin is None:
        return _anonymous_admin(asked, tokens, rules)
    scopes = tokens.scopes(asked.authorization)
    if ("admin" if admin else "infer") in scopes:
        return None
    if scopes:
        return ForbiddenError("this token does not allow to load or unload models", hint="use an admin token")
    found = "no token" if asked.authorization is None else "a wrong one"
    return UnauthorizedError(
        "a bearer token is needed", where="Authorization", expected="Bearer and a token of this agent", found=found
    )


def _anonymous_admin(asked: Asked, tokens: Tokens, rules: Rules) -> ForbiddenError | None:
    """Whether models may be loaded and unloaded without a token."""
    if tokens.infer is not None or not rules.loopback:
        return ForbiddenError(
            "loading and unloading models is not allowed", hint="start the agent with security.admin_token_file"
        )
    if asked.fetch_site not in (None, "same-origin", "none"):
        return _from_a_page("Sec-Fetch-Site", asked.fetch_site)
    name = _host_name(asked.host or "")
    if not (name in ("localhost", rules.host.lower()) or is_loopback_address(name)):
        return _from_a_page("Host", asked.host)
    if asked.origin is not None and asked.origin.partition("://")[2] != asked.host:
        return _from_a_page("Origin", asked.origin)
    return None


def _from_a_page(where: str, found: str | None) -> ForbiddenError:
    return ForbiddenError(
        "a page of another site may not load or unload models",
        where=where,
        found=repr((found or "")[:80]),
        hint="ask under the agent's loopback address, or use security.admin_token_file",
    )


def _host_name(host: str) -> str:
    """The name or address in a `Host` header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def is_loopback_address(name: str) -> bool:
    """Whether this is a literal IPv4 or IPv6 address that only this machine reaches."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_loopback(host: str) -> bool:
    """Whether listening on this name or address reaches only this machine.

    A name counts if every address that it has here is a loopback address; an empty one means all addresses.
    """
    if not host or is_loopback_address(host):
        return bool(host)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(is_loopback_address(str(item[4][0]).partition("%")[0]) for item in found)


def check_listen_address(config: AgentConfig) -> None:
    """Refuse to listen where others reach the agent without a token, unless the operator wants just that.

    Raises:
        UsageError: Exactly that.
    """
    security = config.security
    if security.token_file is None and not security.allow_anonymous and not is_loopback(config.server.host):
        raise UsageError(
            "others can reach this address, and no token is asked of them",
            where=f"server.host {config.server.host!r}",
            expected="a loopback address, or security.token_file",
            hint="give a token file, or set security.allow_anonymous if anyone may ask",
        )


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Digests of the tokens in a file: one a line, empty lines and those that begin with # left out.

    Raises:
        UsageError: The file cannot be read, is open to others, or has a line that is no token, or none at all.
    """
    where = str(path)
    try:
        # Not blocking: a path that names a pipe must not hold up the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor, so that mode and content are of one file
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise UsageError("the token file is no regular file", where=where)
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                raise UsageError(
                    "the token file is open to every user of this machine",
                    where=where,
                    expected="mode 600 or 640",
                    found=f"mode {stat.S_IMODE(mode):o}",
                    hint=f"chmod 600 {path}",
                )
            data = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError("the token file cannot be read", where=where, found=error.strerror or str(error)) from None
    if len(data) > MAX_TOKEN_FILE_BYTES:
        raise UsageError("the token file is too large", where=where, expected=f"at most {MAX_TOKEN_FILE_BYTES:,} bytes")
    return _digests(data, where)


def _digests(data: bytes, where: str) -> tuple[bytes, ...]:
    """The digests of a file's lines. No message shows a token."""
    digests = []
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if _TOKEN.fullmatch(token) is None:
            raise UsageError(
                "the line is no token",
                where=f"{where}, line {number}",
                expected="letters, digits and -._~+/ only",
                hint=HOW_TO_MAKE,
            )
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise UsageError(
                "the token is too short",
                where=f"{where}, line {number}",
                expected=f"at least {MIN_TOKEN_CHARACTERS} characters",
                found=str(len(token)),
                hint=HOW_TO_MAKE,
            )
        digests.append(_digest(token))
    if not digests:
        raise UsageError("the token file holds no token", where=where, hint=HOW_TO_MAKE)
    return tuple(digests)


def load_tokens(security: SecurityConfig) -> Tokens:
    """The tokens of both files.

    Raises:
        UsageError: See `read_tokens`.
    """
    return Tokens(
        infer=None if security.token_file is None else read_tokens(security.token_file),
        admin=None if security.admin_token_file is None else read_tokens(security.admin_token_file),
    )


class Guard:
    """ASGI middleware that answers what is not allowed, and passes on the rest.

    Args:
        app: The application.
        config: Token files, and the address that the agent listens on.
        on_refused: Called with each refusal, to count it.

    Raises:
        UsageError: A token file cannot be used.
    """

    def __init__(
        self, app: ASGIApp, config: AgentConfig, on_refused: Callable[[Exception], None] | None = None
    ) -> None:
        self._app = app
        self._on_refused = on_refused
        self._security = config.security
        host = config.server.host
        self._rules = Rules(open_metrics=config.security.open_metrics, loopback=is_loopback(host), host=host)
        self.tokens = load_tokens(config.security)

    def reload(self) -> None:
        """Read the files again; if one cannot be used, the log says so and the tokens stay as they were."""
        try:
            self.tokens = load_tokens(self._security)
        except EdgeOnnxError as error:
            logger.error("the tokens stay as they were: %s", error)  # noqa: TRY400 - no traceback for a wrong file
        else:
            logger.info("the tokens were read again")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        # These looks are all that a request costs where no token is asked.
        if scope["type"] != "http" or (self.tokens.infer is None and not scope["path"].startswith(ADMIN_PREFIX)):
            await self._app(scope, receive, send)
            return
        error = decide(asked_of(scope), self.tokens, self._rules)
        if error is None:
            await self._app(scope, receive, send)
        else:
            if self._on_refused is not None:
                self._on_refused(error)
            await answer_error(scope["path"], error)(scope, receive, send)


def asked_of(scope: Scope) -> Asked:
    """What a decision needs of an ASGI scope."""
    found: dict[bytes, str | None] = {}
    for name, value in scope["headers"]:
        if name in (b"authorization", b"host", b"origin", b"sec-fetch-site"):
            found[name] = "" if name in found else value.decode("latin-1")
    return Asked(
        path=scope["path"],
        authorization=found.get(b"authorization"),
        host=found.get(b"host"),
        origin=found.get(b"origin"),
        fetch_site=found.get(b"sec-fetch-site"),
    )
