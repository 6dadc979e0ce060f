"""Fetching from a real nginx: TLS, ranges, cuts, limits, redirects, proxies. Bytes are counted at the server."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_agent.config import UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.update.transfer.downloader import Downloader, Job, Timing
from device_agent.update.transfer.partial import NOTE_BYTES, Note, note_of
from device_agent.update.transfer.sources import NotFound, TemporaryError
from device_agent.update.transfer.sources.factory import open_source
from edgeonnx.errors import FetchError
from tests.support import nginx as support
from tests.support.certificates import Authority
from tests.support.nginx import CuttingProxy, Nginx, TunnelProxy

pytestmark = pytest.mark.skipif(support.PROGRAM is None, reason="nginx is not installed (Debian: nginx-light)")

SIZE = 300_000
HEAD_BYTES = 400
"""More than the head of an answer of nginx takes."""

SERVERS = """
    server {{
        listen 127.0.0.1:{http};
        absolute_redirect off;
        location /slow/ { rewrite ^/slow(.*)$ $1 break; limit_rate 1m; }
        location /trickle/ { rewrite ^/trickle(.*)$ $1 break; limit_rate 1k; }
        location /no-tags/ { rewrite ^/no-tags(.*)$ $1 break; etag off; }
        location /nothing/ { rewrite ^/nothing(.*)$ $1 break; etag off; add_header Last-Modified ""; }
        location /whole/ { rewrite ^/whole(.*)$ $1 break; max_ranges 0; }
        location /gzip/ { rewrite ^/gzip(.*)$ $1 break; gzip on; gzip_types *; gzip_min_length 1; }
        location /moved/ { rewrite ^/moved/(.*)$ /$1 redirect; }
        location /safe/ { rewrite ^/safe/(.*)$ https://localhost:{tls}/$1 permanent; }
        location /loop/ { return 302 $request_uri; }
        location /broken/ { return 500; }
        location /forbidden/ { return 403; }
        location /busy/ { add_header Retry-After 3 always; return 503; }
        location /portal/ { default_type text/html; return 200 "<html>please sign in</html>"; }
    }
    server {
        listen 127.0.0.1:{forward};
        location / { proxy_pass http://$http_host$request_uri; }
    }
    server {
        listen 127.0.0.1:{tls} ssl;
        ssl_certificate CERTS/good.crt; ssl_certificate_key CERTS/good.key;
        location /down/ { rewrite ^/down/(.*)$ http://127.0.0.1:{http}/$1 redirect; }
        location /away/ { rewrite ^/away/(.*)$ https://localhost:{mutual}/$1 redirect; }
        location /near/ { rewrite ^/near/(.*)$ /$1 redirect; }
    }
    server {
        listen 127.0.0.1:{mutual} ssl;
        ssl_certificate CERTS/good.crt; ssl_certificate_key CERTS/good.key;
        ssl_client_certificate CERTS/authority.pem; ssl_verify_client optional;
        location /known/ { if ($ssl_client_verify != SUCCESS) { return 403; } rewrite ^/known(.*)$ $1 break; }
        location /home/ { rewrite ^/home/(.*)$ https://localhost:{tls}/$1 redirect; }
    }
    server { listen 127.0.0.1:{young} ssl; ssl_certificate CERTS/young.crt; ssl_certificate_key CERTS/young.key; }
    server { listen 127.0.0.1:{old} ssl; ssl_certificate CERTS/old.crt; ssl_certificate_key CERTS/old.key; }
    server { listen 127.0.0.1:{other} ssl; ssl_certificate CERTS/other.crt; ssl_certificate_key CERTS/other.key; }
"""
PORTS = ("http", "forward", "tls", "mutual", "young", "old", "other")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nginx")


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Path:
    authority = Authority(folder)
    hosts = ("localhost", "127.0.0.1")
    authority.issue("good", hosts=hosts)
    authority.issue("young", hosts=hosts, starts=10)
    authority.issue("old", hosts=hosts, starts=-30, ends=-10)
    authority.issue("other", hosts=("elsewhere.example",))
    authority.issue("device")
    Authority(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def data() -> bytes:
    return random.Random(6).randbytes(SIZE)


@pytest.fixture(scope="module")
def running(folder: Path, certificates: Path, data: bytes) -> Iterator[Nginx]:
    servers = SERVERS.replace("{{", "{").replace("CERTS", str(certificates))
    server = Nginx(folder, servers, PORTS)
    for name in ("blob.zst", "second.zst"):
        path = server.www / name
        path.write_bytes(data)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    (server.www / "timestamp.json").write_bytes(b'{"signed": {}}' * 20)
    with server:
        yield server


@pytest.fixture
def server(running: Nginx) -> Nginx:
    running.requests(wanted=0)
    return running


def url(server: Nginx, port: str = "http", path: str = "") -> str:
    scheme = "http" if port in ("http", "forward") else "https"
    return f"{scheme}://localhost:{server.ports[port]}/{path}"


def loader(address: str, *, check_times: bool = True, disk: Disk | None = None, **settings: Any) -> Downloader:
    chosen: dict[str, Any] = {"connect_seconds": 5.0, "stall_seconds": 5.0, "stall_bytes": 1024, **settings}
    config = UpdateConfig(**chosen)
    timing = Timing(sleep=time.sleep, chance=lambda: 0.0)
    return Downloader(open_source(address, config, check_times=check_times), config, disk or Disk(), timing=timing)


def counted(server: Nginx, wanted: int) -> tuple[list[str], int]:
    """The statuses of the answers, and the bytes of their bodies."""
    found = server.requests(wanted)
    return [each["status"] for each in found], sum(int(each["body_bytes_sent"]) for each in found)


def test_files_come_whole_over_one_connection(server: Nginx, data: bytes, tmp_path: Path) -> None:
    downloads = loader(url(server))
    assert downloads.read("timestamp.json", limit=1000) == b'{"signed": {}}' * 20
    with pytest.raises(NotFound):
        downloads.read("2.root.json", limit=1000)
    downloads.download("blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data
    found = server.requests(3)
    assert [each["status"] for each in found] == ["200", "404", "200"]
    assert len({each["connection"] for each in found}) == 1
    assert downloads.received == 280 + SIZE


def test_connections_cut_at_random_bytes_cost_nothing_twice(server: Nginx, data: bytes, tmp_path: Path) -> None:
    """Seeded cuts, in heads too; no byte that arrived is asked for again."""
    choose = random.Random(42)
    cuts = [choose.randrange(HEAD_BYTES, 40_000) for _ in range(17)]
    cuts[1:1] = [1, 100, 250]
    with CuttingProxy(server.ports["http"], [*cuts, None]) as proxy:
        downloads = loader(f"http://127.0.0.1:{proxy.port}", retries=4, stall_bytes=1)
        downloads.download("blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data
    assert downloads.received == SIZE
    found = server.requests(2)
    assert [each["status"] for each in found] == ["200"] + ["206"] * (len(found) - 1)
    assert len(found) >= 12
    assert all(each["http_if_range"].startswith("\\x22") for each in found[1:])


def test_a_run_that_ended_is_gone_on_with_by_the_next_one(server: Nginx, data: bytes, tmp_path: Path) -> None:
    with CuttingProxy(server.ports["http"], [100_000]) as proxy, pytest.raises(TemporaryError, match="broke"):
        loader(f"http://127.0.0.1:{proxy.port}", retries=0).download("blob.zst", tmp_path / "part", limit=SIZE)
    kept = (tmp_path / "part").stat().st_size
    assert 100_000 - HEAD_BYTES <= kept < 100_000
    server.requests(1)
    second = loader(url(server))
    second.download("blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data
    assert second.received == SIZE - kept
    assert counted(server, 1) == (["206"], SIZE - kept)


class Killed(BaseException):
    """The process ends: nothing is tidied up."""


class Mortal(Disk):
    """The disk of a process that is killed before a step.

    Args:
        step: "write", "sync" or "rename".
        count: For writes the bytes, for others the steps of that kind, that are done before.
    """

    def __init__(self, step: str, count: int) -> None:
        self._left = {step: count}
        self.dead = False

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        self._take("write", len(data))
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._take("sync", 1)
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._take("rename", 1)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._take("unlink", 1)
        super().unlink(path)

    def _take(self, step: str, count: int) -> None:
        if step in self._left:
            self._left[step] -= count
            self.dead |= self._left[step] < 0
        if self.dead:
            raise Killed


@pytest.mark.parametrize(
    ("step", "count", "noted"),
    [
        ("write", 0, False),
        ("write", 1_000_000, False),
        ("sync", 0, False),  # of the part
        ("sync", 1, False),  # of its note
        ("rename", 0, False),
        ("sync", 2, True),  # of the folder: a killed process leaves the name, a power cut may take it
        ("write", 5_000_000, True),
        ("sync", 3, True),  # of the finished part
    ],
)
def test_a_killed_process_costs_at_most_one_blob(
    server: Nginx, tmp_path: Path, step: str, count: int, noted: bool
) -> None:
    size, part = 6 << 20, tmp_path / "part"
    large = server.www / "six.zst"
    if not large.exists():
        large.write_bytes(bytes(range(256)) * (size // 256))
        os.utime(large, (1_000_000_000, 1_000_000_000))
    with pytest.raises(Killed):
        loader(url(server), disk=Mortal(step, count)).download("six.zst", part, limit=size)
    kept = Note.from_bytes(note_of(part).read_bytes()).synced if note_of(part).exists() else 0
    assert (kept >= NOTE_BYTES) == noted
    second = loader(url(server))
    second.download("six.zst", part, limit=size)
    assert part.read_bytes() == large.read_bytes()
    assert second.received == size - kept
    statuses, total = counted(server, 2)
    assert statuses == ["200", "206" if noted else "200"]
    assert total <= 2 * size - kept


@pytest.mark.parametrize("kind", ["", "no-tags/"])
def test_a_file_that_changed_between_two_ranges_begins_anew(server: Nginx, tmp_path: Path, kind: str) -> None:
    path = server.www / "changing.zst"
    path.write_bytes(b"a" * SIZE)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    with CuttingProxy(server.ports["http"], [100_000]) as proxy, pytest.raises(TemporaryError):
        loader(f"http://127.0.0.1:{proxy.port}", retries=0).download(
            f"{kind}changing.zst", tmp_path / "part", limit=SIZE
        )
    assert (tmp_path / "part").stat().st_size > 0
    path.write_bytes(b"b" * SIZE)
    os.utime(path, (1_100_000_000, 1_100_000_000))
    server.requests(1)
    loader(url(server)).download(f"{kind}changing.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == b"b" * SIZE
    assert counted(server, 1) == (["200"], SIZE)


def test_without_a_tag_the_date_of_change_is_the_validator(server: Nginx, data: bytes, tmp_path: Path) -> None:
    with CuttingProxy(server.ports["http"], [100_000, None]) as proxy:
        loader(f"http://127.0.0.1:{proxy.port}").download("no-tags/blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data
    second = server.requests(2)[1]
    assert (second["status"], second["http_if_range"]) == ("206", "Sun, 09 Sep 2001 01:46:40 GMT")


@pytest.mark.parametrize("kind", ["nothing/", "whole/"])
def test_a_server_without_ranges_or_validators_sends_the_whole_again(
    server: Nginx, data: bytes, tmp_path: Path, kind: str
) -> None:
    with CuttingProxy(server.ports["http"], [100_000, None]) as proxy:
        loader(f"http://127.0.0.1:{proxy.port}").download(f"{kind}blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data
    assert counted(server, 2)[0] == ["200", "200"]


def test_a_part_that_is_complete_is_answered_416_and_costs_no_byte(server: Nginx, tmp_path: Path) -> None:
    large = server.www / "large.zst"
    large.write_bytes(bytes(5 << 20))
    os.utime(large, (1_000_000_000, 1_000_000_000))
    loader(url(server)).download("large.zst", tmp_path / "part", limit=5 << 20)
    again = loader(url(server))
    again.download("large.zst", tmp_path / "part", limit=5 << 20)
    assert again.received == 0
    assert [each["status"] for each in server.requests(2)] == ["200", "416"]


def test_a_part_that_is_longer_than_the_file_begins_anew(server: Nginx, tmp_path: Path) -> None:
    """A file that became shorter under the same tag is a broken server, and still ends well."""
    path = server.www / "shrinking.zst"
    path.write_bytes(bytes(5 << 20))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    downloads = loader(url(server, path="no-tags/"))
    downloads.download("shrinking.zst", tmp_path / "part", limit=5 << 20)
    path.write_bytes(b"short")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    downloads.download("shrinking.zst", tmp_path / "part", limit=5 << 20)
    assert (tmp_path / "part").read_bytes() == b"short"
    assert [each["status"] for each in server.requests(3)] == ["200", "416", "200"]


def test_a_stalled_answer_is_left_and_told(server: Nginx, tmp_path: Path) -> None:
    downloads = loader(url(server), retries=0, stall_seconds=0.3, stall_bytes=64 << 10)
    with pytest.raises(TemporaryError, match=r"silent|too slowly"):
        downloads.download("trickle/blob.zst", tmp_path / "part", limit=SIZE)


def test_our_limit_holds_and_two_downloads_share_it(server: Nginx, data: bytes, tmp_path: Path) -> None:
    downloads = loader(url(server), bandwidth_bytes=600_000)
    jobs = [Job(path=name, part=tmp_path / name, limit=SIZE) for name in ("blob.zst", "second.zst")]
    started = time.monotonic()
    jobs += [Job(path="no-tags/blob.zst", part=tmp_path / "third", limit=SIZE)]
    assert len(list(downloads.download_many(jobs))) == 3
    assert time.monotonic() - started >= (3 * SIZE - 600_000) / 600_000 - 0.01
    assert all(job.part.read_bytes() == data for job in jobs)
    # A download may be done before the other thread has begun; a third connection is what must not be.
    assert len({each["connection"] for each in server.requests(3)}) <= 2


def test_a_slow_server_is_waited_for(server: Nginx, data: bytes, tmp_path: Path) -> None:
    loader(url(server)).download("slow/blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data


def test_more_than_the_limit_is_not_fetched(server: Nginx, tmp_path: Path) -> None:
    downloads = loader(url(server))
    with pytest.raises(FetchError, match="larger than it may be"):
        downloads.download("blob.zst", tmp_path / "part", limit=SIZE - 1)
    assert downloads.received == 0


@pytest.mark.parametrize(
    ("path", "kind", "words", "asked"),
    [
        ("broken/x", TemporaryError, "in trouble; found status 500", 3),
        ("busy/x", TemporaryError, "in trouble; found status 503", 1),
        ("forbidden/x", NotFound, "not for this device; found status 403", 1),
        ("missing", NotFound, "not in the repository; found status 404", 1),
        ("portal/x", FetchError, "web page .HTML..*captive portal", 1),
        ("loop/x", FetchError, "redirects again and again; expected at most 5 times", 6),
    ],
)
def test_answers_that_are_no_file(server: Nginx, path: str, kind: type[Exception], words: str, asked: int) -> None:
    with pytest.raises(kind, match=words):
        loader(url(server), retries=2, retry_after_seconds=2).read(path, limit=1000)
    assert len(server.requests(asked)) == asked


def test_nothing_is_decoded_behind_our_back(server: Nginx, data: bytes, tmp_path: Path) -> None:
    (server.www / "text.json").write_bytes(b" " * 5000)
    assert loader(url(server)).read("gzip/text.json", limit=5000) == b" " * 5000


def test_redirects_are_followed_with_the_range(server: Nginx, certificates: Path, data: bytes, tmp_path: Path) -> None:
    authority = certificates / "authority.pem"
    with CuttingProxy(server.ports["http"], [100_000, None]) as proxy:
        loader(f"http://127.0.0.1:{proxy.port}").download("moved/blob.zst", tmp_path / "part", limit=SIZE)
    assert (tmp_path / "part").read_bytes() == data
    assert [each["status"] for each in server.requests(4)] == ["302", "200", "302", "206"]
    loader(url(server), ca_file=authority).download("safe/blob.zst", tmp_path / "other", limit=SIZE)
    assert (tmp_path / "other").read_bytes() == data


def test_tls_is_checked(server: Nginx, certificates: Path) -> None:
    authority = certificates / "authority.pem"
    assert loader(url(server, "tls"), ca_file=authority).read("timestamp.json", limit=1000)
    for port, trusted, words in (
        ("tls", certificates / "stranger.pem", r"no authority that this device trusts.*update\.ca_file"),
        ("tls", None, r"no authority that this device trusts.*update\.ca_file"),
        ("other", authority, "certificate is for another host"),
        ("young", authority, "not yet valid.*this device's clock says 20.*look at this device's clock"),
        ("old", authority, "has expired.*this device's clock says 20.*look at this device's clock"),
    ):
        with pytest.raises(FetchError, match=words) as caught:
            loader(url(server, port), ca_file=trusted).read("timestamp.json", limit=1000)
        assert not isinstance(caught.value, TemporaryError)
    with pytest.raises(FetchError, match=r"does not speak TLS.*http://"):
        loader(url(server).replace("http:", "https:"), ca_file=authority).read("timestamp.json", limit=1000)


def test_without_a_clock_only_the_dates_are_left_out(server: Nginx, certificates: Path) -> None:
    authority = certificates / "authority.pem"
    for port in ("young", "old", "tls"):
        downloads = loader(url(server, port), ca_file=authority, check_times=False)
        assert downloads.read("timestamp.json", limit=1000)
    with pytest.raises(FetchError, match="another host"):
        loader(url(server, "other"), ca_file=authority, check_times=False).read("timestamp.json", limit=1000)
    with pytest.raises(FetchError, match="no authority"):
        loader(url(server, "young"), ca_file=certificates / "stranger.pem", check_times=False).read("x", limit=1000)


IN_1970 = """
import sys
from pathlib import Path
from device_agent.config import UpdateConfig
from device_agent.update.transfer.sources.factory import open_source
settings = UpdateConfig(ca_file=Path("{authority}"))
source = open_source("{url}", settings, check_times=sys.argv[1] == "check")
with source.open("timestamp.json") as body:
    print(sum(map(len, body.pieces)))
"""


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
def test_a_device_whose_clock_is_in_1970(server: Nginx, certificates: Path) -> None:
    """It is told what is wrong; where the caller knows, nothing is wrong, and no library complains."""
    script = IN_1970.format(url=url(server, "tls"), authority=certificates / "authority.pem")
    command = ["faketime", "-m", "-f", "@1970-01-02 00:00:00", sys.executable, "-c", script]
    environment = {**os.environ, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    for argument, code, out, words in (("ignore", 0, "280\n", ""), ("check", 1, "", "clock says 1970-01-02")):
        done = subprocess.run(
            [*command, argument], capture_output=True, text=True, env=environment, timeout=30, check=False
        )
        assert (done.returncode, done.stdout) == (code, out), done.stderr
        assert words in done.stderr
        assert "Warning" not in done.stderr


def test_a_redirect_out_of_tls_is_refused(server: Nginx, certificates: Path) -> None:
    with pytest.raises(FetchError, match=r"from https:// to http://"):
        loader(url(server, "tls"), ca_file=certificates / "authority.pem").read("down/timestamp.json", limit=1000)
    assert len(server.requests(1)) == 1


def test_mutual_tls(server: Nginx, certificates: Path) -> None:
    trust: dict[str, Any] = {"ca_file": certificates / "authority.pem"}
    shown = {
        **trust,
        "client_certificate": certificates / "device.crt",
        "client_key": certificates / "device.key",
    }
    assert loader(url(server, "mutual"), **shown).read("known/timestamp.json", limit=1000)
    with pytest.raises(NotFound, match=r"update\.client_certificate"):
        loader(url(server, "mutual"), **trust).read("known/timestamp.json", limit=1000)
    assert [each["ssl_client_s_dn"] for each in server.requests(2)] == ["CN=device", "-"]
    assert loader(url(server, "tls"), **shown).read("away/timestamp.json", limit=1000)
    found = server.requests(2)
    assert [each["ssl_client_s_dn"] for each in found] == ["-", "-"]  # another origin: the device shows nothing
    assert found[1]["server_port"] == str(server.ports["mutual"])


def test_the_token_goes_to_its_own_host_alone(server: Nginx, certificates: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-this-device\n", encoding="ascii")
    downloads = loader(url(server, "tls"), ca_file=certificates / "authority.pem", token_file=token)
    for path in ("timestamp.json", "near/timestamp.json", "away/timestamp.json"):
        assert downloads.read(path, limit=1000)
    found = [(each["uri"], each["http_authorization"]) for each in server.requests(5)]
    secret = "Bearer secret-of-this-device"
    assert [value for _, value in found] == [secret, secret, secret, secret, "-"]


def test_proxies(server: Nginx, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    authority = certificates / "authority.pem"
    with TunnelProxy() as proxy:
        address = f"http://user:p%40ss@127.0.0.1:{proxy.port}"
        assert loader(url(server, "tls"), ca_file=authority, proxy=address).read("timestamp.json", limit=1000)
        assert proxy.asked[0].startswith(f"CONNECT localhost:{server.ports['tls']} ".encode())
        assert b"Basic dXNlcjpwQHNz" in proxy.asked[0]  # user:p@ss
        monkeypatch.setenv("https_proxy", address)
        assert loader(url(server, "tls"), ca_file=authority).read("timestamp.json", limit=1000)
        assert len(proxy.asked) == 2
        monkeypatch.setenv("no_proxy", "localhost")
        assert loader(url(server, "tls"), ca_file=authority).read("timestamp.json", limit=1000)
        monkeypatch.delenv("no_proxy")
        assert loader(url(server, "tls"), ca_file=authority, proxy="none").read("timestamp.json", limit=1000)
        assert len(proxy.asked) == 2
    monkeypatch.delenv("https_proxy")
    server.requests(4)
    monkeypatch.setenv("http_proxy", url(server, "forward"))
    plain = f"http://127.0.0.1:{server.ports['http']}"  # nginx as a proxy would need a resolver for names
    assert loader(plain).read("timestamp.json", limit=1000)
    assert [each["server_port"] for each in server.requests(2)] == [
        str(server.ports["http"]),
        str(server.ports["forward"]),
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "proxy wants to know who asks.*USER:PASSWORD"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "proxy does not connect.*502"),
    ],
)
def test_a_proxy_that_refuses(server: Nginx, certificates: Path, answer: bytes, words: str) -> None:
    with TunnelProxy(answer=answer) as proxy:
        settings: dict[str, Any] = {"proxy": f"http://127.0.0.1:{proxy.port}", "retries": 0}
        with pytest.raises(FetchError, match=words):
            loader(url(server, "tls"), ca_file=certificates / "authority.pem", **settings).read("x", limit=1000)
