"""Running a candidate: a child process is begun, bounded in time, memory and words, and its outcome is read."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from edgeonnx.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from device_agent.config import UpdateConfig

POLL_SECONDS = 0.1
"""How often the child's memory is looked at. A process that takes a gigabyte a second overshoots by a tenth of it."""
LOW_MEMORY_BYTES = 64 << 20
"""A machine with less than that left is about to stop answering; what serves is worth more than a candidate."""
MAX_OUTPUT_BYTES = 1 << 20
"""A candidate's answer has some hundred bytes; one that writes on and on is ended."""
KEPT_BYTES = 16 << 10
"""The end of its output that is kept."""
PROC = Path("/proc")

logger = logging.getLogger("edgeonnx.update")


class Kind(Enum):
    """What became of a candidate."""

    PROVEN = "proven"
    """It gave its golden answers."""
    REJECTED = "rejected"
    """It is wrong, or takes more than it may: that will not change."""
    CRASHED = "crashed"
    """It ended without a word, or had to be ended: a power cut, or the machine, may be the reason. Worth a try."""
    STARVED = "starved"
    """The machine was about to run out of memory: worth a try, but not at once."""
    POSTPONED = "postponed"
    """This machine lacks something: settings, memory, a library. The release is not to blame."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a candidate.

    Attributes:
        kind: What.
        reason: Why it is not proven; empty if it is.
        variants: The variant that would serve or, if that was asked, all that this machine would run, as
            `<component>/<variant>`.
        peak_bytes: The most anonymous memory that was seen.
    """

    kind: Kind
    reason: str = ""
    variants: tuple[str, ...] = ()
    peak_bytes: int = 0

    @property
    def proven(self) -> bool:
        """Whether it gave what was asked for."""
        return self.kind is Kind.PROVEN


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended.

    Attributes:
        code: Its exit code; negative: the signal.
        output: The end of what it wrote to stdout.
        errors: The end of what it wrote to stderr.
        stopped: Why it was ended, or None if it ended by itself.
        kind: What it is if it was ended.
        peak_bytes: The most anonymous memory that was seen.
    """

    code: int
    output: str
    errors: str
    stopped: str | None = None
    kind: Kind = Kind.REJECTED
    peak_bytes: int = 0


def prove(bundle: Path, config: UpdateConfig, settings: Path | None) -> Verdict:
    """Load a bundle in a process of its own and replay its golden set.

    Args:
        bundle: The candidate's slot.
        config: `[update]`.
        settings: The agent's settings file, which the serving process uses too, or None.
    """
    return interpret(run(_command("prove", bundle, settings), config))


def choose(metadata: Path, config: UpdateConfig, settings: Path | None) -> Verdict:
    """Ask a process of its own which variants of a bundle this machine would run.

    Args:
        metadata: A folder with the bundle's `manifest.json` and `component.json` files.
        config: `[update]`.
        settings: The agent's settings file, or None.
    """
    return interpret(run(_command("variants", metadata, settings), config))


def _command(what: str, folder: Path, settings: Path | None) -> list[str]:
    command = [sys.executable, "-m", "device_agent.update.install.candidate", what, str(folder)]
    return command if settings is None else [*command, str(settings)]


def run(command: list[str], config: UpdateConfig, available: Callable[[], int | None] | None = None) -> Ended:
    """Run a child to its end, or to its bounds.

    It gets a session of its own, so that it is ended with all that it started, no open files of ours, and nothing to
    read.

    Args:
        command: What to run.
        config: Its bounds.
        available: Memory that the machine has left, in bytes; None looks.
    """
    child = subprocess.Popen(  # noqa: S603 - this interpreter, and paths of ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        close_fds=True,
    )
    try:
        return _Watch(child, config, available or _available).to_end()
    finally:
        _end(child)


class _Watch:
    """Reads what a child writes, and ends it at its bounds."""

    def __init__(
        self, child: subprocess.Popen[bytes], config: UpdateConfig, available: Callable[[], int | None]
    ) -> None:
        self._child = child
        self._config = config
        self._available = available
        self._tails = {"out": b"", "err": b""}
        self._written = 0
        self._peak = 0

    def to_end(self) -> Ended:
        """Wait until the child has ended, by itself or not."""
        deadline = time.monotonic() + self._config.candidate_seconds
        stopped: tuple[Kind, str] | None = None
        with selectors.DefaultSelector() as selector:
            for name, pipe in (("out", self._child.stdout), ("err", self._child.stderr)):
                selector.register(cast("IO[bytes]", pipe), selectors.EVENT_READ, name)
            while stopped is None:
                # Asked first: what it wrote before it ended is in the pipes then, and is read to the last byte. A
                # grandchild that holds them open is not waited for.
                ended = self._has_ended()
                found = self._read(selector, timeout=0 if ended else POLL_SECONDS)
                if ended and not found:
                    break
                stopped = self._exceeded(deadline)
        _end(self._child)
        return self._ended(stopped)

    def _has_ended(self) -> bool:
        """Whether the child has ended; it is not reaped, so that its group cannot become another one's meanwhile."""
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read(self, selector: selectors.BaseSelector, *, timeout: float) -> bool:
        """Take what was written; False if there was nothing."""
        if not selector.get_map():
            time.sleep(timeout)
            return False
        events = selector.select(timeout)
        for key, _ in events:
            piece = os.read(key.fd, KEPT_BYTES)
            if not piece:
                selector.unregister(key.fileobj)
            self._written += len(piece)
            self._tails[key.data] = (self._tails[key.data] + piece)[-KEPT_BYTES:]
        return bool(events)

    def _exceeded(self, deadline: float) -> tuple[Kind, str] | None:
        """Why the child is to be ended, or None."""
        if time.monotonic() > deadline:
            return Kind.REJECTED, f"it was not ready after {self._config.candidate_seconds:g} s"
        if self._written > MAX_OUTPUT_BYTES:
            return Kind.REJECTED, f"it wrote more than {MAX_OUTPUT_BYTES:,} bytes instead of an answer"
        used = anonymous_bytes(_text(PROC / str(self._child.pid) / "status"))
        self._peak = max(self._peak, used)
        return over_memory(used, self._available(), self._config.candidate_memory_bytes)

    def _ended(self, stopped: tuple[Kind, str] | None) -> Ended:
        texts = {name: tail.decode("utf-8", errors="replace") for name, tail in self._tails.items()}
        if texts["err"].strip():
            logger.debug("the candidate wrote: %s", printable(texts["err"].strip()))
        kind, reason = stopped or (Kind.REJECTED, None)
        return Ended(
            code=self._child.returncode,
            output=texts["out"],
            errors=texts["err"],
            stopped=reason,
            kind=kind,
            peak_bytes=self._peak,
        )


