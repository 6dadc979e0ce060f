"""A live agent with bearer tokens: who gets what, what a browser may not do, and that no token is ever shown."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import bundles
from tests.support.agent import Agent, run_to_end
from tests.support.edge import drain, statuses
from tests.support.hostile import GOOD, connect, settings

INFER, ADMIN, RENEWED = "infer-0123456789abcdef", "admin-0123456789abcdef", "renewed-0123456789abcdef"
EMBEDDINGS = "/v1/embeddings"
LOAD = "/v2/repository/models/tiny/load"


def write(path: Path, token: str) -> Path:
    path.write_text(f"# tokens\n{token}\n", encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("auth")


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    return bundles.make_bundle(folder)


@pytest.fixture(scope="module")
def agent(folder: Path, bundle: Path) -> Iterator[Agent]:
    text = f"""
        [security]
        token_file = "{write(folder / "tokens", INFER)}"
        admin_token_file = "{write(folder / "admin-tokens", ADMIN)}"
        open_metrics = false
        [log]
        level = "debug"
        requests = true
        """
    with Agent(bundle=bundle, arguments=settings(folder, text)) as running:
        yield running
        assert running.process.poll() is None, running.log
    assert "Traceback" not in running.log
    for token in (INFER, ADMIN, RENEWED):
        assert token not in running.log
    assert "path=/v1/embeddings status=401" in running.log


@pytest.fixture(scope="module")
def client(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=30, verify=False) as connected:
        yield connected


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong-0123456789abcdef"),
        bearer(INFER[:-1]),
        bearer(INFER.upper()),
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {INFER}"},
        {"Authorization": INFER},
        {"Proxy-Authorization": f"Bearer {INFER}"},
        {"X-Api-Key": INFER},
        {"Cookie": f"Authorization=Bearer {INFER}"},
    ],
)
@pytest.mark.parametrize("path", [EMBEDDINGS, "/v2/models/tiny/infer", LOAD, "/nowhere"])
def test_no_token_or_a_wrong_one(client: httpx.Client, path: str, headers: dict[str, str]) -> None:
    response = client.post(path, content=GOOD, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    if path == EMBEDDINGS:
        assert error["code"] == "invalid_api_key"
        error = error["message"]
    assert error.startswith("Authorization: a bearer token is needed; expected Bearer")


@pytest.mark.parametrize("path", ["/metrics", "/", "/v2", "/v1/models", "/v2/models/tiny"])
def test_questions_need_a_token_too(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 401
    for token in (INFER, ADMIN):
        assert client.get(path, headers=bearer(token)).status_code not in (401, 403)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_health_is_open(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


def test_a_token_in_the_url_or_the_body_is_none(client: httpx.Client) -> None:
    assert client.post(f"{EMBEDDINGS}?access_token={INFER}", content=GOOD).status_code == 401
    assert client.post(EMBEDDINGS, data={"access_token": INFER}).status_code == 401


def test_two_authorization_headers_are_one_too_many(client: httpx.Client) -> None:
    headers = [("Authorization", f"Bearer {INFER}"), ("Authorization", "Bearer x")]
    for order in (headers, headers[::-1]):
        assert client.post(EMBEDDINGS, content=GOOD, headers=order).status_code == 401


def test_an_authorization_trailer_is_none(agent: Agent) -> None:
    with connect(agent) as connection:
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"%x\r\n%s\r\n0\r\nAuthorization: Bearer %s\r\n\r\n" % (len(GOOD), GOOD, INFER.encode())
        connection.sendall(head + chunks)
        assert statuses(drain(connection)) == [401]


def test_a_body_that_is_not_read_does_not_hold_up_the_refusal(client: httpx.Client) -> None:
    started = time.monotonic()
    assert client.post(EMBEDDINGS, content=b" " * (8 << 20)).status_code == 401
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "path",
    [
        LOAD,
        "/v2/repository/models/tiny/unload",
        "/v2/repository/models/tiny%2Fload",
        "/v2/repository/models/%74iny/load",
        "/v2/%72epository/models/tiny/load",
    ],
)
def test_only_an_admin_token_loads_and_unloads(client: httpx.Client, path: str) -> None:
    response = client.post(path, headers=bearer(INFER))
    assert response.status_code == 403
    assert "does not allow to load or unload models" in response.json()["error"]


@pytest.mark.parametrize("path", ["/V2/repository/models/tiny/load", "//v2/repository/models/tiny/load", f"{LOAD}/"])
def test_other_spellings_of_an_admin_path_lead_nowhere(client: httpx.Client, path: str) -> None:
    assert client.post(path, headers=bearer(INFER)).status_code in (403, 404)


def test_the_tokens_serve(client: httpx.Client) -> None:
    for token in (INFER, ADMIN):
        assert client.post(EMBEDDINGS, content=GOOD, headers=bearer(token)).status_code == 200
    assert client.post(LOAD, headers=bearer(ADMIN)).status_code not in (401, 403)


def test_tokens_are_read_again_on_sighup(agent: Agent, client: httpx.Client, folder: Path) -> None:
    def until(token: str, status: int) -> None:
        deadline = time.monotonic() + 5
        while client.post(EMBEDDINGS, content=GOOD, headers=bearer(token)).status_code != status:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    write(folder / "tokens", RENEWED)
    assert client.post(EMBEDDINGS, content=GOOD, headers=bearer(INFER)).status_code == 200
    agent.process.send_signal(signal.SIGHUP)
    until(RENEWED, 200)
    assert client.post(EMBEDDINGS, content=GOOD, headers=bearer(INFER)).status_code == 401
    write(folder / "tokens", "short")
    agent.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 5
    while "the tokens stay as they were" not in agent.log:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert client.post(EMBEDDINGS, content=GOOD, headers=bearer(RENEWED)).status_code == 200
    write(folder / "tokens", INFER)
    agent.process.send_signal(signal.SIGHUP)
    until(INFER, 200)


@pytest.fixture(scope="module")
def open_client(bundle: Path) -> Iterator[httpx.Client]:
    """A client of an agent that asks for no token."""
    with Agent(bundle=bundle) as running, httpx.Client(base_url=running.url, timeout=30, verify=False) as connected:
        yield connected


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Host": "evil.example"},
    ],
)
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_a_page_in_the_operators_browser_cannot_load_or_unload(
    open_client: httpx.Client, verb: str, headers: dict[str, str]
) -> None:
    headers = {"Content-Type": "text/plain", **headers}
    response = open_client.post(f"/v2/repository/models/tiny/{verb}", content=b"{}", headers=headers)
    assert response.status_code == 403
    assert "a page of another site may not load or unload models" in response.json()["error"]
    assert open_client.get("/v2/models/tiny/ready").status_code == 200


def test_no_page_is_allowed_to_add_a_token(open_client: httpx.Client) -> None:
    headers = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    response = open_client.options(EMBEDDINGS, headers=headers)
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "others can reach this address, and no token is asked of them"),
        (("--check", "--token-file", "{folder}/open"), "open to every user of this machine"),
    ],
)
def test_settings_that_would_be_unsafe_end_the_start(
    folder: Path, bundle: Path, arguments: tuple[str, ...], message: str
) -> None:
    write(folder / "open", INFER).chmod(0o644)
    result = run_to_end(bundle, *(argument.format(folder=folder) for argument in arguments))
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert INFER not in result.stderr
