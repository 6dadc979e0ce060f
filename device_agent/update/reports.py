"""What became of each attempt, told to a collector; and the outcome of the last run, in a file for whoever asks.

A report is one JSON object, sent by HTTP POST to `update.report_url`. Reports are for people and dashboards: nothing
depends on them, so they never fail an update, take bounded time, and of those that could not be sent the last ones are
kept for the next run. States that the serving process wrote (probation, committed, rolled back) are noticed and
reported by the next run, which the serving process begins at once where there is a collector.

    reports.json    what was reported of each model, and what is still to be sent
    status.json     the last run: when, with what outcome, and how much it received
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from device_agent.slots.disk import read_file
from edgeonnx.errors import EdgeOnnxError
from edgeonnx.spec.contents import canonical_json
from edgeonnx.spec.parse import parse_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_agent.slots.state import SlotState
    from device_agent.slots.store import Store

    Send = Callable[[str, bytes], None]
    """Sends a report to a URL; raises `OSError` if it was not taken."""

SCHEMA = "1.0"
REPORTS_FILE = "reports.json"
STATUS_FILE = "status.json"
MAX_BYTES = 1 << 20
MAX_WAITING = 50
"""Reports that are kept while the collector cannot be reached; the oldest go first."""
SEND_SECONDS = 5.0
"""How long one report may take. After one that was not taken, no other is sent in the same run."""

logger = logging.getLogger("edgeonnx.update")


@dataclass(frozen=True, kw_only=True)
class Status:
    """The last run.

    Attributes:
        checked_at: When it ended, in seconds since 1970 by the effective time; None: there was none yet.
        ok: It ended without an error.
        message: Its error, or what it decided.
        received_bytes: Bytes that it received.
        received_bytes_total: Bytes that all runs received.
        failures: Runs in a row that failed.
    """

    checked_at: float | None = None
    ok: bool = True
    message: str = ""
    received_bytes: int = 0
    received_bytes_total: int = 0
    failures: int = 0

    def after(self, *, now: float, error: EdgeOnnxError | None, message: str, received: int) -> Status:
        """The status after one more run."""
        return Status(
            checked_at=now,
            ok=error is None,
            message=message if error is None else str(error),
            received_bytes=received,
            received_bytes_total=self.received_bytes_total + received,
            failures=0 if error is None else self.failures + 1,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Status:
        """Read the file.

        Raises:
            ManifestError, SchemaVersionError: It is damaged, or of another version.
        """
        node = parse_document(data, STATUS_FILE).version("schema_version", known=SCHEMA)
        return cls(
            checked_at=node.required("checked_at").typed(float),
            ok=node.required("ok").typed(bool),
            message=node.text("message"),
            received_bytes=node.integer("received_bytes"),
            received_bytes_total=node.integer("received_bytes_total"),
            failures=node.integer("failures"),
        )

    def to_bytes(self) -> bytes:
        """The file."""
        return canonical_json({"schema_version": SCHEMA, **self.__dict__})


def read_status(store: Store) -> Status:
    """The last run; an empty status if there was none, or if the file is damaged."""
    try:
        return Status.from_bytes(read_file(store.root / STATUS_FILE, limit=MAX_BYTES))
    except (OSError, EdgeOnnxError):
        return Status()


def write_status(store: Store, status: Status) -> None:
    """Write it; a disk that does not take it is no failure of the run."""
    try:
        store.disk.replace(store.root / STATUS_FILE, status.to_bytes(), mode=0o644)
    except OSError as error:
        logger.warning("%s cannot be written: %s", STATUS_FILE, error)


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What was reported.

    Attributes:
        last: By model, the digest and the state that were reported last.
        waiting: Reports that are still to be sent, the oldest first.
    """

    last: dict[str, tuple[str, str]] = field(default_factory=dict)
    waiting: tuple[dict[str, Any], ...] = ()

    def with_report(self, model: str, key: tuple[str, str], report: dict[str, Any]) -> Ledger:
        """The ledger with one more report to send."""
        return Ledger(last={**self.last, model: key}, waiting=(*self.waiting, report)[-MAX_WAITING:])

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledger:
        """Read the file.

        Raises:
            ManifestError, SchemaVersionError: It is damaged, or of another version.
        """
        node = parse_document(data, REPORTS_FILE).version("schema_version", known=SCHEMA)
        last = {model: (each.text("contents"), each.text("state")) for model, each in node.required("last").members()}
        waiting = tuple(item.typed(dict) for item in node.required("waiting").items())
        return cls(last=last, waiting=waiting)

    def to_bytes(self) -> bytes:
        """The file."""
        last = {model: {"contents": contents, "state": state} for model, (contents, state) in self.last.items()}
        return canonical_json({"schema_version": SCHEMA, "last": last, "waiting": list(self.waiting)})


