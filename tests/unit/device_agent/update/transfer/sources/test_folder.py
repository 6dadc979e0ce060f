"""A repository in a folder or an archive: the same answers as a server's, and nothing that was planted is followed."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import socket
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from device_agent.slots.disk import Disk
from device_agent.update.transfer.sources import NotFound, RangeError
from device_agent.update.transfer.sources import archive as archives
from device_agent.update.transfer.sources.archive import unpacked
from device_agent.update.transfer.sources.folder import FolderSource
from edgeonnx.errors import FetchError, NoSpaceError, StateError, UsageError

BLOB = "blobs/sha256/ab/" + "ab" * 32 + ".zst"
DELTA = "deltas/sha256/ab/" + "ab" * 32 + "." + "cd" * 32 + ".difference"
FILES = {"metadata/timestamp.json": b"{}", BLOB: bytes(200_000), DELTA: b"delta"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def read(source: FolderSource, path: str, **options: object) -> bytes:
    with source.open(path, **options) as body:  # type: ignore[arg-type]
        return b"".join(body.pieces)


def test_files_come_whole_and_in_small_pieces(tree: Path) -> None:
    with FolderSource(tree).open(BLOB) as body:
        assert (body.offset, body.total) == (0, 200_000)
        pieces = list(body.pieces)
    assert b"".join(pieces) == FILES[BLOB]
    assert max(map(len, pieces)) <= 64 << 10


def test_a_file_is_gone_on_with_if_it_is_the_same(tree: Path) -> None:
    source = FolderSource(tree)
    with source.open(DELTA) as body:
        validator = body.validator
    assert read(source, DELTA, offset=2, validator=validator) == b"lta"
    assert read(source, DELTA, offset=5, validator=validator) == b""
    assert read(source, DELTA, offset=2) == b"lta"
    with pytest.raises(RangeError):
        read(source, DELTA, offset=6, validator=validator)
    (tree / DELTA).write_bytes(b"DELTA")
    os.utime(tree / DELTA, ns=(1, 1))
    with source.open(DELTA, offset=2, validator=validator) as body:
        assert body.offset == 0
        assert b"".join(body.pieces) == b"DELTA"


def test_what_is_not_there(tree: Path, tmp_path: Path) -> None:
    for path in ("metadata/2.root.json", "missing/x"):
        with pytest.raises(NotFound, match="is not in the repository"):
            read(FolderSource(tree), path)
    with pytest.raises(UsageError, match="is no folder"):
        FolderSource(tmp_path / "missing")
    with pytest.raises(UsageError, match="is no folder"):
        FolderSource(tree / DELTA)


def test_the_folder_itself_may_be_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(tree)
    assert read(FolderSource(tmp_path / "mounted"), DELTA) == b"delta"


def link_to_a_file(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, secret: Path) -> None:
    path.mkdir()


def unix_socket(path: Path, secret: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def dangling_link(path: Path, secret: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize("plant", [link_to_a_file, pipe, folder, unix_socket, dangling_link])
def test_only_regular_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None]
) -> None:
    """A pipe is not waited for, either."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    tree = tmp_path / "t"
    tree.mkdir()
    plant(tree / "x", secret)
    with pytest.raises(FetchError, match="is no regular file"):
        read(FolderSource(tree), "x")


