"""Gets files from a source: tries again, goes on where it stopped, and lets nobody waste the device's time or disk.

What comes is bounded in bytes and in time, and nothing is believed: whoever asks checks signatures and digests.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from device_agent.update.transfer.pacing import Progress, Retries, TokenBucket
from device_agent.update.transfer.partial import PartialFile
from device_agent.update.transfer.sources import PORTAL_HINT, RangeError, TemporaryError, looks_like_html
from edgeonnx.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from device_agent.config import UpdateConfig
    from device_agent.slots.disk import Disk
    from device_agent.update.transfer.sources import Body, Source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One file to download.

    Attributes:
        path: Its path in the repository.
        part: Where its bytes go.
        limit: The most bytes that it may have.
    """

    path: str
    part: Path
    limit: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time and chance, so that tests need none.

    Attributes:
        now: Seconds on a clock that never goes back.
        sleep: Waits that many seconds; None: until the download is stopped, if that is earlier.
        chance: A random number from 0 to 1.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] | None = None
    chance: Callable[[], float] = random.random


class _Sink(Protocol):
    """Where the bytes of a file go."""

    @property
    def position(self) -> int: ...

    @property
    def validator(self) -> str | None: ...

    def begin(self, *, validator: str | None, offset: int) -> None: ...

    def restart(self) -> None: ...

    def keep(self) -> None: ...

    def write(self, piece: bytes, *, now: float) -> None: ...


@dataclass(kw_only=True)
class _Stop:
    """Ends downloads from another thread: those that wait for a piece, too."""

    asked: threading.Event = field(default_factory=threading.Event)
    _bodies: set[Body] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def reading(self, body: Body) -> Iterator[None]:
        with self._lock:
            self._bodies.add(body)
        try:
            yield
        finally:
            with self._lock:
                self._bodies.discard(body)

    def check(self, path: str) -> None:
        if self.asked.is_set():
            raise FetchError("was stopped, since another download failed or nobody waits for it", where=path)

    def now(self) -> None:
        self.asked.set()
        with self._lock:
            for body in self._bodies:
                body.cancel()