class Reporter:
    """Sends reports.

    Args:
        store: Where those that were not sent are kept.
        url: The collector; None: nothing is reported.
        device: This device's id.
        send: Sends one report; tests put a fake here.
        clock: Seconds on a clock that does not go back.
    """

    def __init__(
        self,
        store: Store,
        url: str | None,
        device: str,
        send: Send | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._url = url
        self._device = device
        self._send = send or post
        self._clock = clock
        self._started = clock()
        self._reached = True
        self._ledger = self._read()

    def state(self, state: SlotState, received: int = 0) -> None:
        """Report where a model's attempt stands, if that was not reported yet.

        Args:
            state: The model's state.
            received: Bytes that this run received so far.
        """
        attempt = state.attempt
        if self._url is None or attempt is None:
            return
        key = (attempt.release.contents, attempt.state.value)
        if self._ledger.last.get(state.model) == key:
            return
        report = {
            "schema_version": SCHEMA,
            "device": self._device,
            "model": state.model,
            "version": attempt.release.version,
            "contents": attempt.release.contents,
            "state": attempt.state.value,
            "reason": attempt.reason,
            "since": attempt.since,
            "active": None if state.active is None else state.active.version,
            "received_bytes": received,
            "seconds": round(self._clock() - self._started, 3),
        }
        self._ledger = self._ledger.with_report(state.model, key, report)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the collector takes it, and write down the rest."""
        if self._url is None:
            return
        before = self._read()
        while self._reached and self._ledger.waiting:
            try:
                self._send(self._url, canonical_json(self._ledger.waiting[0]))
            except OSError as error:
                self._reached = False
                logger.warning(
                    "%d reports could not be sent to %s and are kept: %s", len(self._ledger.waiting), self._url, error
                )
            else:
                self._ledger = replace(self._ledger, waiting=self._ledger.waiting[1:])
        if self._ledger != before:
            self._write()

    def _read(self) -> Ledger:
        try:
            return Ledger.from_bytes(read_file(self._store.root / REPORTS_FILE, limit=MAX_BYTES))
        except (OSError, EdgeOnnxError):
            return Ledger()

    def _write(self) -> None:
        try:
            self._store.disk.replace(self._store.root / REPORTS_FILE, self._ledger.to_bytes())
        except OSError as error:
            logger.warning("%s cannot be written: %s", REPORTS_FILE, error)


def post(url: str, body: bytes) -> None:
    """POST a report; any answer of 2xx takes it.

    Raises:
        OSError: It was not taken.
    """
    if not url.startswith(("http://", "https://")):
        raise OSError("update.report_url is no http:// or https:// URL")
    import urllib3
    from urllib3.exceptions import HTTPError

    headers = {"Content-Type": "application/json", "User-Agent": "edgeonnx-agent"}
    timeout = urllib3.Timeout(connect=SEND_SECONDS, read=SEND_SECONDS, total=SEND_SECONDS)
    try:
        with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
            answer = pool.request("POST", url, body=body, headers=headers, redirect=False, preload_content=False)
            answer.close()
    except (HTTPError, ValueError) as error:
        raise OSError(str(error)) from None
    if not 200 <= answer.status < 300:
        raise OSError(f"it answered with status {answer.status}")
