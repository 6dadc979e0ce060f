"""An agent of its own for one conversation: started on a free port of the loopback interface, and ended with it.

It is a child process, as the build host never imports the agent; it is the same program that a device runs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from edgeonnx.errors import AgentError, RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MODULE = "device_agent"
READY = re.compile(r"^ready: (http://\S+) serves (.*)$")
END_SECONDS = 5.0
MAX_LOG_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def running(bundle: Path, options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Start an agent, and end it at the end of the block.

    Args:
        bundle: The bundle that it serves.
        options: Further options of `edgeonnx-agent serve`.

    Yields:
        Its address, and what it says that it serves.

    Raises:
        RuntimeUnavailableError: The agent, or one of its libraries, is not installed.
        AgentError: It did not become ready.
    """
    if importlib.util.find_spec(MODULE) is None:
        raise RuntimeUnavailableError(
            "edgeonnx-agent is not installed here", hint="install it: pip install 'edgeonnx[agent]'"
        )
    # -P: what lies in the current folder is not imported.
    command = [sys.executable, "-P", "-m", f"{MODULE}.cli.main", "serve", "--bundle", str(bundle)]
    command += ["--host", "127.0.0.1", "--port", "0", *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - our own program, and no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            errors="replace",
            process_group=0,  # Ctrl-C in the terminal is for the conversation
            preexec_fn=_end_with_parent,
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            found = READY.match(line)
            if found is None:
                raise failed(process.wait(END_SECONDS) if not line else None, line, _tail(log))
            yield found[1], found[2]
        finally:
            _end(process)


def _end_with_parent() -> None:
    """In the child, before it becomes the agent: it gets SIGTERM when the process that talks is killed (Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _end(process: subprocess.Popen[str]) -> None:
    """End the agent and wait for it; whatever comes between, it does not outlive this process."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


def failed(code: int | None, line: str, log: str) -> AgentError | RuntimeUnavailableError:
    """The error to raise for an agent that did not become ready.

    Args:
        code: Its exit code; None: it runs, but says something else.
        line: What it said on stdout instead.
        log: The end of what it wrote to stderr.
    """
    if code is None:
        return AgentError("the agent says something unknown", expected="a line that begins with ready:", found=line)
    lines = log.splitlines()
    reasons = [at for at, each in enumerate(lines) if each.startswith("error: ")]
    said = lines[reasons[-1]].removeprefix("error: ") if reasons else next(reversed(lines), "it said nothing")
    if code == RuntimeUnavailableError.exit_code:
        return RuntimeUnavailableError(said)
    return AgentError("the agent did not start", found=f"exit code {code}", details=(said,))


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, 2)
    log.seek(max(0, size - MAX_LOG_BYTES))
    return log.read().decode(errors="replace")
