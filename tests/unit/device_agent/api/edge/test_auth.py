from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.api.edge import auth
from device_agent.api.edge.auth import (
    Asked,
    Guard,
    Rules,
    Tokens,
    asked_of,
    check_listen_address,
    decide,
    is_loopback,
    is_loopback_address,
    read_tokens,
)
from device_agent.config import AgentConfig, SecurityConfig, ServerConfig
from edgeonnx.errors import UsageError

INFER, ADMIN = "infer-token-0123456789", "admin-token-0123456789"
LOAD = "/v2/repository/models/tiny/load"
INDEX = "/v2/repository/index"


def digests(*tokens: str) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(token.encode()).digest() for token in tokens)


def verdict(asked: Asked, tokens: Tokens, rules: Rules | None = None) -> int:
    """The status: 200, 401 or 403."""
    error = decide(asked, tokens, rules or Rules())
    return 200 if error is None else {"UnauthorizedError": 401, "ForbiddenError": 403}[type(error).__name__]


def bearer(token: str | None) -> str | None:
    return None if token is None else f"Bearer {token}"


NONE = Tokens()
WITH_INFER = Tokens(infer=digests("another-token-456789", INFER))
WITH_ADMIN = Tokens(admin=digests(ADMIN))
BOTH = Tokens(infer=digests(INFER), admin=digests(ADMIN, "another-token-456789"))


@pytest.mark.parametrize(
    ("tokens", "token", "infer", "load"),
    [
        (NONE, None, 200, 200),
        (NONE, "whatever", 200, 200),
        (WITH_INFER, None, 401, 403),
        (WITH_INFER, INFER, 200, 403),
        (WITH_INFER, "wrong", 401, 403),
        (WITH_ADMIN, None, 200, 401),
        (WITH_ADMIN, "wrong", 200, 401),
        (WITH_ADMIN, ADMIN, 200, 200),
        (BOTH, None, 401, 401),
        (BOTH, "wrong", 401, 401),
        (BOTH, INFER, 200, 403),
        (BOTH, ADMIN, 200, 200),
        (BOTH, INFER[:-1], 401, 401),
        (BOTH, INFER + "0", 401, 401),
        (BOTH, "", 401, 401),
    ],
)
def test_the_table(tokens: Tokens, token: str | None, infer: int, load: int) -> None:
    for path in ("/v1/embeddings", "/v2/models/tiny/infer", INDEX, "/v2", "/nowhere"):
        assert verdict(Asked(path=path, authorization=bearer(token), host="localhost"), tokens) == infer
    for path in (LOAD, "/v2/repository/models/tiny/unload", "/v2/repository/models/"):
        assert verdict(Asked(path=path, authorization=bearer(token), host="localhost"), tokens) == load


@pytest.mark.parametrize("tokens", [NONE, WITH_INFER, WITH_ADMIN, BOTH])
def test_health_is_always_open_and_metrics_if_the_operator_says_so(tokens: Tokens) -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert verdict(Asked(path=path), tokens, Rules(open_metrics=False)) == 200
    for path in ("/metrics", "/"):
        assert verdict(Asked(path=path), tokens) == 200
        closed = verdict(Asked(path=path), tokens, Rules(open_metrics=False))
        assert closed == (200 if tokens.infer is None else 401)
        assert verdict(Asked(path=path, authorization=bearer(INFER)), BOTH, Rules(open_metrics=False)) == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", INFER, f"Basic {INFER}", f"Bearer{INFER}", f"Bearer x {INFER}"]
)
def test_headers_that_hold_no_bearer_token(header: str) -> None:
    assert verdict(Asked(path="/v2", authorization=header), WITH_INFER) == 401


@pytest.mark.parametrize("header", [f"Bearer {INFER}", f"bearer {INFER}", f"BEARER  {INFER} "])
def test_the_scheme_is_read_as_http_says(header: str) -> None:
    assert verdict(Asked(path="/v2", authorization=header), WITH_INFER) == 200


