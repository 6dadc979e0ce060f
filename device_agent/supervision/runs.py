"""The update process: begun as a child, one at a time, at low priority, ended with the agent.

It is a process of its own so that nothing of it stays in memory, and nothing that a repository sends is read by the
process that serves. What it writes goes to the agent's log. Whatever ends it, it can be taken up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from device_agent.update.enrollment import ENROLLMENT_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

STDERR = 2
NICE = 10
OOM_SCORE = 500
"""Where memory runs out, the kernel ends the update before it ends what serves (proc(5), oom_score_adj)."""
END_SECONDS = 3.0
"""How long an update may take to end once it was told to."""
NOT_FOR_CHILDREN = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
OUTCOMES = {0: "ok", 9: "untrusted", 10: "unreachable", 11: "device"}
"""What the exit codes of `edgeonnx-agent update` mean, in a word; any other is "failed"."""

logger = logging.getLogger("edgeonnx.supervision")


@dataclass(frozen=True, kw_only=True)
class Run:
    """An update that ended.

    Attributes:
        outcome: A word of `OUTCOMES`, "failed" or "killed".
        began: When, in seconds since 1970 by the system clock.
        seconds: How long it took.
    """

    outcome: str
    began: float
    seconds: float


def command_of(state_dir: Path, settings: Path | None) -> list[str]:
    """The command line of an update."""
    config = [] if settings is None else ["--config", str(settings)]
    return [sys.executable, "-m", "device_agent.update", *config, "--state-dir", str(state_dir)]


def outcome_of(code: int) -> str:
    """What an exit code means, in a word."""
    return "killed" if code < 0 else OUTCOMES.get(code, "failed")


class UpdateRuns:
    """Begins updates. It belongs to the event loop's thread.

    Args:
        command: The command line.
        state_dir: The state directory; a device that is not enrolled there has nobody to ask.

    Attributes:
        last: The last update that ended, or None.
        counts: How many ended, by outcome.
    """

    def __init__(self, command: Sequence[str], state_dir: Path) -> None:
        self._command = command
        self._state_dir = state_dir
        self._process: asyncio.subprocess.Process | None = None
        self.last: Run | None = None
        self.counts: dict[str, int] = {}

    @property
    def running(self) -> bool:
        """Whether an update runs now."""
        return self._process is not None

    @property
    def enrolled(self) -> bool:
        """Whether this device has a repository to ask."""
        return (self._state_dir / ENROLLMENT_FILE).is_file()

    async def once(self) -> Run:
        """Run an update to its end; when this is cancelled, the update is ended."""
        if self._process is not None:
            raise RuntimeError("an update runs already")
        began, clock = time.time(), time.monotonic()
        environment = {key: value for key, value in os.environ.items() if key not in NOT_FOR_CHILDREN}
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            # Both to the agent's log, which is stderr; stdout has the ready line for whoever started the agent.
            stdout=STDERR,
            stderr=STDERR,
            env=environment,
            start_new_session=True,
        )
        try:
            _be_modest(process.pid)
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process)
            raise
        finally:
            self._process = None
        run = Run(outcome=outcome_of(code), began=began, seconds=time.monotonic() - clock)
        self.counts[run.outcome] = self.counts.get(run.outcome, 0) + 1
        self.last = run
        if run.outcome != "ok":
            logger.warning("the update ended with code %d (%s) after %.1f s", code, run.outcome, run.seconds)
        return run


def _be_modest(pid: int) -> None:
    """What serves comes first: for the CPU, and where memory runs out."""
    with contextlib.suppress(OSError):  # it may have ended already
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End an update with all that it began."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
                return
