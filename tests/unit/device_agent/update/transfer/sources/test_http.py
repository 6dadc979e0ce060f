"""What answers, failures, redirects, URLs and proxies mean: headers in, decisions out. No network."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from urllib3 import exceptions as http_errors

from device_agent.config import UpdateConfig
from device_agent.update.transfer.sources import NotFound, RangeError, TemporaryError, check_path, looks_like_html
from device_agent.update.transfer.sources.answers import range_headers, read_answer, validator_of
from device_agent.update.transfer.sources.connections import origin_of
from device_agent.update.transfer.sources.factory import open_source
from device_agent.update.transfer.sources.failures import of_exception, of_status, retry_after
from device_agent.update.transfer.sources.folder import FolderSource
from device_agent.update.transfer.sources.http import HttpSource, checked_url, redirected
from device_agent.update.transfer.sources.proxies import proxy_for, without_password
from edgeonnx.errors import FetchError, UsageError

URL = "https://host/repository/x"
TAG = '"v1"'
DATE = "Sun, 09 Sep 2001 01:46:40 GMT"
LATER = "Sun, 09 Sep 2001 01:46:41 GMT"


def test_a_range_is_asked_for_only_where_there_is_something_to_go_on_with() -> None:
    assert range_headers(0, None) == {}
    assert range_headers(0, TAG) == {}
    assert range_headers(10, TAG) == {"Range": "bytes=10-", "If-Range": TAG}
    assert range_headers(10, None) == {"Range": "bytes=10-"}


@pytest.mark.parametrize(
    ("headers", "total", "validator"),
    [
        ({"Content-Length": "100", "ETag": TAG}, 100, TAG),
        ({"Content-Length": "100", "ETag": f"W/{TAG}"}, 100, None),
        ({"Content-Length": "100", "ETag": f"W/{TAG}", "Last-Modified": DATE, "Date": LATER}, 100, DATE),
        ({"Content-Length": "100", "Last-Modified": DATE, "Date": DATE}, 100, None),
        ({"Content-Length": "100", "Last-Modified": DATE}, 100, None),
        ({"Content-Length": "100", "Last-Modified": "yesterday", "Date": LATER}, 100, None),
        ({"Content-Length": "100", "Transfer-Encoding": "chunked"}, None, None),
        ({"Content-Length": "1e2"}, None, None),
        ({"Content-Length": "-5"}, None, None),
        ({"Content-Length": "٣"}, None, None),
        ({"Content-Length": "9" * 30}, None, None),
        ({"ETag": "v1"}, None, None),
        ({"ETag": '"a\nb"'}, None, None),
        ({"ETag": '"' + "x" * 300 + '"'}, None, None),
        ({}, None, None),
    ],
)
def test_the_head_of_a_whole_file(headers: dict[str, str], total: int | None, validator: str | None) -> None:
    for asked in (0, 10):  # the same if a range was asked for: then the file begins anew
        answer = read_answer(200, headers, asked=asked, validator=TAG, url=URL)
        assert (answer.offset, answer.total, answer.validator, answer.has_body) == (0, total, validator, True)


@pytest.mark.parametrize(
    ("headers", "total"),
    [
        ({"Content-Range": "bytes 10-99/100", "ETag": TAG}, 100),
        ({"Content-Range": "bytes 10-99/100", "Content-Length": "90"}, 100),
        ({"Content-Range": "bytes 10-99/*"}, 100),
        ({"Content-Range": "bytes 10-99/100", "Last-Modified": DATE, "Date": LATER}, 100),
    ],
)
def test_the_head_of_the_part_that_was_asked_for(headers: dict[str, str], total: int) -> None:
    answer = read_answer(206, headers, asked=10, validator=TAG, url=URL)
    assert (answer.offset, answer.total, answer.has_body) == (10, total, True)
    assert answer.validator is not None


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content-Range": "bytes 0-99/100"}, "another part"),
        ({"Content-Range": "bytes 9-99/100"}, "another part"),
        ({"Content-Range": "bytes 11-99/100"}, "another part"),
        ({"Content-Range": "bytes 10-98/100"}, "another part"),
        ({"Content-Range": "bytes 10-5/100"}, "another part"),
        ({"Content-Range": "bytes 10-99/100", "Content-Length": "91"}, "another part"),
        ({"Content-Range": "bytes 10-99/100", "ETag": '"v2"'}, "changed"),
        ({"Content-Range": "bytes */100"}, "does not say which"),
        ({"Content-Range": "lines 10-99/100"}, "does not say which"),
        ({"Content-Range": "bytes 10-99/100" * 20}, "does not say which"),
        ({"Content-Type": "multipart/byteranges; boundary=x"}, "does not say which"),
        ({}, "does not say which"),
    ],
)
def test_another_part_than_the_one_that_was_asked_for(headers: dict[str, str], words: str) -> None:
    with pytest.raises(RangeError, match=words):
        read_answer(206, headers, asked=10, validator=TAG, url=URL)


def test_nothing_left() -> None:
    answer = read_answer(416, {"Content-Range": "bytes */10"}, asked=10, validator=TAG, url=URL)
    assert (answer.offset, answer.total, answer.validator, answer.has_body) == (10, 10, TAG, False)
    for text in ("bytes */9", "bytes */11", "bytes 0-9/10", "", "bytes */*"):
        with pytest.raises(RangeError):
            read_answer(416, {"Content-Range": text}, asked=10, validator=TAG, url=URL)


@pytest.mark.parametrize("status", [206, 416])
def test_a_part_that_nobody_asked_for(status: int) -> None:
    with pytest.raises(FetchError, match="the whole was asked for") as caught:
        read_answer(status, {"Content-Range": "bytes 0-9/10"}, asked=0, validator=None, url=URL)
    assert not isinstance(caught.value, TemporaryError)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "GZIP", "identity, gzip", "\x1b[31m"])
def test_a_compressed_answer_is_refused(coding: str) -> None:
    with pytest.raises(FetchError, match="turn compression off") as caught:
        read_answer(200, {"Content-Encoding": coding}, asked=0, validator=None, url=URL)
    assert str(caught.value).isprintable()
    assert read_answer(200, {"Content-Encoding": " Identity "}, asked=0, validator=None, url=URL)


def test_a_strong_tag_comes_before_the_date() -> None:
    assert validator_of({"ETag": TAG, "Last-Modified": DATE, "Date": LATER}) == TAG


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (410, NotFound),
        (403, NotFound),
        (401, FetchError),
        (407, FetchError),
        (511, FetchError),
        (204, FetchError),
        (400, FetchError),
        (304, FetchError),
        (408, TemporaryError),
        (429, TemporaryError),
        (500, TemporaryError),
        (502, TemporaryError),
        (503, TemporaryError),
        (599, TemporaryError),
    ],
)
def test_statuses(status: int, kind: type[Exception]) -> None:
    error = of_status(status, URL, {})
    assert type(error) is kind
    assert f"found status {status}" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "120"}, 120),
        ({"Retry-After": " 0 "}, 0),
        ({"Retry-After": LATER, "Date": DATE}, 1),
        ({"Retry-After": DATE, "Date": LATER}, 0),
        ({"Retry-After": LATER}, None),  # nothing is known of the server's clock, nor of ours
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "9" * 400}, 999_999_999_999),
        ({}, None),
    ],
)
def test_when_to_come_back(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
    error = of_status(503, URL, headers)
    assert isinstance(error, TemporaryError)
    assert error.retry_after == seconds


def test_failures_say_what_the_system_said() -> None:
    refused = http_errors.NewConnectionError(None, "Failed")  # type: ignore[arg-type]
    refused.__cause__ = ConnectionRefusedError(111, "Connection refused")
    error = of_exception(refused, URL, "host")
    assert isinstance(error, TemporaryError)
    assert "no connection to host; found Connection refused" in str(error)
    broken = http_errors.ProtocolError("Connection broken", ConnectionResetError(104, "Connection reset by peer"))
    assert "the connection broke; found Connection reset by peer" in str(of_exception(broken, URL, "host"))

    ended = http_errors.ProtocolError("Connection aborted.", http.client.RemoteDisconnected("Remote end closed"))
    assert "the connection broke; found an end in the middle of the answer" in str(of_exception(ended, URL, "host"))
    strange = http_errors.ProtocolError("Connection aborted.", http.client.BadStatusLine("SSH-2.0"))
    assert "the connection broke; found what is no HTTP" in str(of_exception(strange, URL, "host"))


def test_each_failure_of_the_network_says_what_to_do() -> None:
    connection: Any = None
    unknown = socket.gaierror(-2, "Name or service not known")
    for raised, words in (
        (http_errors.NameResolutionError("host", connection, unknown), "the name host is not known.*DNS server"),
        (http_errors.ConnectTimeoutError(connection, "timed out"), "host does not answer.*firewalls"),
        (http_errors.ReadTimeoutError(connection, URL, "timed out"), r"the server is silent.*update\.stall_seconds"),
        (http_errors.EmptyPoolError(connection, "no place"), "all connections to the server are in use"),
        (http_errors.ProxyError("no", ConnectionRefusedError(111, "Connection refused")), r"refused.*update\.proxy"),
    ):
        error = of_exception(raised, URL, "host")
        assert isinstance(error, TemporaryError)
        assert re.search(words, str(error))


def test_a_handshake_that_is_cut_may_go_better_next_time() -> None:
    cut = http_errors.SSLError(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"))
    assert isinstance(of_exception(cut, URL, "host"), TemporaryError)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/y", "https://host/y"),
        ("y", "https://host/repository/y"),
        ("//other/y", "https://other/y"),
        ("https://other:444/y?signature=1", "https://other:444/y?signature=1"),
    ],
)
def test_redirects_that_are_followed(location: str, target: str) -> None:
    assert redirected(URL, location) == target


@pytest.mark.parametrize(
    "location",
    [
        None,
        "",
        "http://host/y",
        "file:///etc/passwd",
        "ftp://host/y",
        "javascript:x",
        "https://user:secret@host/y",
        "https://host:99999/y",
        "https://[::1/y",
        "https://host/\x07",
        "https://host/" + "y" * 5000,
    ],
)
def test_redirects_that_are_refused(location: str | None) -> None:
    with pytest.raises(FetchError, match="redirects"):
        redirected(URL, location)


def test_the_scheme_may_be_written_in_capitals() -> None:
    with pytest.raises(FetchError, match="from https:// to http://"):
        redirected("HTTPS://host/x", "http://host/x")
    assert isinstance(open_source("HTTPS://host/a", UpdateConfig()), HttpSource)


def test_a_redirect_into_tls_is_followed() -> None:
    assert redirected("http://host/x", "https://host/x") == "https://host/x"


def test_a_signed_url_is_not_shown() -> None:
    with pytest.raises(FetchError) as caught:
        redirected("https://host/x?signature=secret", "http://host/y?signature=secret")
    assert "secret" not in str(caught.value)


def test_the_url_of_a_repository() -> None:
    assert checked_url("https://host/a") == "https://host/a/"
    assert checked_url("http://[::1]:8080/") == "http://[::1]:8080/"
    assert isinstance(open_source("http://host/a", UpdateConfig()), HttpSource)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host/a",
        "ftp://host/",
        "https:///a",
        "https://host:0/",
        "https://host:99999/",
        "https://[::1/",
        "https://ho st/",
        "https://host/\n",
        "https://user:secret@host/",
        "https://host/?key=secret",
        "https://host/#part",
        "file://server/share",
        "file:",
        "s3://bucket/a",
    ],
)
def test_what_is_no_url_of_a_repository(url: str) -> None:
    with pytest.raises(UsageError, match="the repository's URL") as caught:
        open_source(url, UpdateConfig())
    assert str(caught.value).isprintable()
    assert "user:secret" not in str(caught.value)


def test_a_folder_by_its_url(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    assert isinstance(open_source(f"file://{tmp_path}/a%20b", UpdateConfig()), FolderSource)
    with pytest.raises(UsageError, match="is no folder"):
        open_source(f"file://{tmp_path}/missing", UpdateConfig())


@pytest.mark.parametrize(
    "path", ["", "/x", "x/", "a//b", "../x", "a/../x", "./x", "a/.", "a\\b", "a\nb", "a\0b", "x" * 2000]
)
def test_paths_that_name_no_file(path: str) -> None:
    with pytest.raises(FetchError, match="is no path of a repository"):
        check_path(path)


@pytest.mark.parametrize("path", ["1.root.json", "a/b.1.0.0+cpu.json", "1.%2Frole.json", "1...json", "a b?#.json"])
def test_paths_that_name_a_file(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("data", "html"),
    [
        (b"<!DOCTYPE html>", True),
        (b"<!doctype  HTML PUBLIC", True),
        (b"\xef\xbb\xbf\r\n\t <html lang=en>", True),
        (b"<!-- hello --><html>", True),
        (b"<script>location=1</script>", True),
        (b"<htmlx>", False),
        (b'{"signed": "<html>"}', False),
        (b"\x28\xb5\x2f\xfd<html>", False),
        (b"<", False),
        (b"", False),
        (b" " * 10_000 + b"<html>", False),
    ],
)
def test_web_pages(data: bytes, html: bool) -> None:
    assert looks_like_html(data) == html


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_the_proxy_of_the_settings_and_of_the_environment(environment: pytest.MonkeyPatch) -> None:
    assert proxy_for("https", "host", None) is None
    assert proxy_for("https", "host", "http://p:1") == "http://p:1"
    environment.setenv("HTTPS_PROXY", "http://e:2")
    assert proxy_for("https", "host", None) == "http://e:2"
    assert proxy_for("http", "host", None) is None
    assert proxy_for("https", "host", "http://p:1") == "http://p:1"
    assert proxy_for("https", "host", "none") is None
    environment.setenv("all_proxy", "e:3")
    assert proxy_for("http", "host", None) == "http://e:3"
    environment.setenv("no_proxy", "other,.inside")
    assert proxy_for("https", "a.inside:8443", None) is None
    assert proxy_for("https", "host", None) == "http://e:2"


@pytest.mark.parametrize("url", ["socks5://p:1", "p:1", "http://", "http://p:x", "http://user:secret@p:99999"])
def test_what_is_no_proxy(environment: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(UsageError, match=r"no URL of an HTTP proxy.*\"none\"") as caught:
        proxy_for("https", "host", url)
    assert "secret" not in str(caught.value)


def test_passwords_are_not_shown() -> None:
    assert without_password("http://user:p@ss@host:1/a@b") == "http://host:1/a@b"
    assert without_password("http://host:1") == "http://host:1"


def test_origins() -> None:
    assert origin_of("https://Host/a") == origin_of("https://host:443/b") == origin_of("https://host./c")
    assert len({origin_of(url) for url in ("https://host/", "http://host/", "https://host:444/", "https://b/")}) == 4


def source(url: str = "https://host/", **settings: Any) -> HttpSource:
    return HttpSource(url, UpdateConfig(**settings))


def test_files_of_the_settings_that_cannot_be_used_are_told_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ca_file": tmp_path / "missing"}, r"update\.ca_file.*No such file"),
        ({"ca_file": empty}, r"update\.ca_file.*PEM"),
        ({"client_certificate": empty}, "both client_certificate and client_key"),
        ({"client_key": empty}, "both client_certificate and client_key"),
        ({"client_certificate": empty, "client_key": empty}, r"update\.client_certificate.*PEM"),
        ({"token_file": tmp_path / "missing"}, r"update\.token_file.*No such file"),
        ({"token_file": empty}, r"update\.token_file.*holds no token"),
    )
    for settings, words in cases:
        with pytest.raises(UsageError, match=words):
            source(**settings)


def test_a_token_does_not_travel_in_the_clear(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with pytest.raises(UsageError, match="in the clear"):
        source("http://host/", token_file=token)
    assert source("http://localhost:1/", token_file=token)
    token.write_text("se\ncret")
    with pytest.raises(UsageError, match="holds no token"):
        source(token_file=token)
    token.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="other bytes than ASCII"):
        source(token_file=token)