@given(st.text())
def test_no_other_header_opens_anything(header: str) -> None:
    if INFER not in header and ADMIN not in header:
        assert BOTH.scopes(header) == frozenset()


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    real = auth.hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(auth.hmac, "compare_digest", counting)
    tokens = Tokens(infer=digests("a", "b", "c"), admin=digests("d", "e"))
    for token in ("a", "c", "d", "wrong"):
        compared.clear()
        tokens.scopes(f"Bearer {token}")
        assert compared == [(32, 32)] * 5


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8080"}, 200),
        ({"host": "localhost:8080"}, 200),
        ({"host": "LocalHost"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080", "fetch_site": "same-origin"}, 200),
        ({"host": "127.0.0.1:8080", "fetch_site": "none"}, 200),
        ({"host": "127.0.0.1:8080", "fetch_site": "cross-site"}, 403),
        ({"host": "127.0.0.1:8080", "fetch_site": "same-site"}, 403),
        ({"host": "127.0.0.1:8080", "fetch_site": ""}, 403),
        ({"host": "127.0.0.1:8080", "origin": "http://evil.example"}, 403),
        ({"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:3000"}, 403),
        ({"host": "127.0.0.1:8080", "origin": "null"}, 403),
        ({"host": "evil.example:8080", "origin": "http://evil.example:8080", "fetch_site": "same-origin"}, 403),
        ({"host": "localhost.evil.example:8080"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "10.0.0.1:8080"}, 403),
        ({"host": ""}, 403),
        ({}, 403),
    ],
)
def test_pages_of_other_sites_may_not_load_models(headers: dict[str, str], status: int) -> None:
    assert verdict(Asked(path=LOAD, **headers), NONE) == status
    assert verdict(Asked(path="/v1/embeddings", **headers), NONE) == 200
    assert verdict(Asked(path=LOAD, authorization=bearer(ADMIN), **headers), WITH_ADMIN) == 200


def test_the_agents_own_name_is_no_foreign_host() -> None:
    assert verdict(Asked(path=LOAD, host="box:8080"), NONE, Rules(host="Box")) == 200
    assert verdict(Asked(path=LOAD, host="other:8080"), NONE, Rules(host="Box")) == 403


def test_nobody_loads_models_anonymously_from_elsewhere() -> None:
    assert verdict(Asked(path=LOAD, host="127.0.0.1"), NONE, Rules(loopback=False)) == 403
    assert verdict(Asked(path=LOAD, authorization=bearer(ADMIN)), WITH_ADMIN, Rules(loopback=False)) == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)
    check_listen_address(AgentConfig(server=ServerConfig(host=host)))


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "no-such-host.invalid"])
def test_other_addresses_need_a_token_or_the_operators_word(host: str) -> None:
    server = ServerConfig(host=host)
    assert not is_loopback(host)
    with pytest.raises(UsageError, match="no token is asked"):
        check_listen_address(AgentConfig(server=server))
    with pytest.raises(UsageError):
        check_listen_address(AgentConfig(server=server, security=SecurityConfig(admin_token_file=Path("x"))))
    for security in (SecurityConfig(allow_anonymous=True), SecurityConfig(token_file=Path("x"))):
        check_listen_address(AgentConfig(server=server, security=security))


