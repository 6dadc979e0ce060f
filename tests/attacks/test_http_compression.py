"""Compressed bodies against a live agent: bombs cost what a plain body may, and what was cut or forged is refused."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import httpx
import orjson
import pytest

from tests.support import bundles
from tests.support.agent import Agent
from tests.support.hostile import GOOD, Bystander, resident_bytes

EMBEDDINGS = "/v1/embeddings"
INFER = "/v2/models/tiny/infer"
TEXT = orjson.dumps({"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}]})
LIMIT = 8 << 20


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with Agent(bundle=bundles.make_bundle(tmp_path_factory.mktemp("compression"))) as running:
        with Bystander(running, growth=8 * LIMIT):
            yield running
        assert running.process.poll() is None, running.log
    assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def client(agent: Agent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=30, verify=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A quarter of a gigabyte in a megabyte of gzip: valid JSON in front, and blanks that JSON allows behind it."""
    compressor = zlib.compressobj(1, wbits=31)
    blank = b" " * (1 << 20)
    packed = compressor.compress(GOOD)
    for _ in range(256):
        packed += compressor.compress(blank)
    return packed + compressor.flush()


def post(client: httpx.Client, path: str, content: bytes, encoding: str) -> httpx.Response:
    return client.post(path, content=content, headers={"Content-Encoding": encoding})


def check_error(response: httpx.Response, status: int, message: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert message in (error if isinstance(error, str) else error["message"])


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate)],
)
def test_good_compressed_bodies(client: httpx.Client, encoding: str, compress: object) -> None:
    assert callable(compress)
    for path, content in ((EMBEDDINGS, GOOD), (INFER, TEXT)):
        plain = client.post(path, content=content).json()
        assert post(client, path, compress(content), encoding).json() == plain
        members = compress(content[:10]) + compress(content[10:])
        if encoding != "deflate":
            assert post(client, path, members, encoding).json() == plain


@pytest.mark.parametrize("path", [EMBEDDINGS, INFER])
def test_a_bomb(agent: Agent, client: httpx.Client, bomb: bytes, path: str) -> None:
    before = resident_bytes(agent)
    for _ in range(4):
        check_error(post(client, path, bomb, "gzip"), 413, "more after decompression")
    assert resident_bytes(agent) - before < 4 * LIMIT


def test_a_bomb_of_bombs(client: httpx.Client, bomb: bytes) -> None:
    check_error(post(client, EMBEDDINGS, gzip.compress(bomb), "gzip"), 400, "the body is not JSON")
    check_error(post(client, EMBEDDINGS, gzip.compress(bomb), "gzip, gzip"), 415, "one of gzip, deflate and identity")


def test_a_bomb_of_many_members(client: httpx.Client) -> None:
    check_error(post(client, EMBEDDINGS, gzip.compress(b"") * 100_000, "gzip"), 400, "more than 1,024 members")
    blank = gzip.compress(b" " * 100_000)
    check_error(post(client, EMBEDDINGS, gzip.compress(GOOD) + blank * 1000, "gzip"), 413, "more after decompression")


def test_a_bomb_that_comes_in_chunks_without_a_length(client: httpx.Client, bomb: bytes) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (bomb[at : at + 1000] for at in range(0, len(bomb), 1000))

    response = client.post(EMBEDDINGS, content=pieces(), headers={"Content-Encoding": "gzip"})
    check_error(response, 413, "more after decompression")


def test_a_body_of_exactly_the_limit(client: httpx.Client) -> None:
    whole = GOOD + b" " * (LIMIT - len(GOOD))
    assert post(client, EMBEDDINGS, gzip.compress(whole, 1), "gzip").status_code == 200
    check_error(post(client, EMBEDDINGS, gzip.compress(whole + b" ", 1), "gzip"), 413, "more after decompression")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(GOOD)[:-1], "ends too early"),
        (gzip.compress(GOOD)[:5], "ends too early"),
        (b"\x1f", "ends too early"),
        (gzip.compress(GOOD) + b"x", "bytes after the end"),
        (gzip.compress(GOOD) + b"\0\0\0\0", "bytes after the end"),
        (gzip.compress(GOOD)[:-5] + b"x" + gzip.compress(GOOD)[-4:], "cannot be decompressed"),
        (zlib.compress(GOOD), "cannot be decompressed"),
        (GOOD, "cannot be decompressed"),
        (b"", "an empty body"),
        (gzip.compress(b""), "an empty body"),
        (gzip.compress(b"\xff" * 10), "not UTF-8"),
    ],
    # Compressed bytes hold the time, and the workers of a run must agree on names.
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}-bytes",
)
def test_what_is_no_gzip(client: httpx.Client, content: bytes, message: str) -> None:
    check_error(post(client, EMBEDDINGS, content, "gzip"), 400, message)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, identity", "chunked", ",,", "g" * 500])
def test_other_encodings(client: httpx.Client, encoding: str) -> None:
    check_error(post(client, EMBEDDINGS, gzip.compress(GOOD), encoding), 415, "the body's compression is not supported")