def test_no_link_is_followed_on_the_way(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("secret")
    (tree / "metadata" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(FetchError, match="plain folders"):
        read(FolderSource(tree), "metadata/sub/x")
    with pytest.raises(FetchError, match="is no path"):
        read(FolderSource(tree), "metadata/../../outside/x")


def test_a_file_that_becomes_shorter_ends_early_and_one_that_grows_does_not(tree: Path) -> None:
    with FolderSource(tree).open(BLOB) as body:
        os.truncate(tree / BLOB, 70_000)
        assert sum(map(len, body.pieces)) == 70_000
        assert body.total == 200_000
    with FolderSource(tree).open(DELTA) as body:
        with (tree / DELTA).open("ab") as file:
            file.write(b"more")
        assert b"".join(body.pieces) == b"delta"


def test_no_descriptor_is_left_open(tree: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    source = FolderSource(tree)
    for path in (DELTA, "missing/x", "metadata", "metadata/missing"):
        with contextlib.suppress(FetchError):
            read(source, path)
    assert count() == before


def packed(path: Path, members: dict[str, bytes], *, kind: str = "", prefix: str = "", form: int = 1) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    data = buffer.getvalue()
    if kind == "gz":
        data = gzip.compress(data)
    if kind == "zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


def unpack(archive: Path, folder: Path, **options: object) -> dict[str, bytes]:
    with unpacked(archive, folder, Disk(), **options) as source:  # type: ignore[arg-type]
        return {path: read(source, path) for path in FILES}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", ["", "gz", "zst"])
@pytest.mark.parametrize("prefix", ["", "./", "repository/"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_is_read_as_a_folder_and_leaves_nothing(
    tmp_path: Path, state: Path, kind: str, prefix: str, form: int
) -> None:
    archive = packed(
        tmp_path / "a", {**FILES, "README.txt": b"hello", "other/x": b""}, kind=kind, prefix=prefix, form=form
    )
    assert unpack(archive, state) == FILES
    assert list(state.iterdir()) == []


def test_what_a_caller_raises_is_its_own(tmp_path: Path, state: Path) -> None:
    def use() -> None:
        with unpacked(packed(tmp_path / "a", FILES), state, Disk()):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    assert list(state.iterdir()) == []


def test_system_tools_make_such_archives(tree: Path, state: Path, tmp_path: Path) -> None:
    command = ["tar", "-C", str(tree), "-czf", str(tmp_path / "a.tgz"), "."]
    subprocess.run(command, check=True, timeout=30)
    assert unpack(tmp_path / "a.tgz", state) == FILES


def with_member(**fields: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("metadata/x")
        for name, value in fields.items():
            setattr(member, name, value)
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    return buffer.getvalue()


def bomb() -> bytes:
    head = tarfile.TarInfo("metadata/x")
    head.size = 8 << 30
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    data = stream.compress(head.tobuf())
    for _ in range(64):
        data += stream.compress(bytes(1 << 20))
    return data + stream.flush()


def long_header(kind: bytes) -> bytes:
    """A header that claims 4 GiB of name, and zeros that would fill it."""
    head = tarfile.TarInfo("x")
    head.type, head.size = kind, 4 << 30
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    data = stream.compress(head.tobuf(tarfile.GNU_FORMAT))
    for _ in range(64):
        data += stream.compress(bytes(1 << 20))
    return data + stream.flush()


def sparse(version: str) -> bytes:
    buffer = io.BytesIO()
    names = {
        "0.1": {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(8 << 30)},
        "1.0": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(8 << 30)},
    }
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("metadata/x")
        member.pax_headers, member.size = names[version], 1024
        tar.addfile(member, io.BytesIO(b"999999999\n" + b"1\n" * 507))
    return buffer.getvalue()


def twice() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("metadata/x"))
    return buffer.getvalue()


def nested_headers() -> bytes:
    head = tarfile.TarInfo("x")
    head.type = tarfile.XHDTYPE
    return head.tobuf() * 2000


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "cannot be read as an archive"),
    "zeros": (lambda: bytes(10240), "holds no repository"),
    "text": (lambda: b"hello" * 1000, "cannot be read as an archive"),
    "html": (lambda: b"<html>" * 1000, "cannot be read as an archive"),
    "cut": (lambda: with_member(size=5000)[:2048], "cannot be read as an archive"),
    "cut-gzip": (lambda: gzip.compress(with_member(size=5000))[:-9], "cannot be read as an archive"),
    "bad-gzip": (lambda: b"\x1f\x8b" + bytes(100), "cannot be read as an archive"),
    "bad-zstd": (lambda: b"\x28\xb5\x2f\xfd" + b"\xff" * 100, "cannot be read as an archive"),
    "zstd-window": (
        lambda: (
            zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=27))
            .compressobj()
            .compress(bytes(64 << 20))
        ),
        "cannot be read as an archive",
    ),
    "parent": (lambda: with_member(name="metadata/../../x"), "is no path of a repository"),
    "absolute": (lambda: with_member(name="/etc/x"), "is no path of a repository"),
    "backslash": (lambda: with_member(name="metadata\\..\\x"), "is no path of a repository"),
    "escape": (lambda: with_member(name="metadata/\x1b[31m"), "is no path of a repository"),
    "symlink": (lambda: with_member(type=tarfile.SYMTYPE, linkname="/etc/passwd"), "a link or a special file"),
    "hardlink": (lambda: with_member(type=tarfile.LNKTYPE, linkname="metadata/y"), "a link or a special file"),
    "device": (lambda: with_member(type=tarfile.CHRTYPE), "a link or a special file"),
    "pipe": (lambda: with_member(type=tarfile.FIFOTYPE), "a link or a special file"),
    "twice": (twice, "is in the archive twice"),
    "folder-and-file": (
        lambda: with_member(name="metadata")[:512] + with_member(name="metadata/x"),
        "is in the archive twice",
    ),
    "long-name": (lambda: long_header(tarfile.GNUTYPE_LONGNAME), "a header that is too large"),
    "long-pax": (lambda: long_header(tarfile.XHDTYPE), "a header that is too large"),
    "sparse-gnu": (lambda: with_member(type=tarfile.GNUTYPE_SPARSE), "sparse"),
    "sparse-1.0": (lambda: sparse("1.0"), "sparse"),
    "sparse-0.1": (lambda: sparse("0.1"), "a link or a special file"),
    "nested": (nested_headers, "cannot be read as an archive"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(tmp_path: Path, state: Path, name: str) -> None:
    make, words = HOSTILE[name]
    (tmp_path / "a").write_bytes(make())
    with pytest.raises(FetchError, match=words) as caught:
        unpack(tmp_path / "a", state)
    assert str(caught.value).isprintable()
    assert list(state.iterdir()) == []


def test_a_bomb_ends_at_the_limit_or_at_the_disk(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bomb())
    monkeypatch.setattr(archives, "MOST_FILES", 10)
    written = 0

    class Counting(Disk):
        def write(self, descriptor: int, data: bytes | memoryview) -> int:
            nonlocal written
            written += len(data)
            return super().write(descriptor, data)

    bounded = unpacked(tmp_path / "a", state, Counting(), most_bytes=1 << 20)
    with pytest.raises(FetchError, match="unpacks to more than is allowed"):
        bounded.__enter__()
    assert written <= 1 << 20
    monkeypatch.setattr(archives, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(NoSpaceError, match="no room"):
        unpack(tmp_path / "a", state)
    assert list(state.iterdir()) == []


def test_the_number_of_files_is_bounded(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 3)
    archive = packed(tmp_path / "a", {f"metadata/{number}": b"" for number in range(4)})
    with pytest.raises(FetchError, match="too many files"):
        unpack(archive, state)
    assert list(state.iterdir()) == []


def test_a_state_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="cannot be unpacked"):
        unpack(packed(tmp_path / "a", FILES), tmp_path / "missing")


def test_an_archive_that_is_not_there_or_no_file(tmp_path: Path, state: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        with pytest.raises(FetchError, match="is no file"):
            unpack(tmp_path / name, state)
