from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from device_agent.slots.state import Installed, SlotState, begin, step
from device_agent.slots.states import AttemptState
from device_agent.slots.store import Store
from device_agent.update.reports import (
    MAX_WAITING,
    REPORTS_FILE,
    STATUS_FILE,
    Ledger,
    Reporter,
    Status,
    post,
    read_status,
    write_status,
)
from edgeonnx.errors import FetchError
from tests.support.device import QuickDisk

URL = "http://collector.test/reports"
RELEASE = Installed(version="1.0.0", contents="a" * 64)


class Collector:
    """Takes reports, or does not."""

    def __init__(self) -> None:
        self.taken: list[dict[str, object]] = []
        self.asked = 0
        self.up = True

    def __call__(self, url: str, body: bytes) -> None:
        assert url == URL
        self.asked += 1
        if not self.up:
            raise OSError("connection refused")
        self.taken.append(json.loads(body))

    @property
    def states(self) -> list[object]:
        return [report["state"] for report in self.taken]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "state", QuickDisk())
    made.prepare()
    return made


@pytest.fixture
def collector() -> Collector:
    return Collector()


def reporter(store: Store, collector: Collector, url: str | None = URL) -> Reporter:
    return Reporter(store, url, "device-1", collector, clock=lambda: 5.0)


DOWNLOADING = begin(SlotState(model="m"), RELEASE, tries=3, now=1.0)
REJECTED = step(DOWNLOADING, AttemptState.REJECTED, now=2.0, reason="no bundle")


def test_a_report_says_who_what_and_why(store: Store, collector: Collector) -> None:
    reporter(store, collector).state(REJECTED, received=123)
    assert collector.taken == [
        {
            "schema_version": "1.0",
            "device": "device-1",
            "model": "m",
            "version": "1.0.0",
            "contents": "a" * 64,
            "state": "rejected",
            "reason": "no bundle",
            "since": 2.0,
            "active": None,
            "received_bytes": 123,
            "seconds": 0.0,
        }
    ]


def test_a_state_is_reported_once_also_over_runs(store: Store, collector: Collector) -> None:
    for _ in range(3):
        reporter(store, collector).state(DOWNLOADING)
    reporter(store, collector).state(REJECTED)
    assert collector.states == ["downloading", "rejected"]


def test_without_a_collector_nothing_is_written(store: Store, collector: Collector) -> None:
    reporter(store, collector, url=None).state(DOWNLOADING)
    assert not (store.root / REPORTS_FILE).exists()


def test_what_was_not_taken_is_sent_by_the_next_run_in_order(store: Store, collector: Collector) -> None:
    collector.up = False
    first = reporter(store, collector)
    first.state(DOWNLOADING)
    first.state(REJECTED)
    assert collector.asked == 1  # one failure is enough for a run
    collector.up = True
    reporter(store, collector).flush()
    assert collector.states == ["downloading", "rejected"]
    reporter(store, collector).flush()
    assert len(collector.taken) == 2


def test_the_last_reports_are_kept_and_no_more(store: Store, collector: Collector) -> None:
    collector.up = False
    for number in range(MAX_WAITING + 5):
        release = Installed(version=f"1.{number}", contents=format(number, "064x"))
        reporter(store, collector).state(begin(SlotState(model="m"), release, tries=1, now=0.0))
    kept = Ledger.from_bytes((store.root / REPORTS_FILE).read_bytes()).waiting
    assert [report["version"] for report in kept] == [f"1.{number}" for number in range(5, MAX_WAITING + 5)]


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff"])
def test_a_damaged_ledger_begins_anew(store: Store, collector: Collector, data: bytes) -> None:
    (store.root / REPORTS_FILE).write_bytes(data)
    reporter(store, collector).state(DOWNLOADING)
    assert collector.states == ["downloading"]


def test_a_disk_that_takes_nothing_is_no_failure(store: Store, collector: Collector) -> None:
    class Full(QuickDisk):
        def write(self, descriptor: int, data: bytes | memoryview) -> int:
            raise OSError(28, "No space left on device")

    broken = Store(store.root, Full())
    reporter(broken, collector).state(DOWNLOADING)
    assert collector.states == ["downloading"]
    write_status(broken, Status())
    assert read_status(broken) == Status()


def test_the_status_counts_failures_in_a_row_and_all_bytes(store: Store) -> None:
    status = Status()
    status = status.after(now=1.0, error=FetchError("no connection"), message="", received=10)
    status = status.after(now=2.0, error=FetchError("no connection"), message="", received=0)
    assert (status.failures, status.ok, status.message) == (2, False, "no connection")
    status = status.after(now=3.0, error=None, message="fine", received=5)
    assert status == Status(checked_at=3.0, message="fine", received_bytes=5, received_bytes_total=15)
    write_status(store, status)
    assert read_status(store) == status
    (store.root / STATUS_FILE).write_bytes(b"")
    assert read_status(store) == Status()


@contextmanager
def web(status: int) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector that answers with a status."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.headers["Content-Type"], self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", got
    finally:
        server.shutdown()
        server.server_close()


def test_a_report_goes_over_http() -> None:
    with web(204) as (url, got):
        post(url, b"{}")
    assert got == [("application/json", b"{}")]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_any_other_answer_does_not_take_it(status: int) -> None:
    with web(status) as (url, got), pytest.raises(OSError, match=str(status)):
        post(url, b"{}")
    assert len(got) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "ftp://x/", "nonsense"])
def test_a_collector_that_is_not_there_is_an_error_of_the_system(url: str) -> None:
    with pytest.raises(OSError, match=r"."):
        post(url, b"{}")


def test_a_report_of_the_serving_process_s_states_keeps_what_serves(store: Store, collector: Collector) -> None:
    state = replace(REJECTED, active=RELEASE)
    reporter(store, collector).state(state)
    assert collector.taken[0]["active"] == "1.0.0"
