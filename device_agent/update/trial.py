"""Proving a candidate: the child process is begun, bounded, and its word is read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from device_agent.config import UpdateConfig


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a candidate.

    Attributes:
        proven: It gave its golden answers.
        reason: Why not; empty if it did.
        crashed: It ended without a word (a signal, out of memory, a power cut would look the same): worth another try.
        variant: The variant that would serve, or None.
    """

    proven: bool
    reason: str = ""
    crashed: bool = False
    variant: str | None = None


def prove(bundle: Path, config: UpdateConfig, settings: Path | None) -> Verdict:
    """Load a bundle in a process of its own and replay its golden set.

    Args:
        bundle: The candidate's slot.
        config: `[update]`.
        settings: The agent's settings file, or None.
    """
    command = [sys.executable, "-m", "device_agent.update.candidate", str(bundle)]
    if settings is not None:
        command.append(str(settings))
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, and paths of ours
            command, capture_output=True, text=True, timeout=config.candidate_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(proven=False, reason=f"it was not ready after {config.candidate_seconds:g} s")
    return interpret(done.returncode, done.stdout, done.stderr)


def interpret(code: int, output: str, errors: str) -> Verdict:
    """What a candidate's exit code and output mean. Pure."""
    try:
        answer = json.loads(output.strip().rpartition("\n")[2])
    except ValueError:
        answer = {}
    if code == 0 and answer.get("ok") is True:
        return Verdict(proven=True, variant=str(answer.get("variant")))
    if answer.get("ok") is False:
        error = answer.get("error", {})
        text = "; ".join(str(error[key]) for key in ("where", "message", "found") if key in error)
        return Verdict(proven=False, reason=text or "it failed")
    if code < 0:
        return Verdict(proven=False, crashed=True, reason=f"its process was ended by {signal.Signals(-code).name}")
    last = errors.strip().rpartition("\n")[2][:200]
    return Verdict(proven=False, crashed=True, reason=f"its process ended with code {code}: {last}")