def test_a_name_is_no_literal_address() -> None:
    assert not is_loopback_address("localhost")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens", f"# of the agent\n\n{INFER}\r\n  {ADMIN}  \n")


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_a_token_file(file: Path) -> None:
    assert read_tokens(file) == digests(INFER, ADMIN)
    file.chmod(0o640)
    assert read_tokens(file) == digests(INFER, ADMIN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no token"),
        ("# nothing\n\n", "holds no token"),
        ("short\n", r"line 1: the token is too short; expected at least 16 characters; found 5"),
        (f"{INFER}\n{INFER} x\n", "line 2: the line is no token"),
        (b"\xff" * 20, "line 1: the line is no token"),
        ("tokén-0123456789abc", "is no token"),
        (b"\0" * 20, "is no token"),
        ("a" * 70_000, "too large"),
    ],
)
def test_files_without_proper_tokens(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_tokens(write(tmp_path / "tokens", text))
    assert INFER not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_a_file_that_every_user_may_read_or_write(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"open to every user.*found mode {mode:o}.*chmod 600"):
        read_tokens(file)


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read.*No such file"):
        read_tokens(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"cannot be read|no regular file"):
        read_tokens(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no regular file"):
        read_tokens(tmp_path / "pipe")


def answer_of(guard: Guard, path: str, headers: list[tuple[bytes, bytes]], kind: str = "http") -> int:
    """Status of a request through the middleware; 200 if it reached the application."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": kind, "path": path, "headers": headers, "method": "POST"}
    asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    return statuses[0]


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def header(token: str) -> tuple[bytes, bytes]:
    return (b"authorization", f"Bearer {token}".encode())


def test_the_middleware(tmp_path: Path, file: Path) -> None:
    admin = write(tmp_path / "admin", ADMIN)
    guard = Guard(app, AgentConfig(security=SecurityConfig(token_file=file, admin_token_file=admin)))
    assert answer_of(guard, "/v2", []) == 401
    assert answer_of(guard, "/v2", [header(INFER)]) == 200
    assert answer_of(guard, LOAD, [header(INFER)]) == 403
    assert answer_of(guard, LOAD, [header(ADMIN)]) == 200
    assert answer_of(guard, "/v2/health/live", []) == 200
    assert answer_of(guard, "/v2", [header("wrong"), header(INFER)]) == 401  # two headers are one too many
    assert answer_of(guard, "/x", [], kind="lifespan") == 200


def test_the_middleware_without_tokens() -> None:
    guard = Guard(app, AgentConfig())
    assert answer_of(guard, "/v2", []) == 200
    assert answer_of(guard, LOAD, [(b"host", b"127.0.0.1:8080")]) == 200
    assert answer_of(guard, LOAD, [(b"host", b"127.0.0.1:8080"), (b"origin", b"http://evil.example")]) == 403
    remote = AgentConfig(server=ServerConfig(host="0.0.0.0"), security=SecurityConfig(allow_anonymous=True))
    assert answer_of(Guard(app, remote), LOAD, [(b"host", b"127.0.0.1:8080")]) == 403


def test_what_is_read_of_a_request() -> None:
    scope = {
        "path": "/x",
        "headers": [(b"host", b"a"), (b"origin", b"b"), (b"sec-fetch-site", b"c"), (b"cookie", b"d")],
    }
    assert asked_of(scope) == Asked(path="/x", host="a", origin="b", fetch_site="c")
    orders = itertools.permutations([header("x"), header("y")])
    assert {asked_of({"path": "/", "headers": list(order)}).authorization for order in orders} == {""}


def test_tokens_are_read_again_and_kept_if_the_file_is_wrong(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(app, AgentConfig(security=SecurityConfig(token_file=file)))
    write(file, "renewed-token-0123456789\n")
    assert answer_of(guard, "/v2", [header(INFER)]) == 200
    guard.reload()
    assert answer_of(guard, "/v2", [header(INFER)]) == 401
    assert answer_of(guard, "/v2", [header("renewed-token-0123456789")]) == 200
    for break_it in (lambda: write(file, "short"), lambda: file.chmod(0o644), file.unlink):
        break_it()
        with caplog.at_level(logging.ERROR, logger="edgeonnx.agent"):
            guard.reload()
        assert "the tokens stay as they were" in caplog.text
        caplog.clear()
        assert answer_of(guard, "/v2", [header("renewed-token-0123456789")]) == 200


def test_a_wrong_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Guard(app, AgentConfig(security=SecurityConfig(token_file=tmp_path / "missing")))
