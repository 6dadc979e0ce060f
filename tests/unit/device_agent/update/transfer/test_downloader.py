"""The downloader over a scripted source: what it asks for, what it keeps, when it gives up. No network, no waiting."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from device_agent.config import UpdateConfig
from device_agent.slots.disk import Disk
from device_agent.update.transfer.downloader import Downloader, Job, Timing, TooLargeError
from device_agent.update.transfer.partial import NOTE_BYTES, note_of
from device_agent.update.transfer.sources import Body, NotFound, RangeError, TemporaryError
from edgeonnx.errors import EdgeOnnxError, FetchError

TAG = '"v1"'


@dataclass
class Script:
    """A source that serves files from memory and fails as it is told to.

    Attributes:
        files: Contents by path.
        faults: Called with the number of each request, the first is 0; may raise, or return bytes after which the
            connection breaks, or None.
        validator: What identifies each file.
        piece: Size of the pieces.
        asked: Path, offset and validator of each request.
    """

    files: dict[str, bytes]
    faults: Callable[[int], int | None] = lambda _: None
    validator: str | None = TAG
    piece: int = 1000
    ranges: bool = True
    asked: list[tuple[str, int, str | None]] = field(default_factory=list)
    before_piece: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
        number = len(self.asked)
        self.asked.append((path, offset, validator))
        cut = self.faults(number)
        if path not in self.files:
            raise NotFound("is not in the repository", where=path)
        data = self.files[path]
        start = offset if self.ranges and validator in (None, self.validator) else 0
        yield Body(offset=start, total=len(data), validator=self.validator, pieces=self._pieces(data[start:], cut))

    def _pieces(self, data: bytes, cut: int | None) -> Iterator[bytes]:
        for at in range(0, len(data), self.piece):
            self.before_piece()
            piece = data[at : at + self.piece]
            if cut is not None and at + len(piece) > cut:
                yield piece[: cut - at]
                raise TemporaryError("the connection broke")
            yield piece


class Clock:
    """Time that passes only when it is told to; sleeping is what passes it."""

    def __init__(self, chance: float = 0.0) -> None:
        self.time = 0.0
        self.slept: list[float] = []
        self.timing = Timing(now=lambda: self.time, sleep=self.sleep, chance=lambda: chance)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def downloader(source: Script, clock: Clock | None = None, **settings: Any) -> Downloader:
    config = UpdateConfig(**settings)
    return Downloader(source, config, Disk(), timing=(clock or Clock()).timing)


def content(size: int, seed: int = 1) -> bytes:
    return bytes((at * 31 + (at >> 8) * seed) & 0xFF for at in range(size))


DATA = content(50_000)


def broken(*_: object) -> int:
    raise TemporaryError("the connection broke")


def test_a_small_file_is_read_whole() -> None:
    source = Script({"metadata/1.root.json": b"{}" * 800})
    loader = downloader(source)
    assert loader.read("metadata/1.root.json", limit=1600) == b"{}" * 800
    assert loader.received == 1600
    assert source.asked == [("metadata/1.root.json", 0, None)]


def test_a_file_of_no_bytes(tmp_path: Path) -> None:
    loader = downloader(Script({"x": b""}))
    assert loader.read("x", limit=0) == b""
    loader.download("x", tmp_path / "x.part", limit=0)
    assert (tmp_path / "x.part").read_bytes() == b""


def test_what_is_missing_is_told_at_once() -> None:
    source = Script({})
    with pytest.raises(NotFound):
        downloader(source).read("2.root.json", limit=10)
    assert len(source.asked) == 1


def test_reading_begins_anew_after_each_failure() -> None:
    source = Script({"x": DATA}, faults=lambda number: 20_000 if number < 2 else None)
    assert downloader(source).read("x", limit=50_000) == DATA
    assert [offset for _, offset, _ in source.asked] == [0, 0, 0]


def test_a_read_that_never_gets_further_is_given_up() -> None:
    """Bytes that came before count as no progress, since a read begins anew."""
    source = Script({"x": DATA}, faults=lambda _: 20_000)
    with pytest.raises(TemporaryError, match="broke"):
        downloader(source, retries=3).read("x", limit=50_000)
    assert len(source.asked) == 1 + 1 + 3 - 1


def test_a_download_goes_on_where_it_broke(tmp_path: Path) -> None:
    source = Script({"x": DATA}, faults=lambda number: 7_777 if number < 6 else None)
    loader = downloader(source, retries=1)
    loader.download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").read_bytes() == DATA
    assert [(offset, validator) for _, offset, validator in source.asked] == [
        (0, None),
        *((7_777 * number, TAG) for number in range(1, 7)),
    ]
    assert loader.received == 50_000


def test_a_later_run_goes_on_too(tmp_path: Path) -> None:
    source = Script({"x": DATA}, faults=lambda number: 30_000 if number == 0 else None)
    with pytest.raises(TemporaryError):
        downloader(source, retries=0).download("x", tmp_path / "x.part", limit=50_000)
    loader = downloader(source)
    loader.download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").read_bytes() == DATA
    assert loader.received == 20_000


def test_a_complete_part_costs_a_question(tmp_path: Path) -> None:
    source = Script({"x": bytes(NOTE_BYTES)})
    downloader(source).download("x", tmp_path / "x.part", limit=NOTE_BYTES)
    again = downloader(source)
    again.download("x", tmp_path / "x.part", limit=NOTE_BYTES)
    assert again.received == 0
    assert source.asked[-1] == ("x", NOTE_BYTES, TAG)


def test_a_file_that_changed_begins_anew(tmp_path: Path) -> None:
    source = Script({"x": DATA}, faults=lambda number: 30_000 if number == 0 else None)
    with pytest.raises(TemporaryError):
        downloader(source, retries=0).download("x", tmp_path / "x.part", limit=50_000)
    source.files["x"], source.validator = content(40_000, seed=9), '"v2"'
    downloader(source).download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").read_bytes() == content(40_000, seed=9)


@pytest.mark.parametrize(("validator", "ranges"), [(None, True), (TAG, False)])
def test_a_source_that_cannot_go_on_is_asked_for_the_whole(tmp_path: Path, validator: str | None, ranges: bool) -> None:
    source = Script({"x": DATA}, faults=lambda number: 30_000 if number == 0 else None)
    source.validator, source.ranges = validator, ranges
    downloader(source).download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").read_bytes() == DATA


def test_a_source_that_goes_on_elsewhere_is_asked_for_the_whole(tmp_path: Path) -> None:
    def faults(number: int) -> int | None:
        if number == 1:
            raise RangeError("another part")
        return 30_000 if number == 0 else None

    source = Script({"x": DATA}, faults=faults)
    downloader(source).download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").read_bytes() == DATA
    assert [offset for _, offset, _ in source.asked] == [0, 30_000, 0]


@pytest.mark.parametrize("start", [29_999, 30_001, 50_000])
def test_bytes_that_belong_elsewhere_are_not_taken(tmp_path: Path, start: int) -> None:
    class Elsewhere(Script):
        @contextlib.contextmanager
        def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
            with super().open(path, offset=start if offset else 0, validator=validator) as body:
                yield body

    source = Elsewhere({"x": DATA}, faults=lambda number: 30_000 if number == 0 else None)
    downloader(source).download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").read_bytes() == DATA
    assert len(source.asked) == 3


def test_not_a_byte_more_than_the_limit_is_written(tmp_path: Path) -> None:
    """Without a length, the bytes are counted; what came cannot be a part of the right file, so it goes."""

    class Endless(Script):
        @contextlib.contextmanager
        def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
            yield Body(offset=0, total=None, validator=TAG, pieces=iter(lambda: bytes(1000), b""))

    class Watching(Disk):
        largest = 0

        def write(self, descriptor: int, data: bytes | memoryview) -> int:
            self.largest += len(data)
            return super().write(descriptor, data)

    disk = Watching()
    loader = Downloader(Endless({}), UpdateConfig(), disk, timing=Clock().timing)
    with pytest.raises(TooLargeError, match="larger than it may be; expected at most 5500 bytes"):
        loader.download("x", tmp_path / "x.part", limit=5_500)
    assert disk.largest == 5000
    assert loader.received == 6000
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TooLargeError):
        loader.read("x", limit=5_500)


def test_a_length_above_the_limit_is_refused_before_a_byte_comes(tmp_path: Path) -> None:
    loader = downloader(Script({"x": DATA}))
    with pytest.raises(TooLargeError, match="found 50000 bytes"):
        loader.download("x", tmp_path / "x.part", limit=49_999)
    assert loader.received == 0
    loader.download("x", tmp_path / "x.part", limit=50_000)


def test_an_answer_that_ends_early_is_no_file(tmp_path: Path) -> None:
    class Short(Script):
        @contextlib.contextmanager
        def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
            with super().open(path, offset=offset, validator=validator) as body:
                yield Body(offset=body.offset, total=60_000, validator=TAG, pieces=body.pieces)

    with pytest.raises(TemporaryError, match="ends early; expected 60000 bytes; found 50000"):
        downloader(Short({"x": DATA}), retries=0).download("x", tmp_path / "x.part", limit=60_000)


def test_a_web_page_is_told_as_one(tmp_path: Path) -> None:
    source = Script({"x": b"\xef\xbb\xbf \r\n<!DOCTYPE html><html>sign in"})
    with pytest.raises(FetchError, match=r"HTML.*captive portal.*wrong URL"):
        downloader(source).read("x", limit=1000)
    with pytest.raises(FetchError, match="HTML"):
        downloader(source).download("x", tmp_path / "x.part", limit=1000)
    assert len(source.asked) == 2
    assert (tmp_path / "x.part").read_bytes() == b""


def test_waits_grow_and_end() -> None:
    clock = Clock(chance=1.0)
    source = Script({"x": DATA}, faults=broken)
    with pytest.raises(TemporaryError):
        downloader(source, clock, retries=4).read("x", limit=50_000)
    assert clock.slept == [1, 2, 4, 8]
    assert len(source.asked) == 5


def test_the_wish_of_a_busy_server_is_followed() -> None:
    def faults(number: int) -> int | None:
        if number < 2:
            raise TemporaryError("busy", retry_after=7)
        return None

    clock = Clock()
    assert downloader(Script({"x": DATA}, faults=faults), clock).read("x", limit=50_000) == DATA
    assert clock.slept == [7, 7]
    with pytest.raises(TemporaryError, match="busy"):
        downloader(Script({"x": DATA}, faults=faults), retry_after_seconds=6).read("x", limit=50_000)


def test_the_deadline_ends_all_tries() -> None:
    clock = Clock(chance=1.0)
    source = Script({"x": DATA}, faults=broken)
    with pytest.raises(TemporaryError):
        downloader(source, clock, retries=100, metadata_seconds=10).read("x", limit=50_000)
    assert clock.time == 7  # 1 + 2 + 4; the next one would end after the deadline


def test_the_deadline_ends_a_download_that_goes_well_and_keeps_what_came(tmp_path: Path) -> None:
    clock = Clock()
    source = Script({"x": DATA}, before_piece=lambda: clock.sleep(1))
    with pytest.raises(FetchError, match="takes too long"):
        downloader(source, clock, download_seconds=10, stall_bytes=1).download("x", tmp_path / "x.part", limit=50_000)
    assert (tmp_path / "x.part").stat().st_size == 10_000
    assert note_of(tmp_path / "x.part").exists()


def test_a_server_that_only_keeps_the_connection_busy_is_left() -> None:
    """One byte every ten seconds passes every timeout of a socket."""
    clock = Clock()
    source = Script({"x": DATA}, before_piece=lambda: clock.sleep(10), piece=1)
    with pytest.raises(TemporaryError, match=r"too slowly; expected update.stall_bytes \(4096\)"):
        downloader(source, clock, retries=1).read("x", limit=50_000)
    assert clock.time == 2 * 30


def test_a_server_that_gives_a_byte_a_try_is_left(tmp_path: Path) -> None:
    source = Script({"x": DATA}, faults=lambda _: 1, piece=1)
    with pytest.raises(TemporaryError):
        downloader(source, retries=5).download("x", tmp_path / "x.part", limit=50_000)
    assert len(source.asked) == 6


def test_the_bandwidth_limit_holds_over_all_downloads(tmp_path: Path) -> None:
    clock = Clock()
    loader = downloader(Script({"x": content(200_000)}), clock, bandwidth_bytes=10_000)
    loader.download("x", tmp_path / "x.part", limit=200_000)
    loader.read("x", limit=200_000)
    assert clock.time == pytest.approx((400_000 - 65_536) / 10_000)


def test_our_own_limit_is_not_held_against_the_server() -> None:
    clock = Clock()
    loader = downloader(Script({"x": DATA}), clock, bandwidth_bytes=100, metadata_seconds=1e6)
    loader.read("x", limit=50_000)
    loader.read("x", limit=50_000)
    assert clock.time > 300


def test_files_are_given_back_as_they_become_complete(tmp_path: Path) -> None:
    files = {f"f{number}": content(3000 + number, seed=number) for number in range(9)}
    jobs = [Job(path=path, part=tmp_path / f"{path}.part", limit=len(data)) for path, data in files.items()]
    done = [job.path for job in downloader(Script(files)).download_many(iter(jobs))]
    assert sorted(done) == sorted(files)
    for job in jobs:
        assert job.part.read_bytes() == files[job.path]


def test_no_more_than_the_allowed_number_is_fetched_at_one_time(tmp_path: Path) -> None:
    lock, meeting = threading.Lock(), threading.Barrier(2)
    running = most = 0

    class Counting(Script):
        @contextlib.contextmanager
        def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            meeting.wait(5)  # it is reached by two at one time, so they do run beside each other
            with super().open(path, offset=offset, validator=validator) as body:
                yield body
            with lock:
                running -= 1

    files = {f"f{number}": DATA for number in range(8)}
    jobs = [Job(path=path, part=tmp_path / path, limit=50_000) for path in files]
    assert len(list(downloader(Counting(files), connections=2).download_many(jobs))) == 8
    assert most == 2


def test_one_failure_stops_the_others_and_keeps_what_they_have(tmp_path: Path) -> None:
    cancelled = threading.Event()

    class Hanging(Script):
        @contextlib.contextmanager
        def open(self, path: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
            if path == "missing":
                started.wait(5)
                raise NotFound("is not in the repository", where=path)
            yield Body(offset=0, total=50_000, validator=TAG, pieces=self.hang(), cancel=cancelled.set)

        def hang(self) -> Iterator[bytes]:
            yield DATA[:5000]
            started.set()
            assert cancelled.wait(10)  # as a socket that is shut down from another thread
            raise TemporaryError("the connection broke")

    started = threading.Event()
    jobs = [Job(path=path, part=tmp_path / f"{path}.part", limit=50_000) for path in ("hangs", "missing", "never")]
    with pytest.raises(NotFound):
        list(downloader(Hanging({})).download_many(jobs))
    assert cancelled.is_set()
    assert (tmp_path / "hangs.part").read_bytes() == DATA[:5000]
    assert note_of(tmp_path / "hangs.part").exists()
    assert not (tmp_path / "never.part").exists()


def test_a_caller_that_stops_asking_stops_the_downloads(tmp_path: Path) -> None:
    files = {f"f{number}": DATA for number in range(50)}
    source = Script(files)
    jobs = [Job(path=path, part=tmp_path / path, limit=50_000) for path in files]
    iterator = downloader(source).download_many(jobs)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert len(source.asked) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download")]


def test_an_error_of_the_disk_is_one_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EdgeOnnxError, match="cannot be kept"):
        downloader(Script({"x": DATA})).download("x", tmp_path / "missing" / "x.part", limit=50_000)


def test_importing_it_brings_no_library_for_networks() -> None:
    script = "import sys, device_agent.update.transfer.downloader; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"urllib3", "requests", "aiohttp", "httpx", "numpy", "tuf", "zstandard", "asyncio", "ssl"}
    assert not heavy & set(done.stdout.split())