class Downloader:
    """Gets files from a source. It may be used from several threads.

    Args:
        source: Where they come from.
        settings: `[update]`: timeouts, retries, limits.
        disk: What writes.
        timing: Time and chance.
    """

    def __init__(self, source: Source, settings: UpdateConfig, disk: Disk, *, timing: Timing | None = None) -> None:
        self._source = source
        self._settings = settings
        self._disk = disk
        self._timing = timing or Timing()
        self._lock = threading.Lock()
        self._received = 0
        limit = settings.bandwidth_bytes
        self._bucket = None if limit is None else TokenBucket(rate=limit)

    @property
    def received(self) -> int:
        """Bytes of all bodies that came so far, also of those that had to be fetched again."""
        return self._received

    def read(self, path: str, *, limit: int) -> bytes:
        """A small file (metadata, a target), whole.

        Args:
            path: Its path in the repository.
            limit: The most bytes that it may have.

        Raises:
            NotFound: There is no such file.
            FetchError: It did not come, or is larger.
        """
        sink = _Memory()
        self._fetch(path, sink, limit=limit, seconds=self._settings.metadata_seconds, stop=_Stop())
        return bytes(sink.data)

    def download(self, path: str, part: Path, *, limit: int) -> None:
        """A file of any size, into `part`; complete and durable when this returns.

        What an earlier run left there is gone on with, if it is of the same state of the same file. After an error the
        bytes stay for the next run. Whoever has used the part removes it together with its note (`partial.note_of`).

        Args:
            path: Its path in the repository.
            part: Where its bytes go; its folder exists.
            limit: The most bytes that it may have; not a byte more is written.

        Raises:
            NotFound: There is no such file.
            FetchError: It did not come, or is larger.
            NoSpaceError, StateError: The disk does not take it.
        """
        self._download(Job(path=path, part=part, limit=limit), _Stop())

    def download_many(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Download files, as many at one time as `connections` says; each is given back when it is complete.

        If one fails, or the caller stops asking, the others are stopped; what they have is kept.

        Raises:
            As `download`.
        """
        stop = _Stop()
        size = self._settings.connections
        waiting = iter(jobs)
        running: dict[Future[None], Job] = {}
        with ThreadPoolExecutor(size, thread_name_prefix="download") as pool:
            try:
                while True:
                    for job in waiting:
                        running[pool.submit(self._download, job, stop)] = job
                        if len(running) >= size:
                            break
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        job = running.pop(future)
                        future.result()
                        yield job
            finally:
                stop.now()

    def _download(self, job: Job, stop: _Stop) -> None:
        with PartialFile(job.part, job.path, self._disk) as file:
            try:
                self._fetch(job.path, file, limit=job.limit, seconds=self._settings.download_seconds, stop=stop)
            except TooLargeError:
                file.discard()
                raise
            file.finish()

    def _fetch(self, path: str, sink: _Sink, *, limit: int, seconds: float, stop: _Stop) -> None:
        """Try until the sink has the whole file."""
        settings, timing = self._settings, self._timing
        deadline = timing.now() + seconds
        retries = Retries(most=settings.retries, deadline=deadline, longest_retry_after=settings.retry_after_seconds)
        furthest = sink.position
        while True:
            try:
                self._try(path, sink, limit=limit, deadline=deadline, stop=stop)
            except TemporaryError as error:
                stop.check(path)
                progress = sink.position >= furthest + settings.stall_bytes
                furthest = max(furthest, sink.position)
                if isinstance(error, RangeError):
                    sink.restart()
                pause = retries.after(
                    timing.now(), progress=progress, chance=timing.chance(), retry_after=error.retry_after
                )
                if pause is None:
                    raise
                sink.keep()
                logger.info("tried again in %.1f s: %s", pause, error)
                self._sleep(pause, path, stop)
            else:
                return

    def _try(self, path: str, sink: _Sink, *, limit: int, deadline: float, stop: _Stop) -> None:
        """One request, from where the sink stands, if that can be gone on with."""
        offset = 0 if sink.validator is None else sink.position
        with (
            self._source.open(path, offset=offset, validator=sink.validator if offset else None) as body,
            stop.reading(body),
        ):
            if body.offset not in (0, offset):
                raise RangeError("goes on at another place than asked", where=path, expected=f"{offset} bytes")
            if body.total is not None and body.total > limit:
                raise _too_large(path, limit, f"{body.total} bytes")
            sink.begin(validator=body.validator, offset=body.offset)
            for piece in self._paced(body.pieces, path, deadline, stop):
                if sink.position + len(piece) > limit:
                    raise _too_large(path, limit, "more")
                if sink.position == 0 and looks_like_html(piece):
                    raise FetchError("was answered with a web page (HTML)", where=path, hint=PORTAL_HINT)
                sink.write(piece, now=self._timing.now())
        if body.total is not None and sink.position != body.total:
            raise TemporaryError("ends early", where=path, expected=f"{body.total} bytes", found=f"{sink.position}")

    def _paced(self, pieces: Iterator[bytes], path: str, deadline: float, stop: _Stop) -> Iterator[bytes]:
        """The pieces, each when the limits let it through."""
        now = self._timing.now
        progress = Progress(seconds=self._settings.stall_seconds, least=self._settings.stall_bytes)
        while True:
            asked = now()
            piece = next(pieces, None)
            stop.check(path)
            if piece is None:
                return
            self._count(len(piece))
            if not progress.add(now() - asked, len(piece)):
                raise TemporaryError(
                    "comes too slowly",
                    where=path,
                    expected=f"update.stall_bytes ({self._settings.stall_bytes}) in "
                    f"update.stall_seconds ({self._settings.stall_seconds:g})",
                )
            self._throttle(len(piece), path, stop)
            if now() > deadline:
                raise FetchError(
                    "takes too long",
                    where=path,
                    hint="what has arrived is kept for the next run; the limit is update.download_seconds "
                    "(metadata: update.metadata_seconds)",
                )
            yield piece

    def _count(self, size: int) -> None:
        with self._lock:
            self._received += size

    def _throttle(self, size: int, path: str, stop: _Stop) -> None:
        if self._bucket is not None:
            with self._lock:
                pause = self._bucket.take(self._timing.now(), size)
            if pause > 0:
                self._sleep(pause, path, stop)

    def _sleep(self, seconds: float, path: str, stop: _Stop) -> None:
        if self._timing.sleep is None:
            stop.asked.wait(seconds)
        else:
            self._timing.sleep(seconds)
        stop.check(path)


class TooLargeError(FetchError):
    """A file has more bytes than it may have: nothing of it can be used."""


def _too_large(path: str, limit: int, found: str) -> TooLargeError:
    return TooLargeError("is larger than it may be", where=path, expected=f"at most {limit} bytes", found=found)


class _Memory:
    """A file that is kept in memory, and so begins anew with each try."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.validator: str | None = None

    @property
    def position(self) -> int:
        return len(self.data)

    def begin(self, *, validator: str | None, offset: int) -> None:  # noqa: ARG002 - of the protocol
        self.data.clear()

    def restart(self) -> None:
        self.data.clear()

    def keep(self) -> None:
        pass

    def write(self, piece: bytes, *, now: float) -> None:  # noqa: ARG002 - of the protocol
        self.data += piece
