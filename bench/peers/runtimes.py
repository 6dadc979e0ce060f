"""Runtimes in processes of their own: started, stopped while others are measured, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bench.peers.environments import ROOT, PeerFailsError, last_line


def pin(count: int) -> None:
    """Let this process use the first cores only."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


class Process:
    """A process that runs `bench.peers.decoding.serve`; it sleeps except when it has an order.

    Args:
        command: What to run.
        threads: Threads of its kernels; it gets as many cores.

    Raises:
        PeerFailsError: It did not start.
    """

    def __init__(self, command: Sequence[str | Path], threads: int) -> None:
        # Closed by close(), which every way out of this object takes.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'ext'}", "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=lambda: pin(threads),
        )
        try:
            self._reply()
        except BaseException:
            self.close()
            raise
        self._sleep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Wake it for one order.

        Raises:
            PeerFailsError: The order failed, or the process ended.
        """
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self._process.stdin.flush()
            return self._reply()
        except BrokenPipeError:
            raise PeerFailsError(self._said()) from None
        finally:
            self._sleep()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def _sleep(self) -> None:
        """Whatever its threads would still spin on does not disturb the next one."""
        self._process.send_signal(signal.SIGSTOP)

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailsError(f"it ended with {self._process.wait(10)}: {self._said()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerFailsError(reply["error"])
        return reply

    def _said(self) -> str:
        self._log.seek(0)
        return last_line(self._log.read())
