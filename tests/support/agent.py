"""A real agent process for tests and benches: started, waited for, and always ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"^ready: (http://\S+) ")


@dataclass(kw_only=True)
class Agent:
    """`edgeonnx-agent serve` in a process of its own.

    Use it as a context manager; leaving it ends the process, whatever happened.

    Attributes:
        bundle: The bundle to serve; None: the arguments say what.
        arguments: Further arguments of `serve`.
        timeout: Seconds to wait for the ready line.
    """

    bundle: Path | None = None
    arguments: tuple[str, ...] = ()
    timeout: float = 30.0
    url: str = ""
    ready_line: str = ""
    seconds_to_ready: float = 0.0
    process: subprocess.Popen[str] = field(init=False)

    @property
    def address(self) -> str:
        """`host:port`, as tritonclient wants it."""
        return self.url.removeprefix("http://")

    def __enter__(self) -> Self:
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8")
        started = time.perf_counter()
        self.process = subprocess.Popen(
            command(self.bundle, *self.arguments),
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        # The timer ends a process that hangs, so that the blocking read below ends too.
        watchdog = threading.Timer(self.timeout, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline() if self.process.stdout else ""
        finally:
            watchdog.cancel()
        self.seconds_to_ready = time.perf_counter() - started
        match = READY.match(line)
        if match is None:
            self.__exit__(None, None, None)
            raise AssertionError(f"the agent did not get ready: {line!r}\n{self.log}")
        self.url, self.ready_line = match.group(1), line.rstrip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=10)
        if self.process.stdout:
            self.process.stdout.close()
        self._log = self._read_log()
        self._stderr.close()

    def _read_log(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    @property
    def log(self) -> str:
        """What the agent wrote to stderr so far."""
        return self._log if self._stderr.closed else self._read_log()

    def terminate(self) -> None:
        """Send SIGTERM; the process is not waited for."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 15.0) -> int:
        """The exit code, once the process has ended."""
        return self.process.wait(timeout=timeout)


def command(bundle: Path | None, *arguments: str) -> list[str]:
    """The command line of an agent on a free port."""
    named = [] if bundle is None else ["--bundle", str(bundle)]
    return [sys.executable, "-m", "device_agent.cli.main", "serve", *named, "--port", "0", *arguments]


def environment() -> dict[str, str]:
    """The environment of an agent: this tree's packages, also where they are not installed."""
    paths = [str(ROOT), str(ROOT / "ext"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def run_to_end(bundle: Path | None, *arguments: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run an agent that is expected to end by itself."""
    return subprocess.run(
        command(bundle, *arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout
    )