def over_memory(used: int, available: int | None, limit: int | None) -> tuple[Kind, str] | None:
    """Why a candidate takes too much memory, or None. Pure.

    Args:
        used: Anonymous memory that it takes, in bytes.
        available: What the machine has left; None if that is not known.
        limit: `update.candidate_memory_bytes`.
    """
    if limit is not None and used > limit:
        return Kind.REJECTED, f"it took {used:,} bytes of memory; update.candidate_memory_bytes is {limit:,}"
    # Only what it takes itself can be had back by ending it.
    if available is not None and available < LOW_MEMORY_BYTES < used:
        return Kind.STARVED, f"the machine had {available:,} bytes of memory left while it took {used:,}"
    return None


def anonymous_bytes(status: str) -> int:
    """`RssAnon` in the text of /proc/<pid>/status, in bytes; 0 if it is not there. Pure."""
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def interpret(ended: Ended) -> Verdict:
    """What the end of a candidate means. Pure."""
    if ended.stopped is not None:
        return Verdict(kind=ended.kind, reason=ended.stopped, peak_bytes=ended.peak_bytes)
    answer = _answer(ended.output)
    if ended.code == 0 and answer.get("ok") is True:
        found = answer.get("variants", [answer.get("variant")])
        names = tuple(name for name in found if isinstance(name, str)) if isinstance(found, list) else ()
        return Verdict(kind=Kind.PROVEN, variants=names, peak_bytes=ended.peak_bytes)
    if answer.get("ok") is False:
        kind = Kind.POSTPONED if answer.get("device") is True else Kind.REJECTED
        return Verdict(kind=kind, reason=_why(answer.get("error")), peak_bytes=ended.peak_bytes)
    if ended.code < 0:
        reason = f"its process was ended by {_signal(-ended.code)}"
    else:
        last = printable(ended.errors.strip().rpartition("\n")[2][:200])
        reason = f"its process ended with code {ended.code} and no answer" + (f": {last}" if last else "")
    return Verdict(kind=Kind.CRASHED, reason=reason, peak_bytes=ended.peak_bytes)


def _answer(output: str) -> Mapping[str, Any]:
    """The JSON object in the last line of what a candidate wrote; empty if there is none."""
    try:
        found = json.loads(output.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _why(error: object) -> str:
    if not isinstance(error, dict):
        return "it failed"
    details = error.get("details") or ()
    shown = [f"{key} {error[key]}" if key in ("expected", "found") else error[key] for key in _PARTS if key in error]
    text = "; ".join(map(str, (*shown, *(details if isinstance(details, list) else ()))))
    return printable(text[:500]) or "it failed"


_PARTS = ("message", "where", "expected", "found")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child with all that it started, and forget its pipes."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _available() -> int | None:
    from device_agent.models.memory import available

    return available()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
